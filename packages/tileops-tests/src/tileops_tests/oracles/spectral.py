"""Oracle of the discrete Fourier transform of the last axis: X[k] = sum over j of x[j] exp(-2 pi i j k / n).

input [*batch, n] complex, n a power of two; output of the same shape. Complex numbers are pairs (real,
imaginary) in a further axis. The program halves the sum into even and odd j (J. W. Cooley and J. W. Tukey,
1965): X[k] = E[k] + w^k O[k] and X[k + n / 2] = E[k] - w^k O[k] with w = exp(-2 pi i / n). That this is the
sum above is one of its properties. Each w^k is a constant of the definition: correctly rounded from exact
integer arithmetic, whatever the compute dtype. A transform of complex128 is judged by the same steps in
double-double arithmetic.

Source: Cooley and Tukey, Math. Comput. 19 (1965), 297-301; the sign and scale are those of torch.fft.fft.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.double_double import Pair
from tileops_tests.oracles.properties import Run, close

# Fraction bits of the integers that roots of unity are computed in; each product and root loses one or two.
_BITS = 192


class Complex(NamedTuple):
    """Real and imaginary parts: tensors, or pairs of tensors."""

    re: Tensor | Pair
    im: Tensor | Pair


def _half_angle(cosine: int) -> tuple[int, int]:
    """Cosine and sine, in units of 2^-192, of half an angle of at most a quarter turn."""
    one = 1 << _BITS
    return math.isqrt((one + cosine) << (_BITS - 1)), math.isqrt((one - cosine) << (_BITS - 1))


@cache
def _roots(n: int) -> tuple[tuple[int, int], ...]:
    """cos and sin of 2 pi k / n for k below n / 2, in units of 2^-192; n a power of two, at least 2."""
    one = 1 << _BITS
    if n == 2:
        return ((one, 0),)
    if n == 4:
        return ((one, 0), (0, one))
    step = _half_angle(_roots(n // 2)[1][0])
    turned = []
    for cosine, sine in _roots(n // 2):
        turned.append((cosine, sine))
        product = cosine * step[0] - sine * step[1], cosine * step[1] + sine * step[0]
        turned.append((product[0] >> _BITS, product[1] >> _BITS))
    return tuple(turned)


def _rounded(value: int) -> tuple[float, float]:
    """A number in units of 2^-192 as the nearest float64 and what that leaves out."""
    high = value / (1 << _BITS)
    return high, (value - int(math.ldexp(high, _BITS))) / (1 << _BITS)


@cache
def _twiddles(n: int) -> tuple[Pair, Pair]:
    """Cosines and sines of 2 pi k / n, k below n / 2, as double-double."""
    parts = [[_rounded(number) for number in numbers] for numbers in zip(*_roots(n), strict=True)]
    cos, sin = (Pair(*torch.tensor(part, dtype=torch.float64).unbind(1)) for part in parts)
    return cos, sin


def _turned(x: Complex, cos: Tensor | Pair, sin: Tensor | Pair) -> Complex:
    """x times cos - i sin."""
    return Complex(x.re * cos + x.im * sin, x.im * cos - x.re * sin)


def _each(x: Tensor | Pair, change: Callable[[Tensor], Tensor]) -> Tensor | Pair:
    return Pair(change(x.hi), change(x.lo)) if isinstance(x, Pair) else change(x)


def _halved(x: Tensor) -> Tensor:
    """[..., n] as [..., 2, n / 2]: even places, then odd ones."""
    return x.unflatten(-1, (-1, 2)).mT


def _as(constant: Pair, x: Tensor | Pair) -> Tensor | Pair:
    """A constant in the precision, and where, x is."""
    return Pair(constant.hi.to(x.hi), constant.lo.to(x.hi)) if isinstance(x, Pair) else constant.hi.to(x)


def _joined(a: Tensor | Pair, b: Tensor | Pair) -> Tensor | Pair:
    if isinstance(a, Pair):
        return Pair(torch.cat((a.hi, b.hi), dim=-1), torch.cat((a.lo, b.lo), dim=-1))
    return torch.cat((a, b), dim=-1)


def _transformed(x: Complex, n: int) -> Complex:
    if n == 1:
        return x
    halves = _transformed(Complex(*(_each(part, _halved) for part in x)), n // 2)
    even, odd = (
        Complex(*(_each(part, lambda t, row=row: t[..., row, :]) for part in halves)) for row in (0, 1)
    )
    turned = _turned(odd, *(_as(constant, x.re) for constant in _twiddles(n)))
    return Complex(*(_joined(e + t, e - t) for e, t in zip(even, turned, strict=True)))


def _program(call: Call) -> Outputs:
    x = call["input"]
    return (torch.stack(_transformed(Complex(*x.unbind(-1)), x.shape[-2]), dim=-1),)


def _wide(call: Call) -> Outputs:
    x = call["input"]
    parts = (Pair(part, torch.zeros_like(part)) for part in x.unbind(-1))
    return (torch.stack([part.hi for part in _transformed(Complex(*parts), x.shape[-2])], dim=-1),)


def _torch(call: Call) -> Outputs:
    x = torch.view_as_complex(call["input"].contiguous())
    # MKL takes no empty batch.
    return (torch.view_as_real(torch.fft.fft(x) if x.numel() else x),)


def _magnitudes(call: Call) -> Magnitudes:
    """Terms of random phase add up to the root of the sum of their squares, or to the result."""
    x = call["input"]
    # Squares of the largest numbers overflow: their own magnitude goes first.
    peak = torch.abs(x).amax(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    norm = torch.sqrt(((x / peak) ** 2).sum(dim=(-2, -1), keepdim=True)) * peak
    return (torch.maximum(norm, torch.abs(_program(call)[0])),)


def _run(run: Run, x: Tensor, params: Params) -> Tensor:
    """The transform of pairs of float64, as pairs."""
    return run({"input": torch.view_as_complex(x.contiguous())}, params)[0]


def _pairs(inputs: Inputs) -> Tensor:
    return torch.view_as_real(inputs["input"].to(torch.complex128))


def _phases(n: int) -> Tensor:
    """exp(-2 pi i k / n), by torch's own sine and cosine."""
    angles = -2 * math.pi / n * torch.arange(n, dtype=torch.float64)
    return torch.polar(torch.ones_like(angles), angles)


def is_the_defining_sum(run: Run, inputs: Inputs, params: Params) -> bool:
    """Every X[k] is the sum of x[j] exp(-2 pi i j k / n), the exponent reduced modulo n."""
    x = torch.view_as_complex(_pairs(inputs))
    n = x.shape[-1]
    exponent = torch.arange(n)[:, None] * torch.arange(n) % n
    expected = torch.view_as_real(torch.matmul(x, _phases(n)[exponent]))
    return close(_run(run, _pairs(inputs), params), expected, x.abs().sum())


def keeps_the_energy(run: Run, inputs: Inputs, params: Params) -> bool:
    """Parseval: the squares of the transform add up to n times those of the input."""
    x = _pairs(inputs)
    energy = (_run(run, x, params) ** 2).sum(dim=(-2, -1))
    return close(energy, x.shape[-2] * (x**2).sum(dim=(-2, -1)))


def a_delay_turns_the_phases(run: Run, inputs: Inputs, params: Params) -> bool:
    """Delaying the input by one place multiplies X[k] by exp(-2 pi i k / n)."""
    x = _pairs(inputs)
    n = x.shape[-2]
    plain, delayed = (torch.view_as_complex(_run(run, t, params)) for t in (x, x.roll(1, -2)))
    return close(torch.view_as_real(delayed), torch.view_as_real(plain * _phases(n)), x.abs().sum())


def twice_reverses(run: Run, inputs: Inputs, params: Params) -> bool:
    """The transform of the transform is n times the input, read backwards from 0."""
    x = _pairs(inputs)
    twice = _run(run, _run(run, x, params), params)
    return close(twice, x.shape[-2] * x.flip(-2).roll(1, -2), x.shape[-2] * x.abs().sum())


ORACLES = (
    Oracle(
        "FFTC2CFwdOp",
        _program,
        _torch,
        magnitudes=_magnitudes,
        length=lambda call: call["input"].shape[-2],
        properties=(is_the_defining_sum, keeps_the_energy, a_delay_turns_the_phases, twice_reverses),
        wide=_wide,
    ),
)
