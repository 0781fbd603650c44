"""Memory of inputs that an op writes: every element has its own, which no other input shares.

Strides are part of a plan's key, so that overlaps within a tensor are looked for once. Addresses are not:
whether two inputs share memory is asked in every call of an op that writes, by a few comparisons unless the
ranges meet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.errors import LayoutError
from tileops_kernels.ops.flows._layout import is_dense, span

if TYPE_CHECKING:
    from tileops_kernels.ops.flows.base import Run
    from tileops_manifest import Entry

__all__ = ["check_distinct_places", "overlaps_itself", "share_memory", "with_memory_checks"]


def _places(shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """Offset of every element."""
    offsets = torch.zeros((), dtype=torch.int64, device="cpu")
    for size, stride in zip(shape, strides, strict=True):
        offsets = offsets[..., None] + torch.arange(size, device="cpu") * stride
    return offsets.reshape(-1)


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """True if two elements of a strided tensor lie in one place.

    >>> overlaps_itself((4, 8), (8, 1)), overlaps_itself((4, 8), (0, 1)), overlaps_itself((3, 4), (2, 1))
    (False, True, True)
    >>> overlaps_itself((2, 2), (3, 2)), overlaps_itself((0, 8), (0, 1))
    (False, False)
    """
    if math.prod(shape) <= 1:
        return False
    reach = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1
    ):
        if stride == 0:
            return True
        if stride <= reach:
            places = _places(shape, strides)
            return places.unique().numel() < places.numel()
        reach += (size - 1) * stride
    return False


def share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if an element of one tensor lies in memory of an element of the other.

    >>> x = torch.zeros(4, 2)
    >>> share_memory(x, x[3:]), share_memory(x[:2], x[2:]), share_memory(x[:, 0], x[:, 1])
    (True, False, False)
    """
    if not a.numel() or not b.numel():
        return False
    ranges = [(t.data_ptr(), t.data_ptr() + span(t.shape, t.stride()) * t.element_size()) for t in (a, b)]
    (first, end), (other_first, other_end) = ranges
    if first >= other_end or other_first >= end:
        return False
    if is_dense(a) and is_dense(b):
        return True
    unit = math.gcd(a.element_size(), b.element_size(), first - other_first)
    taken, asked = (
        _places((*t.shape, t.element_size() // unit), (*(s * t.element_size() for s in t.stride()), unit))
        + at
        for t, (at, _) in zip((a, b), ranges, strict=True)
    )
    return not set(taken.tolist()).isdisjoint(asked.tolist())


def check_distinct_places(op: str, name: str, tensor: torch.Tensor) -> None:
    """Check that an input can be written.

    Raises:
        LayoutError: two of its elements lie in one place.
    """
    if overlaps_itself(tensor.shape, tensor.stride()):
        raise LayoutError(
            op,
            argument=f"{name}.stride()",
            got=f"{tensor.stride()} for {name}.shape = {tuple(tensor.shape)}",
            expected="no two elements in one place",
            rule="an input that is written does not overlap itself",
        )


def with_memory_checks(
    run: Run, entry: Entry, written: Sequence[int], inputs: Sequence[torch.Tensor | None]
) -> Run:
    """Return `run`, preceded by a check that nobody else reads or writes the inputs at `written`.

    `inputs` are those of a call of the same plan.
    """
    reach = [
        0 if t is None or not t.numel() else span(t.shape, t.stride()) * t.element_size() for t in inputs
    ]
    pairs = [
        (i, j, reach[i], reach[j])
        for i in written
        for j in range(len(inputs))
        if reach[i] and reach[j] and (j > i or j not in written) and i != j
    ]
    if not pairs:
        return run
    names = tuple(entry.inputs)

    def checked(*inputs: Any) -> Any:
        first = [0 if t is None else t.data_ptr() for t in inputs]
        for i, j, length, other in pairs:
            if -length < first[i] - first[j] < other and share_memory(inputs[i], inputs[j]):
                raise LayoutError(
                    entry.name,
                    argument=names[i],
                    got=f"memory that {names[j]} shares",
                    expected="memory of its own",
                    rule="an input that is written shares no element with another",
                )
        return run(*inputs)

    return checked
