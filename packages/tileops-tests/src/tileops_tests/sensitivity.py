"""The sensitivity gate: could this workload have told a wrong result from a right one?

Six plausible wrong results are made from the oracle's own output; the comparator must reject each one that
differs from it. A workload that lets one through judges nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import torch
from torch import Tensor

from tileops_tests.comparator import OutputReference, bad_elements, same_values, widen
from tileops_tests.precision import FORMATS, is_float, one_step_down, round_significand, torch_dtype
from tileops_tests.tolerance import TILE_COLUMNS, TILE_ROWS


class Outcome(StrEnum):
    """What happened to one kind of wrong result on one workload."""

    REJECTED = "rejected"
    UNCHANGED = "unchanged"
    ACCEPTED = "accepted"
    INAPPLICABLE = "inapplicable"


def zeros(reference: OutputReference) -> Tensor:
    """Nothing computed."""
    return torch.zeros_like(reference.expected)


def constant(reference: OutputReference) -> Tensor:
    """One value everywhere: that of the middle element."""
    expected = reference.expected
    return expected.flatten()[expected.numel() // 2].expand(expected.shape).clone()


def shuffled_rows(reference: OutputReference) -> Tensor:
    """Every row (every element, in a vector) in its neighbour's place."""
    expected = reference.expected
    rows = expected.reshape(-1, expected.shape[-1]) if expected.dim() > 1 else expected.reshape(-1, 1)
    return raw_bits(rows).roll(1, 0).reshape(expected.shape).view(expected.dtype)


def wrong_element(reference: OutputReference) -> Tensor:
    """One element replaced by the finite value farthest from it (an integer: by its successor)."""
    wrong = reference.expected.clone()
    at = int(wrong.numel() * 0.618)
    flat = wrong.view(-1)
    if wrong.dtype is torch.bool:
        flat[at] = ~flat[at]
    elif not wrong.dtype.is_floating_point:
        flat[at] = flat[at] + 1
    else:
        flat[at] = _farthest(widen(flat), at)
    return wrong


def _farthest(values: Tensor, at: int) -> float:
    here = values[at].nan_to_num(0.0, 0.0, 0.0)
    finite = values[torch.isfinite(values)]
    if finite.numel() == 0:
        return 1.0
    low, high = finite.min(), finite.max()
    away = low if here - low > high - here else high
    if bool(away != here):
        return float(away)
    # All values are alike: what every dtype holds, and is far from them.
    return float(-here) if abs(here) > 1 else float(here + 2)


def wrong_tile(reference: OutputReference) -> Tensor:
    """The last tile missing (zeros), or ones where the oracle has zeros: what a dropped tail looks like."""
    wrong = reference.expected.clone()
    grid = wrong.view(-1, wrong.shape[-1]) if wrong.dim() else wrong.view(1, 1)
    tile = grid[
        -(grid.shape[0] % TILE_ROWS or TILE_ROWS) :, -(grid.shape[1] % TILE_COLUMNS or TILE_COLUMNS) :
    ]
    tile.copy_(torch.zeros_like(tile) if bool((tile != 0).any()) else torch.ones_like(tile))
    return wrong


def rounded(reference: OutputReference) -> Tensor:
    """The oracle's result stored one step down the precision ladder: below the output's dtype, or where that
    is no error, since intermediate values may be coarser, below theirs.
    """
    own = _stored_below(reference, reference.dtype)
    coarser = reference.resolution not in (None, reference.dtype)
    if not coarser or bool(bad_elements(own, reference).any()):
        return own
    return _stored_below(reference, reference.resolution)


def _stored_below(reference: OutputReference, dtype: str) -> Tensor:
    bits = FORMATS[one_step_down(dtype)].bits
    return round_significand(widen(reference.expected), bits).to(torch_dtype(reference.dtype))


KINDS: dict[str, Callable[[OutputReference], Tensor]] = {
    "zeros": zeros,
    "constant": constant,
    "shuffled_rows": shuffled_rows,
    "wrong_element": wrong_element,
    "wrong_tile": wrong_tile,
    "rounded": rounded,
}


def gate(references: Sequence[OutputReference]) -> dict[str, Outcome]:
    """Try every kind on every output; the worst outcome of a kind over the outputs is what counts."""
    return {kind: _try_kind(kind, references) for kind in KINDS}


# An accepted wrong output outweighs a rejected one: the outputs are judged one by one, so each must be
# protected.
_WORST_FIRST = (Outcome.ACCEPTED, Outcome.REJECTED, Outcome.UNCHANGED, Outcome.INAPPLICABLE)


def _try_kind(kind: str, references: Sequence[OutputReference]) -> Outcome:
    outcomes = {_try_one(kind, reference) for reference in references}
    return next(outcome for outcome in _WORST_FIRST if outcome in outcomes)


def _try_one(kind: str, reference: OutputReference) -> Outcome:
    if kind == "rounded" and not is_float(reference.dtype):
        return Outcome.INAPPLICABLE
    if reference.expected.numel() == 0:
        return Outcome.UNCHANGED
    wrong = KINDS[kind](reference)
    if bool(same_values(wrong, reference.expected, signed_zero=reference.signed_zero).all()):
        return Outcome.UNCHANGED
    return Outcome.REJECTED if bool(bad_elements(wrong, reference).any()) else Outcome.ACCEPTED


def raw_bits(x: Tensor) -> Tensor:
    """`x` as integers of the same width: dtypes without arithmetic (fp8) can still be moved about. Of complex
    numbers each part becomes one.
    """
    x = torch.view_as_real(x) if x.is_complex() else x
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(integers[x.dtype.itemsize])
