"""CPU timer: the monotonic clock around a call, with the caches scrubbed before it."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

from tileops_bench.timers import Measurement, Timings


class CpuTimer:
    """`time.perf_counter_ns` around each call. The clock is bound before any candidate is imported."""

    name = "perf_counter"

    def __init__(self, scrub_bytes: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._scrub = ctypes.create_string_buffer(scrub_bytes)
        self._fill = 0
        self._calls: dict[int, Measurement] = {}

    def start(self) -> None:
        """Forget earlier times."""
        self._calls = {}

    def prepare(self) -> None:
        """Write a buffer larger than the last-level cache, with this thread alone.

        A parallel write would leave the framework's worker threads spinning into the next call, on CPUs that
        a candidate with a thread pool of its own needs: it measured up to 70 times slower. Meanwhile the
        workers of the call before go to sleep.
        """
        self._fill ^= 1
        ctypes.memset(self._scrub, self._fill, len(self._scrub))

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
