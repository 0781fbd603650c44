"""CUPTI timer: device time per call from activity records, attributed by external correlation ids.

Needs `cupti-python` 13 (`pip install tileops-bench[cuda]`). CUPTI is active only between `start` and
`finish`, since tracing slows the host: host time is measured outside of it.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, Protocol

from tileops_bench.errors import TimerUnavailableError
from tileops_bench.timers import Timings
from tileops_bench.timers.attribution import FIRST_TOKEN_ID, PREPARE_ID, Activity, attribute

BUFFER_BYTES = 8 << 20
FLUSH_FORCED = 1


class Device(Protocol):
    """What the timer needs from the device: a cold cache and an idle queue."""

    def make_cold(self) -> None:
        """Evict the L2 and leave no persisting lines in it."""

    def drain(self) -> None:
        """Wait until the device is idle."""


class CuptiTimer:
    """Times calls by the device's own record of what ran.

    Args:
        cupti: the `cupti.cupti` module, or anything with its functions.
        device: how to flush and drain.
    """

    name = "cupti"

    def __init__(self, cupti: Any, device: Device) -> None:
        self._cupti = cupti
        self._device = device
        self._kind = cupti.ExternalCorrelationKind.CUSTOM2  # 0 and 1 are used by the framework's own profiler
        self._activities: list[Activity] = []
        self._external: dict[int, int] = {}
        self._tokens: list[int] = []
        kinds = cupti.ActivityKind
        self._device_kinds = {
            int(k) for k in (kinds.CONCURRENT_KERNEL, kinds.KERNEL, kinds.MEMCPY, kinds.MEMSET)
        }
        self._link_kind = int(kinds.EXTERNAL_CORRELATION)
        # Without the API kinds CUPTI emits no external-correlation records; launches come through both APIs.
        self._enabled = (
            kinds.RUNTIME, kinds.DRIVER, kinds.EXTERNAL_CORRELATION, kinds.CONCURRENT_KERNEL, kinds.MEMCPY,
            kinds.MEMSET,
        )  # fmt: skip
        cupti.activity_register_callbacks(_request_buffer, self._take_buffer)

    @classmethod
    @cache
    def on_device(cls, scrub_bytes: int) -> CuptiTimer:
        """The timer on the current CUDA device. One per process: CUPTI has one set of callbacks.

        Raises:
            TimerUnavailableError: cupti-python or a CUDA device is missing, or CUPTI refuses to start.
        """
        from tileops_bench.timers.device import CudaDevice

        device = CudaDevice(scrub_bytes)
        cupti = load_cupti()
        try:
            return cls(cupti, device)
        except Exception as error:
            raise TimerUnavailableError(f"CUPTI does not start: {error}") from error

    def start(self) -> None:
        """Enable tracing. Everything launched from here on that is not a timed call belongs to PREPARE_ID."""
        self._activities, self._external, self._tokens = [], {}, []
        self._device.drain()
        for kind in self._enabled:
            self._cupti.activity_enable(kind)
        self._cupti.activity_push_external_correlation_id(self._kind, PREPARE_ID)

    def prepare(self) -> None:
        """Flush the L2 and drain the device."""
        self._device.make_cold()
        self._device.drain()

    def time(self, token: int, call: Callable[[], Any]) -> Any:
        """Make one call under its own external id and wait for the device."""
        self._tokens.append(token)
        self._cupti.activity_push_external_correlation_id(self._kind, token + FIRST_TOKEN_ID)
        try:
            result = call()
        finally:
            self._cupti.activity_pop_external_correlation_id(self._kind)
        self._device.drain()
        return result

    def finish(self) -> Timings:
        """Stop tracing and attribute every record."""
        self._device.drain()
        self._cupti.activity_pop_external_correlation_id(self._kind)
        self._cupti.activity_flush_all(FLUSH_FORCED)
        dropped = self._dropped()
        for kind in self._enabled:
            self._cupti.activity_disable(kind)
        return attribute(self._activities, self._external, self._tokens, dropped)

    def _dropped(self) -> int:
        count = ctypes.c_size_t(0)
        self._cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        return count.value

    def _take_buffer(self, records: list[Any]) -> None:
        """Copy what matters: the record objects die with CUPTI's buffer."""
        for record in records:
            kind = int(record.kind)
            if kind == self._link_kind:
                if int(record.external_kind) == int(self._kind):
                    self._external[int(record.correlation_id)] = int(record.external_id)
            elif kind in self._device_kinds:
                name = str(getattr(record, "name", "") or f"activity kind {kind}")
                self._activities.append(
                    Activity(int(record.correlation_id), int(record.start), int(record.end), name)
                )


def _request_buffer() -> tuple[int, int]:
    """Size of a new buffer and the most records in it (0: as many as fit)."""
    return BUFFER_BYTES, 0


def load_cupti() -> ModuleType:
    """Import cupti-python, or say what to install."""
    try:
        return importlib.import_module("cupti.cupti")
    except ImportError as error:
        raise TimerUnavailableError(
            f"timer 'cupti' needs cupti-python 13 ({error}); install 'tileops-bench[cuda]' "
            "or ask for --timer cuda-events, which is labelled as such in the results"
        ) from error
