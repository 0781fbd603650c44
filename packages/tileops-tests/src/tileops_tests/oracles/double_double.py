"""Numbers of about 106 significant bits: sums hi + lo of float64, lo being at most half an ulp of hi.

Error-free transformations of T. J. Dekker, "A floating-point technique for extending the available
precision" (1971), and D. E. Knuth. Valid while neither products overflow nor their errors underflow.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# Splits 53 bits into 26 and 27.
_SPLITTER = 2.0**27 + 1


class Pair(NamedTuple):
    """hi + lo, tensors of float64."""

    hi: Tensor
    lo: Tensor

    def __add__(self, other: Pair) -> Pair:  # type: ignore[override]
        total, error = _exact_sum(self.hi, other.hi)
        tail, tail_error = _exact_sum(self.lo, other.lo)
        total, error = _renormalised(total, error + tail)
        return Pair(*_renormalised(total, error + tail_error))

    def __neg__(self) -> Pair:
        return Pair(-self.hi, -self.lo)

    def __sub__(self, other: Pair) -> Pair:
        return self + (-other)

    def __mul__(self, other: Pair) -> Pair:  # type: ignore[override]
        product, error = _exact_product(self.hi, other.hi)
        return Pair(*_renormalised(product, error + (self.hi * other.lo + self.lo * other.hi)))


def _renormalised(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b as a rounded sum and its error, |a| >= |b|."""
    total = a + b
    return total, b - (total - a)


def _exact_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    total = a + b
    moved = total - a
    return total, (a - (total - moved)) + (b - moved)


def _split(a: Tensor) -> tuple[Tensor, Tensor]:
    scaled = a * _SPLITTER
    high = scaled - (scaled - a)
    return high, a - high


def _exact_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error
