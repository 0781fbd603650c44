"""How flows whose programs read row-major tensors get them: as they are, or through one copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tileops_kernels.kernels.base import Kernel

__all__ = ["MAX_GRID_Z", "Read", "bound_over_batch", "dense_copy", "is_aligned", "reader", "same"]

Read = Callable[[torch.Tensor], torch.Tensor]

MAX_GRID_Z = 65535
"""Blocks on the last axis of a CUDA grid; a longer batch takes several launches."""


def bound_over_batch(program: Any, *example: Any, shared: tuple[int, ...] = ()) -> Callable[..., None]:
    """Return a launch of `program` for arguments with the sizes of `example`; the batch is the last axis.

    A batch longer than the grid allows takes several launches. Every tensor is then cut along its first dim,
    except those at the positions `shared`.
    """
    batch = example[0].shape[0]
    if batch <= MAX_GRID_Z:
        return program.bound(*example)
    batched = [isinstance(a, torch.Tensor) and i not in shared for i, a in enumerate(example)]

    def launch_pieces(*args: Any) -> None:
        for start in range(0, batch, MAX_GRID_Z):
            piece = slice(start, start + MAX_GRID_Z)
            program(*(a[piece] if cut else a for a, cut in zip(args, batched, strict=True)))

    return launch_pieces


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
