"""Layout arithmetic shared by the flows: merging dims, vector widths, flat views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

__all__ = ["MAX_ELEMENTS", "is_dense", "merge_dims", "run_length", "span", "storage_view", "vector_width"]

# Tile programs index with 32 bits; larger tensors are run in pieces of at most this many elements.
MAX_ELEMENTS = 1 << 30
_ACCESS_BYTES = 16


# A CPU has no widest access; a run of this size is worth the arithmetic that finds it.
_RUN_BYTES = 1024


def run_length(tensors: Iterable[torch.Tensor], *divisors: int) -> int:
    """Return the longest run of elements that a CPU program reads as one: a power of two that divides every
    divisor, at most 1024 bytes of the widest dtype.

    >>> run_length([torch.empty(64, dtype=torch.float16)], 4096), run_length([torch.empty(1)], 12)
    (512, 4)
    """
    width = _RUN_BYTES // max(t.element_size() for t in tensors)
    while width > 1 and any(d % width for d in divisors):
        width //= 2
    return width


def vector_width(tensors: Iterable[torch.Tensor], *divisors: int) -> int:
    """Return the widest access, in elements: at most 16 bytes of the widest dtype, dividing every divisor,
    and aligned in every tensor.

    The address is looked at modulo the access width only, which is part of an op's plan key
    (`Kernel.ALIGNMENT`).

    >>> x = torch.empty(64, dtype=torch.float16)
    >>> vector_width([x], 64), vector_width([x], 12), vector_width([x[1:]], 64), vector_width([x.float()], 64)
    (8, 4, 1, 4)
    """
    tensors = list(tensors)
    width = _ACCESS_BYTES // max(t.element_size() for t in tensors)
    while width > 1 and (
        any(d % width for d in divisors) or any(t.data_ptr() % (width * t.element_size()) for t in tensors)
    ):
        width //= 2
    return max(width, 1)


def merge_dims(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[list[int], list[list[int]]]:
    """Merge neighbouring dims that every operand can walk as one; drop dims of size 1.

    Args:
        shape: common shape of the operands.
        strides: per operand one stride per dim, 0 where it is broadcast.

    >>> merge_dims([16, 256, 56, 56], [[802816, 3136, 56, 1], [0, 1, 0, 0]])
    ([16, 256, 3136], [[802816, 3136, 1], [0, 1, 0]])
    >>> merge_dims([2, 1, 3], [[3, 3, 1], [3, 1, 1]])
    ([6], [[1], [1]])
    """
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for dim in reversed(range(len(shape))):
        if shape[dim] == 1:
            continue
        if sizes and all(s[dim] == m[0] * sizes[0] for s, m in zip(strides, merged, strict=True)):
            sizes[0] *= shape[dim]
            continue
        sizes.insert(0, shape[dim])
        for s, m in zip(strides, merged, strict=True):
            m.insert(0, s[dim])
    if not sizes:
        return [1], [[1] for _ in strides]
    return sizes, merged


def is_dense(tensor: torch.Tensor) -> bool:
    """True if the tensor fills its span of memory without gaps or overlaps, in some order of its dims.

    >>> x = torch.empty(4, 4)
    >>> is_dense(x.t()), is_dense(x[:, :2]), is_dense(x[:1].expand(2, 4))
    (True, False, False)
    """
    expected = 1
    for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda p: (p[1], p[0])):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return how many elements of memory a strided tensor reaches over.

    >>> span((2, 3), (8, 1))
    11
    """
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def storage_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as tile programs take it: bool as bytes.

    >>> storage_view(torch.tensor([True])).dtype, storage_view(torch.tensor([1.0])).dtype
    (torch.uint8, torch.float32)
    """
    return tensor.view(torch.uint8) if tensor.dtype is torch.bool else tensor
