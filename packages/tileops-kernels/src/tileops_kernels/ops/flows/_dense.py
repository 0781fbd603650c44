"""How flows whose programs read row-major tensors get them: as they are, or through one copy."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tileops_kernels.kernels.base import Kernel

__all__ = ["MAX_GRID_Z", "Read", "dense_copy", "is_aligned", "reader", "same"]

Read = Callable[[torch.Tensor], torch.Tensor]

MAX_GRID_Z = 65535
"""Blocks on the last axis of a CUDA grid; a longer batch takes several launches."""


def same(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself."""
    return tensor


def dense_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a row-major copy (where `.contiguous()` would return a misaligned view as it is)."""
    return tensor.clone(memory_format=torch.contiguous_format)


def is_aligned(tensor: torch.Tensor, kernel: type[Kernel]) -> bool:
    """True if the kernel can address the tensor's first element: a CPU always can."""
    return tensor.device.type == "cpu" or tensor.data_ptr() % kernel.ALIGNMENT == 0


def reader(tensor: torch.Tensor, kernel: type[Kernel]) -> Read:
    """Return what a run must do to an input of this layout: nothing, or one copy.

    >>> from tileops_kernels.kernels.gemm import GemmKernel
    >>> x = torch.empty(2, 3)
    >>> reader(x, GemmKernel) is same, reader(x.t(), GemmKernel) is dense_copy
    (True, True)
    """
    return same if tensor.is_contiguous() and is_aligned(tensor, kernel) else dense_copy
