"""Peak extra memory of one call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # Linux: resets the peak resident set


def peak_extra_bytes(call: Callable[[], Any], target: str) -> int | None:
    """Bytes above the level before the call at its highest point, output included; None where it cannot be
    read.

    CUDA: the allocator's peak. CPU: the peak resident set, to the page.
    """
    if target == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        _CLEAR.write_text(_RESET_PEAK)
        before = _status_bytes("VmRSS")
    except OSError:
        return None
    call()
    return max(0, _status_bytes("VmHWM") - before)


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no field {field}")
