"""Timers, by name. Asking for one that cannot work here is an error; nothing falls back to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tileops_bench.errors import TimerUnavailableError
from tileops_bench.records import Problem

DEFAULT_TIMER = {"cpu": "perf_counter", "cuda": "cupti"}
TARGETS = {"perf_counter": "cpu", "cupti": "cuda", "cuda-events": "cuda"}


@dataclass(frozen=True)
class Measurement:
    """One timed call. `ns` is the time that counts, `span_ns` from the first start to the last end on the
    device."""

    ns: int
    span_ns: int | None = None
    kernels: int | None = None
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Timings:
    """All timed calls of one session by token, and what went wrong, by token (None: with no call in
    particular)."""

    calls: dict[int, Measurement]
    problems: tuple[tuple[int | None, Problem], ...] = ()


class Timer(Protocol):
    """Times calls one by one. `start` → (`prepare`, `time`)* → `finish`."""

    name: str

    def start(self) -> None:
        """Begin a session."""

    def prepare(self) -> None:
        """Make the caches cold and the device idle."""

    def time(self, token: int, call: Callable[[], Any]) -> Any:
        """Make the call, remember its time under `token`, return its result."""

    def finish(self) -> Timings:
        """End the session and hand over its times."""


def make_timer(name: str, target: str, scrub_bytes: int) -> Timer:
    """Build a timer.

    Raises:
        TimerUnavailableError: unknown name, wrong target, or its library or device is not there.
    """
    if name not in TARGETS:
        raise TimerUnavailableError(f"no timer {name!r}; known: {', '.join(sorted(TARGETS))}")
    if TARGETS[name] != target:
        raise TimerUnavailableError(f"timer {name!r} times {TARGETS[name]}, not {target}")
    if name == "perf_counter":
        from tileops_bench.timers.cpu import CpuTimer

        return CpuTimer(scrub_bytes)
    if name == "cupti":
        from tileops_bench.timers.cupti import CuptiTimer

        return CuptiTimer.on_device(scrub_bytes)
    from tileops_bench.timers.events import EventTimer

    return EventTimer.on_device(scrub_bytes)
