"""What the values of an input look like: six distributions, each a function of position and random bits.

`normal` is what timing and most checks use: zero mean, unit variance, bell-shaped. `exact` and
`sparse-exact` hold only values whose sums and products are exact in float32, so a result has one right
answer whatever the order of summation.
`adversarial` mixes in NaN, infinities, signed zeros, denormals and the dtype's extremes; `structured` has
sorted, constant and repeating rows. `shifted` rows have a mean far larger than their spread, each another
one: what a variance computed as E[x^2] - E[x]^2 cannot bear.

Every step is integer arithmetic, a table look-up, or one correctly rounded float32 operation: the bytes are
the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch

from .bits import Stream, word_pairs
from .dtypes import has_infinity
from .errors import UnsupportedDtypeError, require_name

DISTRIBUTIONS = ("normal", "exact", "sparse-exact", "adversarial", "structured", "shifted")

# Products of two of these are multiples of 1/4 not above 16: float32 adds 2^18 of them exactly, in any order.
EXACT_VALUES = (-4.0, -3.0, -2.0, -2.0, -1.5, -1.0, -1.0, -0.5, 0.5, 1.0, 1.0, 1.5, 2.0, 2.0, 3.0, 4.0)
_EXACT_INTEGERS = (-4, -3, -2, -1, 0, 1, 2, 3)
_SPARSE_ONE_IN = 16

# Four 16-bit uniforms sum to 0 … 262140 with variance (2^32 - 1) / 3.
_BELL_MEAN = 2 * 65535
_BELL_UNIT = math.sqrt(3.0) / 65536

# Tensors above this size get specials rarely, so that a reduction over a long row is not NaN everywhere.
_DENSE_SPECIALS_UP_TO = 4096
_DENSE_SPECIALS_ONE_IN, _RARE_SPECIALS_ONE_IN = 8, 128
_FLAT_ROW = 64

# Means of `shifted` rows, over the least of their magnitudes. In float32 that is 2^10 spreads: its square is
# near the significand's end, so that a difference of squares keeps few digits, while a mean keeps enough.
# Narrower dtypes leave two steps of their grid for each spread.
SHIFTS = (1.0, -1.75, 1.25, -1.5, 1.875, -1.125, 1.625, -1.375)
_MOST_SPREADS = 2.0**10

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Chunk:
    """A run of consecutive elements, from number `start` on, and two 32-bit words of random bits for each."""

    start: int
    low: torch.Tensor
    high: torch.Tensor
    columns: int
    numel: int

    @property
    def row(self) -> torch.Tensor:
        """Number of the row (all but the last dim, flattened) that each element lies in: int64."""
        return self._index() // self.columns

    @property
    def column(self) -> torch.Tensor:
        """Position of each element within its row: int64."""
        return self._index() % self.columns

    def _index(self) -> torch.Tensor:
        stop = self.start + self.low.numel()
        return torch.arange(self.start, stop, dtype=torch.int64, device=self.low.device)

    def one_in(self, n: int) -> torch.Tensor:
        """A mask that is true for one element in `n`, drawn from the upper bits of `low`."""
        return (self.low * n) >> 32 == 0

    def choose(self, count: int) -> torch.Tensor:
        """A uniform number in [0, count) for each element, drawn from `high`: independent of `one_in`."""
        return (self.high * count) >> 32


def generate(
    stream: Stream,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    distribution: str = "normal",
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """A new contiguous tensor of `shape` and `dtype`, filled from `stream`.

    Raises:
        UnknownNameError: no such distribution.
        UnsupportedDtypeError: a quantised dtype or another one that has no values of its own.

    >>> generate(Stream.named("example"), (2, 2), torch.int8, "exact").dtype
    torch.int8
    """
    require_name("distribution", distribution, DISTRIBUTIONS)
    if dtype.is_complex:
        real = torch.empty(0, dtype=dtype).real.dtype
        return torch.view_as_complex(generate(stream, (*shape, 2), real, distribution, device))
    values = _values_of(dtype, distribution)
    out = torch.empty(shape, dtype=dtype, device=device)
    flat = out.view(-1)
    # Rows that take turns do so within a single one too; a mean is that of the whole row.
    in_rows = len(shape) > 1 and (math.prod(shape[:-1]) > 1 or distribution == "shifted")
    columns = shape[-1] if in_rows else _FLAT_ROW
    for start, stop, low, high in word_pairs(stream, flat.numel(), device):
        values(flat[start:stop], Chunk(start, low, high, columns, flat.numel()))
    return out


def _values_of(dtype: torch.dtype, distribution: str) -> Callable[[torch.Tensor, Chunk], None]:
    if dtype == torch.bool:
        return _fill_bool
    if dtype.is_floating_point:
        return _FLOATS[distribution]
    if dtype in _INTEGERS:
        return _FILL_INTEGERS[distribution]
    raise UnsupportedDtypeError(
        f"cannot generate values of {dtype}, expected a float, integer, bool or complex dtype"
    )


def bell(chunk: Chunk) -> torch.Tensor:
    """Zero mean, unit variance, within ±3.47: float32, one rounding after an exact integer sum."""
    total = (chunk.low & 0xFFFF).add_(chunk.low >> 16).add_(chunk.high & 0xFFFF).add_(chunk.high >> 16)
    return total.sub_(_BELL_MEAN).to(torch.float32).mul_(_BELL_UNIT)


def _fill_normal(out: torch.Tensor, chunk: Chunk) -> None:
    out.copy_(bell(chunk))


def _exact_values(chunk: Chunk) -> torch.Tensor:
    return _look_up(EXACT_VALUES, chunk.choose(len(EXACT_VALUES)))


def _fill_exact(out: torch.Tensor, chunk: Chunk) -> None:
    out.copy_(_exact_values(chunk))


def _fill_sparse_exact(out: torch.Tensor, chunk: Chunk) -> None:
    values = _exact_values(chunk)
    out.copy_(values.mul_(chunk.one_in(_SPARSE_ONE_IN)).add_(0.0))  # no -0.0: these are zeros, not signs


def _fill_adversarial(out: torch.Tensor, chunk: Chunk) -> None:
    """Bell values with specials; which specials depends on the row, so that some rows stay finite."""
    out.copy_(bell(chunk))
    menus = special_values(out.dtype)
    width = menus.shape[1]
    dense = chunk.numel <= _DENSE_SPECIALS_UP_TO
    place = (chunk.row % menus.shape[0]).mul_(width).add_(chunk.choose(width))
    picked = menus.to(out.device).view(-1).index_select(0, place)
    special = chunk.one_in(_DENSE_SPECIALS_ONE_IN if dense else _RARE_SPECIALS_ONE_IN)
    bits = out.view(_BITS[out.dtype.itemsize])
    bits.copy_(torch.where(special, picked, bits))


def _fill_structured(out: torch.Tensor, chunk: Chunk) -> None:
    """Rows take turns: ascending, constant, a repeating pattern of few values, descending."""
    columns = min(chunk.columns, chunk.numel)
    ramp = (2 * chunk.column - (columns - 1)).to(torch.float32).mul_(2.0 / max(columns - 1, 1))
    constant = _look_up(EXACT_VALUES, (chunk.row // 4 * 5 + 3) % len(EXACT_VALUES))
    repeating = _look_up(EXACT_VALUES, (chunk.column // 3) % 5 * 3)
    kind = chunk.row % 4
    rising_or_constant = torch.where(kind == 0, ramp, constant)
    repeating_or_falling = torch.where(kind == 2, repeating, -ramp)
    out.copy_(torch.where(kind < 2, rising_or_constant, repeating_or_falling))


def _fill_shifted(out: torch.Tensor, chunk: Chunk) -> None:
    """Bell values around the mean of their row."""
    out.copy_(bell(chunk).add_(_look_up(SHIFTS, chunk.row % len(SHIFTS)).mul_(least_shift(out.dtype))))


def least_shift(dtype: torch.dtype) -> float:
    """Least magnitude of the mean of a `shifted` row, whose spread is 1: a power of two."""
    return min(_MOST_SPREADS, 0.5 / torch.finfo(dtype).eps)


_FLOATS = {
    "normal": _fill_normal,
    "exact": _fill_exact,
    "sparse-exact": _fill_sparse_exact,
    "adversarial": _fill_adversarial,
    "structured": _fill_structured,
    "shifted": _fill_shifted,
}


@lru_cache(maxsize=64)
def special_values(dtype: torch.dtype) -> torch.Tensor:
    """The bits of the special values of a float dtype, by row kind: an integer tensor [row kinds, values].

    Row kinds: finite (signed zeros, denormals, tiny and small values), +Inf, -Inf, extremes of the finite
    range, NaN and everything at once. A dtype without infinity takes its largest finite values instead.
    """
    info = torch.finfo(dtype)
    denormal = info.smallest_normal * info.eps
    infinity = math.inf if has_infinity(dtype) else info.max
    quiet = [0.0, -0.0, denormal, -denormal, info.smallest_normal, -info.smallest_normal, info.eps, 1.0]
    menus = [
        quiet,
        [infinity, *quiet[1:]],
        [-infinity, *quiet[1:]],
        [info.max, -info.max, info.max / 2, -info.max / 2, *quiet[:4]],
        [math.nan, *quiet[1:]],
        [math.nan, infinity, -infinity, info.max, -info.max, -0.0, denormal, -1.0],
    ]
    return torch.tensor(menus, dtype=torch.float64).to(dtype).view(_BITS[dtype.itemsize])


_INTEGERS = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)


def _fill_bool(out: torch.Tensor, chunk: Chunk) -> None:
    out.copy_(chunk.low >> 31)


def _lowest(dtype: torch.dtype, low: int) -> int:
    return low if torch.iinfo(dtype).min < 0 else 0


def _fill_integers(out: torch.Tensor, chunk: Chunk) -> None:
    out.copy_(chunk.choose(128).add_(_lowest(out.dtype, -64)))


def _fill_small_integers(out: torch.Tensor, chunk: Chunk) -> None:
    out.copy_(chunk.choose(len(_EXACT_INTEGERS)).add_(_lowest(out.dtype, _EXACT_INTEGERS[0])))


def _fill_sparse_integers(out: torch.Tensor, chunk: Chunk) -> None:
    values = chunk.choose(len(_EXACT_INTEGERS)).add_(_lowest(out.dtype, _EXACT_INTEGERS[0]))
    out.copy_(values.mul_(chunk.one_in(_SPARSE_ONE_IN)))


def _fill_extreme_integers(out: torch.Tensor, chunk: Chunk) -> None:
    """The whole range of the dtype, with its extremes, 0, 1 and -1 in one element of eight."""
    info = torch.iinfo(out.dtype)
    bits = min(info.bits, 63)
    lowest = info.min if info.bits < 64 else -(1 << 62) if info.min < 0 else 0
    wide = ((chunk.high << 32) | chunk.low).bitwise_and_((1 << bits) - 1).add_(lowest)
    top = min(info.max, torch.iinfo(torch.int64).max)
    specials = torch.tensor([info.min, top, 0, 1, max(info.min, -1), top - 1], device=out.device)
    out.copy_(torch.where(chunk.one_in(8), specials.index_select(0, chunk.choose(len(specials))), wide))


def _fill_structured_integers(out: torch.Tensor, chunk: Chunk) -> None:
    columns = min(chunk.columns, chunk.numel)
    kind, column = chunk.row % 4, chunk.column
    rising_or_constant = torch.where(kind == 0, column % 101, chunk.row // 4 % 11)
    repeating_or_falling = torch.where(kind == 2, column // 3 % 5, (columns - 1 - column) % 101)
    out.copy_(torch.where(kind < 2, rising_or_constant, repeating_or_falling))


_FILL_INTEGERS = {
    "normal": _fill_integers,
    "exact": _fill_small_integers,
    "sparse-exact": _fill_sparse_integers,
    "adversarial": _fill_extreme_integers,
    "structured": _fill_structured_integers,
    "shifted": _fill_integers,
}


def _look_up(values: tuple[float, ...], place: torch.Tensor) -> torch.Tensor:
    """`values[place]`; `index_select`, since plain indexing starts threads even for short tensors."""
    return torch.tensor(values, dtype=torch.float32, device=place.device).index_select(0, place)
