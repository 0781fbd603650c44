"""Elementary steps shared by the oracles: folds, sums that round at every step, products of matrices.

`torch.sum` of bfloat16 accumulates in float32; these accumulate in the dtype of their argument, which is
what makes a program in a lower precision show the errors of that precision.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Terms added one after another before lanes are combined pairwise: long enough to accumulate error like a
# loop over a row does, short enough to be quick.
_STEPS = 1024

# Dtypes in which torch itself multiplies and accumulates without a wider intermediate.
WIDE = (torch.float64, torch.float32)

# Product and sum in one step cost a third of two; below these precisions the product must be rounded by
# itself.
_FUSED = (torch.float32, torch.float64)


def axes_of(
    dim: int | tuple[int, ...] | list[int] | None, rank: int, *, empty_is_all: bool = True
) -> tuple[int, ...]:
    """Non-negative axes that a `dim` param names; None means all, an empty list all or none.

    >>> axes_of((-1, 0), 3), axes_of(None, 2), axes_of((), 2, empty_is_all=False)
    ((2, 0), (0, 1), ())
    """
    if dim is None:
        return tuple(range(rank))
    named = (dim,) if isinstance(dim, int) else tuple(dim)
    if not named:
        return tuple(range(rank)) if empty_is_all else ()
    return tuple(axis % rank for axis in named) if rank else ()


def group(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """`x` with the reduced axes merged into the first one: [terms, *kept]."""
    kept = [axis for axis in range(x.dim()) if axis not in axes]
    moved = x.permute((*sorted(axes), *kept))
    terms = 1
    for axis in axes:
        terms *= x.shape[axis]
    return moved.reshape(terms, *(x.shape[axis] for axis in kept))


def ungroup(reduced: Tensor, axes: tuple[int, ...], keepdim: bool) -> Tensor:
    """Put a size of 1 back at each reduced axis when `keepdim`."""
    for axis in sorted(axes) if keepdim else ():
        reduced = reduced.unsqueeze(axis)
    return reduced


def accumulate(terms: Tensor) -> Tensor:
    """Sum over the first axis, every partial sum rounded to the tensor's dtype. An empty sum is 0.

    Lanes of up to 1024 terms are summed one after another, then the lanes pairwise.
    """
    length = terms.shape[0]
    if length == 0:
        return torch.zeros(terms.shape[1:], dtype=terms.dtype, device=terms.device)
    lanes = -(-length // _STEPS)
    steps = -(-length // lanes)
    if steps * lanes > length:
        padding = torch.zeros(
            (steps * lanes - length, *terms.shape[1:]), dtype=terms.dtype, device=terms.device
        )
        terms = torch.cat((terms, padding))
    first, *others = terms.reshape(steps, lanes, *terms.shape[1:]).unbind(0)
    total = first.clone()
    for term in others:
        total += term
    return fold(total, torch.add)


def fold(x: Tensor, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Reduce the first, non-empty axis pairwise with an associative operation."""
    while x.shape[0] > 1:
        half = x.shape[0] // 2
        merged = combine(x[:half], x[half : 2 * half])
        x = torch.cat((merged, x[2 * half :]))
    return x[0]


def mean_of(terms: Tensor) -> Tensor:
    """Arithmetic mean over the first axis; NaN when it is empty."""
    return accumulate(terms) / terms.shape[0] if terms.shape[0] else accumulate(terms) / 0.0


def contract(a: Tensor, b: Tensor, where: Tensor | None = None) -> Tensor:
    """[..., M, K] times [..., K, N]: one rank-1 product after another, each product and each sum rounded.

    With `where` (bool, broadcastable to [..., M, K]) only those terms are summed: a term left out contributes
    nothing, not even 0 * NaN.
    """
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = torch.zeros((*batch, a.shape[-2], b.shape[-1]), dtype=a.dtype, device=a.device)
    columns, rows = a.unsqueeze(-1).unbind(-2), b.unsqueeze(-3).unbind(-2)
    if where is not None:
        hidden = (~where).unsqueeze(-1).unbind(-2)
        for column, row, left_out in zip(columns, rows, hidden, strict=True):
            out += (column * row).masked_fill(left_out, 0)
    elif out.dtype in WIDE:
        for column, row in zip(columns, rows, strict=True):
            out.addcmul_(column, row)
    else:
        for column, row in zip(columns, rows, strict=True):
            out += column * row
    return out


def contract_as_step(a: Tensor, b: Tensor, where: Tensor | None = None) -> Tensor:
    """`contract` for programs in which a product of matrices is one step among others.

    In float64 and float32 by `torch.matmul`, which accumulates in those dtypes as well. `where` must be
    false only where `a` is 0, so that it matters for NaN and infinities in `b` alone.
    """
    if a.dtype not in WIDE or (where is not None and not b.isfinite().all()):
        return contract(a, b, where)
    return torch.matmul(a, b)


def vector_times(vector: Tensor, matrix: Tensor) -> Tensor:
    """[..., K] times [..., K, N], one step among many; below float32 products and pairwise sums round."""
    if vector.dtype in WIDE:
        return torch.matmul(vector[..., None, :], matrix)[..., 0, :]
    terms = (vector[..., :, None] * matrix).movedim(-2, 0)
    return fold(terms, torch.add) if terms.shape[0] else accumulate(terms)


def exponentials(x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
    """`(shifted, exp(shifted), sum of them)` along an axis, which stays with size 1 in the sum.

    Shifted by the greatest element, so that the exponentials are at most 1; NaN where the row has NaN or
    +Inf, or -Inf only.
    """
    if x.shape[axis] == 0:
        return x, x, x.narrow(axis, 0, 0)
    greatest = fold(x.movedim(axis, 0), torch.maximum).unsqueeze(axis)
    shifted = x - greatest
    powers = torch.exp(shifted)
    return shifted, powers, accumulate(powers.movedim(axis, 0)).unsqueeze(axis)
