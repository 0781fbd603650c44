"""Oracles of elementwise ops: one line of definition each.

A function that torch has under the op's own name is written by another identity, so that oracle and
`ref_api` can disagree: exp as a power of two, tanh by expm1, sine and cosine by the tangent of half the
angle, erf by its Taylor series and its complement. Sums, products and quotients are what they are.

Source: the documentation of the torch functions that the entries mirror (`ref_api`).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.base import Call, Magnitudes
from tileops_tests.oracles.forms import binary, single, unary
from tileops_tests.oracles.properties import (
    agrees_with_itself_swapped,
    is_even,
    is_idempotent,
    is_involution,
    is_monotone,
    is_odd,
)

_ERF_TERMS = 26


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), as one quotient."""
    return x / (1 + torch.exp(-x))


def gelu(x: Tensor) -> Tensor:
    """x * Phi(x), with Phi(x) = erfc(-x / sqrt 2) / 2, which does not cancel for negative x."""
    return 0.5 * x * torch.special.erfc(x * -math.sqrt(0.5))


def gelu_tanh(x: Tensor) -> Tensor:
    """x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) * (x + 0.044715 x^3); (1 + tanh u) / 2 is sigmoid(2 u)."""
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return x / (1 + torch.exp(-2 * u))


def _exp(x: Tensor) -> Tensor:
    return torch.exp2(x * (1 / math.log(2)))


def _log(x: Tensor) -> Tensor:
    return torch.log2(x) * math.log(2)


def _expm1(x: Tensor) -> Tensor:
    """2 sinh(x / 2) exp(x / 2), which does not cancel; from 1 on neither does exp(x) - 1."""
    half = torch.where(torch.abs(x) < 1, x, torch.zeros_like(x)) * 0.5
    return torch.where(torch.abs(x) < 1, 2 * torch.sinh(half) * torch.exp(half), torch.exp(x) - 1)


def _log1p(x: Tensor) -> Tensor:
    """2 artanh(x / (2 + x)) near 0, where 1 + x would round x away."""
    small = torch.where(torch.abs(x) < 0.5, x, torch.zeros_like(x))
    return torch.where(torch.abs(x) < 0.5, 2 * torch.atanh(small / (2 + small)), torch.log(1 + x))


def _sqrt(x: Tensor) -> Tensor:
    """x / sqrt(x) by the reciprocal root; 0 and +Inf, where that is 0 * Inf, are their own roots."""
    return torch.where((x == 0) | (x == math.inf), x, x * torch.rsqrt(x))


def _tanh(x: Tensor) -> Tensor:
    """(1 - e) / (1 + e) with e = exp(-2 |x|), by expm1: accurate near 0."""
    minus = torch.expm1(-2 * torch.abs(x))
    magnitude = -minus / (2 + minus)
    return torch.where(x == 0, x, torch.where(x < 0, -magnitude, magnitude))


def _erf(x: Tensor) -> Tensor:
    """Taylor series below 1, complement above."""
    small = torch.where(torch.abs(x) < 1, x, torch.zeros_like(x))
    square, power, series = small * small, small, small
    for n in range(1, _ERF_TERMS):
        power = power * square * (-1.0 / n)
        series = series + power * (1.0 / (2 * n + 1))
    outside = 1 - torch.special.erfc(torch.abs(x))
    outside = torch.where(x < 0, -outside, outside)
    return torch.where(torch.abs(x) < 1, series * (2 / math.sqrt(math.pi)), outside)


def _sin(x: Tensor) -> Tensor:
    """2 t / (1 + t^2) with t = tan(x / 2)."""
    t = torch.tan(x * 0.5)
    return torch.where(x == 0, x, 2 * (t / (1 + t * t)))


def _cos(x: Tensor) -> Tensor:
    """(1 - t) (1 + t) / (1 + t^2) with t = tan(x / 2)."""
    t = torch.tan(x * 0.5)
    return (1 - t) * (1 + t) / (1 + t * t)


def _floor(x: Tensor) -> Tensor:
    if not x.is_floating_point():
        return x.clone()
    whole = torch.trunc(x)
    return torch.where(whole > x, whole - 1, whole)


def _bitwise_not(x: Tensor) -> Tensor:
    """The complement: 2^bits - 1 - x for unsigned numbers, -1 - x for signed ones."""
    if x.dtype == torch.bool:
        return x == False  # noqa: E712
    return torch.iinfo(x.dtype).max - x if torch.iinfo(x.dtype).min == 0 else -1 - x


def _clamp(call: Call) -> Tensor:
    x, low, high = call["input"], call.param("min"), call.param("max")
    # A bound that is NaN is kept by nothing, an element that is NaN stays.
    if low is not None:
        x = torch.where((x >= low) | (x != x), x, low)
    if high is not None:
        x = torch.where((x <= high) | (x != x), x, high)
    return x


def _clamp_to_tensors(call: Call) -> Tensor:
    x, low, high = call["input"], call.get("min"), call.get("max")
    x = x if low is None else _greater(x, low)
    return x if high is None else _lesser(x, high)


def _leaky_relu(call: Call) -> Tensor:
    x = call["input"]
    return torch.where(x > 0, x, x * call.param("negative_slope"))


def _add(call: Call, sign: int) -> Tensor:
    x, y, alpha = call["input"], call["other"], call.param("alpha")
    if x.dtype == torch.bool:
        return x | (y & bool(alpha))
    return x + y * (sign * alpha)


def _mul(call: Call) -> Tensor:
    x, y = call["input"], call["other"]
    return x & y if x.dtype == torch.bool else x * y


def _floor_quotient(x: Tensor, y: Tensor) -> Tensor:
    """The greatest integer not above x / y, from the exact remainder; a zero has the sign of x / y."""
    quotient = x / y
    rest = torch.fmod(x, y)
    whole = (x - rest) / y
    whole = torch.where((rest != 0) & ((rest < 0) != (y < 0)), whole - 1, whole)
    nearest = _floor(whole + 0.5)
    signed_zero = torch.copysign(torch.zeros_like(quotient), quotient)
    return torch.where(y == 0, quotient, torch.where(whole == 0, signed_zero, nearest))


def _div(call: Call) -> Tensor:
    """The quotient; rounded towards zero, or (as Python's floor division) down, with the sign of 0 of x /
    y.
    """
    x, y, mode = call["input"], call["other"], call.param("rounding_mode")
    quotient = x / y
    if mode is None:
        return quotient
    if mode == "trunc":
        return torch.trunc(quotient)
    return _floor_quotient(x, y)


def _select(call: Call) -> Tensor:
    shape = torch.broadcast_shapes(*(call[name].shape for name in ("condition", "input", "other")))
    condition, chosen, out = (call[name].expand(shape) for name in ("condition", "input", "other"))
    out = out.clone()
    out[condition] = chosen[condition]
    return out


def _greater(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x > y) | (x != x), x, torch.where(y != y, y, torch.where(x > y, x, y)))


def _lesser(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x < y) | (x != x), x, torch.where(y != y, y, torch.where(x < y, x, y)))


def _bitwise_and(x: Tensor, y: Tensor) -> Tensor:
    """By De Morgan's law."""
    return torch.bitwise_not(torch.bitwise_or(torch.bitwise_not(x), torch.bitwise_not(y)))


def _terms(call: Call) -> Magnitudes:
    """|input| + |alpha * other|: what a sum that cancels had to add."""
    x, y = call["input"], call["other"]
    if not x.is_floating_point():
        return (None,)
    return (torch.abs(x) + torch.abs(y * call.param("alpha")),)


def _in_float(call: Call) -> Tensor:
    """`input`, integers converted: the quotient of integers is a float."""
    return call["input"].to(call.dtype)


def _reciprocal(call: Call) -> Tensor:
    """The quotient of two tensors: `1 / x` would be torch's reciprocal."""
    x = _in_float(call)
    return torch.ones_like(x) / x


_UNARY = (
    unary("ReluFwdOp", lambda x: torch.where(x <= 0, torch.zeros_like(x), x), F.relu, is_idempotent),
    unary("SiluFwdOp", silu, F.silu),
    unary("ExpFwdOp", _exp, torch.exp, is_monotone),
    unary("LogFwdOp", _log, torch.log),
    unary("Expm1FwdOp", _expm1, torch.expm1, is_monotone),
    unary("Log1pFwdOp", _log1p, torch.log1p, is_monotone),
    unary("SqrtFwdOp", _sqrt, torch.sqrt),
    unary("RsqrtFwdOp", lambda x: 1 / torch.sqrt(x), torch.rsqrt),
    unary("AbsFwdOp", lambda x: torch.where(x < 0, -x, x) + 0, torch.abs, is_idempotent),
    unary("NegFwdOp", lambda x: x * -1, torch.neg, is_involution),
    unary("SigmoidFwdOp", sigmoid, torch.sigmoid, is_monotone),
    unary("TanhFwdOp", _tanh, torch.tanh, is_odd, is_monotone),
    unary("ErfFwdOp", _erf, torch.erf, is_odd, is_monotone),
    unary("FloorFwdOp", _floor, torch.floor, is_idempotent),
    unary("SinFwdOp", _sin, torch.sin, is_odd),
    unary("CosFwdOp", _cos, torch.cos, is_even),
    unary("IsnanFwdOp", lambda x: x != x, torch.isnan),
    unary("LogicalNotFwdOp", lambda x: x == 0, torch.logical_not),
    unary("BitwiseNotFwdOp", _bitwise_not, torch.bitwise_not, is_involution),
    single("ReciprocalFwdOp", _reciprocal, lambda c: torch.reciprocal(_in_float(c))),
    single(
        "GeluFwdOp",
        lambda c: gelu(c["input"]) if c.param("approximate") == "none" else gelu_tanh(c["input"]),
        lambda c: F.gelu(c["input"], approximate=c.param("approximate")),
        magnitudes=lambda c: (torch.abs(c["input"]),),  # x / 2 + x / 2 * erf(...), which cancel below zero
    ),
    single("LeakyReluFwdOp", _leaky_relu, lambda c: F.leaky_relu(c["input"], c.param("negative_slope"))),
    single(
        "ClampScalarFwdOp",
        _clamp,
        lambda c: torch.clamp(c["input"], min=c.param("min"), max=c.param("max")),
        is_idempotent,
    ),
    single(
        "ClampFwdOp",
        _clamp_to_tensors,
        lambda c: torch.clamp(c["input"], min=c.get("min"), max=c.get("max")),
        is_idempotent,
    ),
)

_BINARY = (
    single(
        "AddFwdOp",
        lambda c: _add(c, 1),
        lambda c: torch.add(c["input"], c["other"], alpha=c.param("alpha")),
        magnitudes=_terms,
    ),
    single(
        "SubFwdOp",
        lambda c: _add(c, -1),
        lambda c: torch.sub(c["input"], c["other"], alpha=c.param("alpha")),
        magnitudes=_terms,
    ),
    single("MulFwdOp", _mul, lambda c: torch.mul(c["input"], c["other"]), agrees_with_itself_swapped),
    single(
        "DivFwdOp",
        _div,
        lambda c: torch.div(c["input"], c["other"], rounding_mode=c.param("rounding_mode")),
    ),
    binary("FloorDivideFwdOp", _floor_quotient, torch.floor_divide),
    binary("MaximumFwdOp", _greater, torch.maximum, agrees_with_itself_swapped),
    binary("MinimumFwdOp", _lesser, torch.minimum, agrees_with_itself_swapped),
    binary("EqFwdOp", lambda x, y: (x <= y) & (x >= y), torch.eq, agrees_with_itself_swapped),
    binary("LtFwdOp", lambda x, y: y > x, torch.lt),
    binary("BitwiseAndFwdOp", _bitwise_and, torch.bitwise_and, agrees_with_itself_swapped),
    single("WhereFwdOp", _select, lambda c: torch.where(c["condition"], c["input"], c["other"])),
)

ORACLES = (*_UNARY, *_BINARY)
