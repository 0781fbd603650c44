"""The same values in memory laid out differently: strides, offsets and views that a caller's tensor may have.

`zero-dim` and `empty` are layouts of a whole workload (they change its shapes, see
`tileops_workloads.shapes`); the rest re-lay one tensor. A tensor that cannot take a layout (a vector has
nothing to transpose) keeps its own.
"""

from __future__ import annotations

import torch

LAYOUTS = ("contiguous", "strided", "transposed", "expanded", "offset", "zero-dim", "empty")
SHAPE_LAYOUTS = ("zero-dim", "empty")

# An odd number of elements: the data then starts at an address that no vector load of two or more elements
# is aligned to.
_OFFSET_ELEMENTS = 1


def can_take(shape: tuple[int, ...], layout: str) -> bool:
    """Whether a tensor of `shape` looks different in memory under `layout`.

    >>> can_take((4,), "transposed"), can_take((4, 8), "transposed")
    (False, True)
    """
    if 0 in shape:
        return False
    if layout == "transposed":
        return len(shape) >= 2 and min(shape[-2:]) > 1
    if layout == "expanded":
        return any(size > 1 for size in shape)
    if layout == "strided":
        return len(shape) >= 1
    return layout == "offset"


def lay_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """`tensor` (contiguous) under `layout`; equal to it, but for `expanded`, which repeats one slice.

    * `strided`: every other element of an allocation twice as wide (inner stride 2).
    * `transposed`: the last two dims swapped in memory.
    * `expanded`: stride 0 along the first dim longer than 1.
    * `offset`: contiguous, but starting one element into its storage.
    """
    shape = tuple(tensor.shape)
    if not can_take(shape, layout):
        return tensor
    if layout == "transposed":
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "expanded":
        axis = next(i for i, size in enumerate(shape) if size > 1)
        return tensor.narrow(axis, 0, 1).clone().expand(shape)
    if layout == "strided":
        wide = torch.zeros((*shape[:-1], 2 * shape[-1]), dtype=tensor.dtype, device=tensor.device)
        return _filled(wide[..., ::2], tensor)
    storage = torch.zeros(tensor.numel() + _OFFSET_ELEMENTS, dtype=tensor.dtype, device=tensor.device)
    return _filled(storage[_OFFSET_ELEMENTS:].view(shape), tensor)


def _filled(view: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    view.copy_(values)
    return view
