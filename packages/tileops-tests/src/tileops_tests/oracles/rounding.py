"""Oracles of ops that make numbers whole or classify them: any shape, one element at a time.

Integers are whole, finite numbers already. NaN stays NaN, but has the sign 0.

* ceil, trunc; round to the nearest, ties to the even one, at a number of decimals.
* sign: -1, 0 or 1; isinf, isfinite; nan_to_num: numbers in place of NaN and the infinities.

Source: the documentation of the torch functions that the entries mirror (`ref_api`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call
from tileops_tests.oracles.forms import single, unary
from tileops_tests.oracles.properties import is_idempotent, is_odd


def _of_floats(rounded: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: rounded(x) if x.is_floating_point() else x.clone()


def _ceil(x: Tensor) -> Tensor:
    return -torch.floor(-x)


def _trunc(x: Tensor) -> Tensor:
    """The floor of the magnitude, with the sign of x."""
    return torch.where(x < 0, -torch.floor(-x), torch.floor(x))


def _half_to_even(x: Tensor) -> Tensor:
    whole = torch.floor(x)
    rest = x - whole
    odd = torch.abs(torch.fmod(whole, 2)) == 1
    up = (rest > 0.5) | ((rest == 0.5) & odd)
    return torch.copysign(whole + up.to(x.dtype), x)


def _round(call: Call) -> Tensor:
    x, decimals = call["input"], call.param("decimals")
    if not x.is_floating_point():
        return x.clone()
    power = 10.0 ** abs(decimals)
    return _half_to_even(x * power) / power if decimals >= 0 else _half_to_even(x / power) * power


def _torch_round(call: Call) -> Tensor:
    """torch rounds no integers."""
    x = call["input"]
    return torch.round(x, decimals=call.param("decimals")) if x.is_floating_point() else x.clone()


def _sign(x: Tensor) -> Tensor:
    """How often x lies above 0, less how often below."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


def _is_infinite(x: Tensor) -> Tensor:
    return (x == math.inf) | (x == -math.inf)


def _nan_to_num(call: Call) -> Tensor:
    x = call["input"]
    greatest = torch.finfo(call.given["input"].dtype).max
    above, below = call.param("posinf"), call.param("neginf")
    for special, value in (
        (x != x, call.param("nan")),
        (x == math.inf, greatest if above is None else above),
        (x == -math.inf, -greatest if below is None else below),
    ):
        x = torch.where(special, torch.ones_like(x) * value, x)
    return x


def _torch_nan_to_num(call: Call) -> Tensor:
    """torch.nan_to_num of the input in its own dtype: the greatest number is that of the dtype."""
    replaced = torch.nan_to_num(
        call.given["input"], call.param("nan"), call.param("posinf"), call.param("neginf")
    )
    return replaced.to(call.dtype)


ORACLES = (
    unary("CeilFwdOp", _of_floats(_ceil), torch.ceil, is_idempotent),
    unary("TruncFwdOp", _of_floats(_trunc), torch.trunc, is_idempotent, is_odd),
    single("RoundFwdOp", _round, _torch_round, is_idempotent),
    replace(unary("SignFwdOp", _sign, torch.sign, is_idempotent), rounds=False),
    unary("IsinfFwdOp", _is_infinite, torch.isinf),
    unary("IsfiniteFwdOp", lambda x: (x == x) & ~_is_infinite(x), torch.isfinite),
    single("NanToNumFwdOp", _nan_to_num, _torch_nan_to_num, is_idempotent),
)
