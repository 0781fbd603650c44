"""Oracles of ops of several tensors that broadcast together: quotients, powers, interpolation, comparisons,
logic and masks.

* floor_divide floor(a / b); remainder a - b * floor(a / b), which has b's sign.
* pow a ** b; lerp a + weight * (b - a), the weight a number or a tensor.
* ne, gt, ge, le: NaN is unequal to and unordered with all; logical_and, logical_or of "is not 0";
  bitwise_or, bitwise_xor of integers and truth values.
* masked_fill: the value where the mask is true, else x.

Source: the documentation of the torch functions that the entries mirror (`ref_api`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Magnitudes
from tileops_tests.oracles.forms import binary, single
from tileops_tests.oracles.properties import agrees_with_itself_swapped, is_asymmetric


def _remainder(x: Tensor, y: Tensor) -> Tensor:
    """What the truncated division leaves, moved to the divisor's side of 0."""
    rest = torch.fmod(x, y)
    return torch.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


def _pow(x: Tensor, y: Tensor) -> Tensor:
    """2^(y log2 |x|), with the sign of x where y is odd; NaN for negative x where y has a fraction.

    x^0 and 1^y are 1 whatever the other is, and so is (-1)^Inf (IEEE 754).
    """
    magnitude = torch.exp2(y * torch.log2(torch.abs(x)))
    one = (y == 0) | (x == 1) | ((x == -1) & (torch.abs(y) == math.inf))
    magnitude = torch.where(one, torch.ones_like(magnitude), magnitude)
    odd = torch.abs(torch.fmod(y, 2)) == 1
    broken = torch.fmod(y, 1) != 0
    signed = torch.where(torch.signbit(x) & odd, -magnitude, magnitude)
    undefined = (x < 0) & (x > -math.inf) & broken & (torch.abs(y) < math.inf)
    return torch.where(undefined, torch.full_like(signed, math.nan), signed)


def _weight(call: Call) -> Tensor:
    """The weight: a tensor of its own, or the param."""
    weight = call.get("weight")
    return torch.full((), call.param("weight"), dtype=call.dtype) if weight is None else weight


def _lerp(call: Call) -> Tensor:
    """From the nearer end."""
    x, y, w = call["input"], call["end"], _weight(call)
    return torch.where(torch.abs(w) < 0.5, x + w * (y - x), y - (y - x) * (1 - w))


def _lerp_terms(call: Call) -> Magnitudes:
    x, y, w = torch.abs(call["input"]), torch.abs(call["end"]), _weight(call)
    return (torch.where(torch.abs(w) < 0.5, x + torch.abs(w) * (x + y), y + torch.abs(1 - w) * (x + y)),)


def _masked_fill(call: Call) -> Tensor:
    x, value = call["input"], call.get("value")
    fill = torch.full((), call.param("value"), dtype=x.dtype) if value is None else value
    return torch.where(call["mask"], fill, x)


def _or(x: Tensor, y: Tensor) -> Tensor:
    """By De Morgan's law."""
    return torch.bitwise_not(torch.bitwise_and(torch.bitwise_not(x), torch.bitwise_not(y)))


def _xor(x: Tensor, y: Tensor) -> Tensor:
    """What one has and not both."""
    return torch.bitwise_and(torch.bitwise_or(x, y), torch.bitwise_not(torch.bitwise_and(x, y)))


ORACLES = (
    binary("RemainderFwdOp", _remainder, torch.remainder),
    binary("PowFwdOp", _pow, torch.pow, other="exponent"),
    single(
        "LerpFwdOp",
        _lerp,
        lambda c: torch.lerp(c["input"], c["end"], c.param("weight")),
        magnitudes=_lerp_terms,
    ),
    single(
        "LerpTensorFwdOp",
        _lerp,
        lambda c: torch.lerp(c["input"], c["end"], c["weight"]),
        magnitudes=_lerp_terms,
    ),
    binary("NeFwdOp", lambda x, y: ~((x <= y) & (x >= y)), torch.ne, agrees_with_itself_swapped),
    binary("GtFwdOp", lambda x, y: y < x, torch.gt, is_asymmetric),
    binary("GeFwdOp", lambda x, y: (x > y) | (x == y), torch.ge),
    binary("LeFwdOp", lambda x, y: (x < y) | (x == y), torch.le),
    binary(
        "LogicalAndFwdOp", lambda x, y: (x != 0) & (y != 0), torch.logical_and, agrees_with_itself_swapped
    ),
    binary(
        "LogicalOrFwdOp", lambda x, y: ~((x == 0) & (y == 0)), torch.logical_or, agrees_with_itself_swapped
    ),
    binary("BitwiseOrFwdOp", _or, torch.bitwise_or, agrees_with_itself_swapped),
    binary("BitwiseXorFwdOp", _xor, torch.bitwise_xor, agrees_with_itself_swapped),
    single("MaskedFillFwdOp", _masked_fill, lambda c: c["input"].masked_fill(c["mask"], c["value"])),
    single(
        "MaskedFillScalarFwdOp", _masked_fill, lambda c: c["input"].masked_fill(c["mask"], c.param("value"))
    ),
)
