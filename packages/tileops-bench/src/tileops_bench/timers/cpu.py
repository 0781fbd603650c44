"""CPU timer: the monotonic clock around a call, with the caches scrubbed before it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from tileops_bench.timers import Measurement, Timings


class CpuTimer:
    """`time.perf_counter_ns` around each call. The clock is bound before any candidate is imported."""

    name = "perf_counter"

    def __init__(self, scrub_bytes: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._scrub = torch.zeros(scrub_bytes // 4, dtype=torch.int32) if scrub_bytes else None
        self._calls: dict[int, Measurement] = {}

    def start(self) -> None:
        """Forget earlier times."""
        self._calls = {}

    def prepare(self) -> None:
        """Write a buffer larger than the last-level cache."""
        if self._scrub is not None:
            self._scrub.add_(1)

    def time(self, token: int, call: Callable[[], Any]) -> Any:
        """Time one call."""
        clock = self._clock
        begin = clock()
        result = call()
        end = clock()
        self._calls[token] = Measurement(ns=max(1, end - begin))
        return result

    def finish(self) -> Timings:
        """Hand over the times."""
        return Timings(self._calls)
