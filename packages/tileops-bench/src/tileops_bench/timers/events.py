"""CUDA-event timer: a separate, labelled method. It includes launch time, which CUPTI does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tileops_bench.timers import Measurement, Timings
from tileops_bench.timers.cupti import Device


class EventTimer:
    """A pair of CUDA events around each call on the current stream."""

    name = "cuda-events"

    def __init__(self, device: Device, event: type = torch.cuda.Event) -> None:
        self._device = device
        self._event = event
        # Bound before any candidate is imported: a method that it replaces later is not the one that is used.
        self._record, self._elapsed = event.record, event.elapsed_time
        self._events: dict[int, tuple[Any, Any]] = {}

    @classmethod
    def on_device(cls, scrub_bytes: int) -> EventTimer:
        """The timer on the current CUDA device; raises TimerUnavailableError where there is none."""
        from tileops_bench.timers.device import CudaDevice

        return cls(CudaDevice(scrub_bytes))

    def start(self) -> None:
        """Forget earlier times."""
        self._events = {}

    def prepare(self) -> None:
        """Flush the L2 and drain the device."""
        self._device.make_cold()
        self._device.drain()

    def time(self, token: int, call: Callable[[], Any]) -> Any:
        """Record an event, make the call, record another, wait for the device."""
        begin, end = self._event(enable_timing=True), self._event(enable_timing=True)
        self._record(begin)
        result = call()
        self._record(end)
        self._events[token] = (begin, end)
        self._device.drain()
        return result

    def finish(self) -> Timings:
        """Read the elapsed times."""
        self._device.drain()
        calls = {
            token: Measurement(ns=max(1, round(self._elapsed(begin, end) * 1e6)))
            for token, (begin, end) in self._events.items()
        }
        return Timings(calls)
