"""Binding a compiled program to the memory a plan will hand it, so that a call passes tensors and nothing
else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tileops_kernels.ops.flows._layout import storage_view

__all__ = ["Launch", "Part", "bind"]

Launch = Callable[..., None]


@dataclass(frozen=True)
class Part:
    """One launch: per tensor argument the run of memory it covers, and the numbers that follow the tensors.

    Attributes:
        spans: (offset, length) in elements, from the tensor's first element on.
        numbers: the program's scalar arguments.
    """

    spans: tuple[tuple[int, int], ...]
    numbers: tuple[float, ...]


def bind(
    program: Any, operands: Sequence[torch.Tensor | torch.dtype], device: torch.device, parts: Sequence[Part]
) -> Launch:
    """Return `launch(*tensors)`, which runs the program on every part.

    One part that starts at the tensors' first elements, which is what all but huge tensors are, is bound to
    its sizes
    now: a call then reads nothing but addresses, and needs no views.

    Args:
        program: the compiled program; its tensor arguments are flat.
        operands: per tensor argument an example, or the dtype of a tensor the plan allocates.
        device: where those are allocated.
        parts: the launches.
    """
    if len(parts) == 1 and all(offset == 0 for offset, _ in parts[0].spans):
        (part,) = parts
        examples = [
            _flat(torch.empty(length, dtype=t, device=device) if isinstance(t, torch.dtype) else t, 0, length)
            for t, (_, length) in zip(operands, part.spans, strict=True)
        ]
        bound, numbers = program.bound(*examples, *part.numbers), part.numbers
        return lambda *tensors: bound(*tensors, *numbers)

    launcher = program.launcher

    def launch(*tensors: torch.Tensor) -> None:
        for part in parts:
            views = [
                _flat(t, offset, length) for t, (offset, length) in zip(tensors, part.spans, strict=True)
            ]
            launcher(*views, *part.numbers)

    return launch


def _flat(tensor: torch.Tensor, offset: int, length: int) -> torch.Tensor:
    return storage_view(tensor.as_strided((length,), (1,), tensor.storage_offset() + offset))
