"""The CUDA device as the timers see it: cold L2, no persisting lines, idle queue."""

from __future__ import annotations

import importlib

import torch

from tileops_bench.errors import TimerUnavailableError

_synchronize = torch.cuda.synchronize  # bound before any candidate is imported


class CudaDevice:
    """Flushes the L2 by writing at least twice its size, and keeps the persisting-L2 limit at zero.

    Args:
        scrub_bytes: size of the flush buffer; 0 means twice the L2 as the driver reports it.

    Raises:
        TimerUnavailableError: no CUDA device, or no `cuda-bindings` to control the persisting L2 with.
    """

    def __init__(self, scrub_bytes: int = 0) -> None:
        if not torch.cuda.is_available():
            raise TimerUnavailableError("no CUDA device is visible to torch")
        try:
            self._runtime = importlib.import_module("cuda.bindings.runtime")
        except ImportError as error:
            raise TimerUnavailableError(
                f"controlling the persisting L2 needs cuda-bindings ({error}); install 'tileops-bench[cuda]'"
            ) from error
        size = scrub_bytes or 2 * l2_bytes()
        self._flush = torch.empty(size // 4, dtype=torch.int32, device="cuda")

    def make_cold(self) -> None:
        """Persisting limit to zero, persisting lines reset, then write the flush buffer."""
        limit = self._runtime.cudaLimit.cudaLimitPersistingL2CacheSize
        self._check(self._runtime.cudaDeviceSetLimit(limit, 0))
        self._check(self._runtime.cudaCtxResetPersistingL2Cache())
        self._flush.zero_()

    def drain(self) -> None:
        """Wait for every stream."""
        _synchronize()

    @staticmethod
    def _check(result: tuple[object, ...]) -> None:
        if int(result[0]) != 0:
            raise TimerUnavailableError(
                f"the CUDA runtime refused to control the persisting L2: {result[0]!r}"
            )


def l2_bytes() -> int:
    """L2 size of the current device."""
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
