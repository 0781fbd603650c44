"""Rows of a tensor: how flows hand a batch of equal rows to a row-wise kernel without copying it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch

from tileops_kernels.ops.flows._layout import MAX_ELEMENTS, merge_dims

__all__ = ["Rows", "row_layout", "row_pieces"]


@dataclass(frozen=True)
class Rows:
    """`count` rows of `length` elements, `step` elements apart, each of them contiguous in memory.

    `step` is None where the tensor has no such layout and one copy makes it contiguous first.
    """

    count: int
    length: int
    step: int | None

    @property
    def pitch(self) -> int:
        return self.length if self.step is None else self.step

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor whose memory has the rows: itself, or a copy."""
        return tensor.contiguous() if self.step is None else tensor

    def span(self, start: int, count: int) -> tuple[int, int]:
        """Return (offset, length) of the memory under `count` rows from row `start` on."""
        return start * self.pitch, (count - 1) * self.pitch + self.length


def row_layout(tensor: torch.Tensor, inner_dims: int) -> Rows:
    """Return how the rows of a non-empty tensor lie in memory; a row is its last `inner_dims` dims.

    >>> row_layout(torch.empty(2, 3, 8), 1)
    Rows(count=6, length=8, step=8)
    >>> row_layout(torch.empty(6, 16)[:, :8], 1)
    Rows(count=6, length=8, step=16)
    >>> row_layout(torch.empty(8, 6).t(), 1)
    Rows(count=6, length=8, step=None)
    """
    split = tensor.dim() - inner_dims
    count, length = prod(tensor.shape[:split]), prod(tensor.shape[split:])
    inner_sizes, (inner_strides,) = merge_dims(tensor.shape[split:], [tensor.stride()[split:]])
    outer_sizes, (outer_strides,) = merge_dims(tensor.shape[:split], [tensor.stride()[:split]])
    if (inner_sizes, inner_strides) != ([length], [1]) and length > 1:
        return Rows(count, length, None)
    if count == 1:
        return Rows(count, length, length)
    if len(outer_sizes) > 1 or not length <= outer_strides[0] <= MAX_ELEMENTS:
        return Rows(count, length, None)
    return Rows(count, length, outer_strides[0])


def row_pieces(rows: int, *pitches: int, multiple: int = 1) -> Iterator[tuple[int, int]]:
    """Yield (first row, number of rows) such that no piece reaches over more than `MAX_ELEMENTS` elements.

    >>> list(row_pieces(10, 4)), list(row_pieces(3, 1 << 29))
    ([(0, 10)], [(0, 2), (2, 1)])
    """
    most = max(1, MAX_ELEMENTS // max(*pitches, 1) // multiple) * multiple
    for start in range(0, rows, most):
        yield start, min(most, rows - start)
