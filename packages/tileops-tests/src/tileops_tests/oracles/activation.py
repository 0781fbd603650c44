"""Oracles of activations: x and the result have one shape; each is written piece by piece.

Sources are the papers that the entries name. A piece that multiplies x by 0 does so, as the formulas do:
the hardswish and the mish of -Inf are NaN.

Source: where an entry names no paper, the documentation of the torch function that it mirrors (`ref_api`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.base import Call
from tileops_tests.oracles.forms import single, unary
from tileops_tests.oracles.properties import is_idempotent, is_monotone

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def _hardswish(x: Tensor) -> Tensor:
    """0 up to -3, x from 3 on, x (x + 3) / 6 between."""
    between = x * ((x + 3) / 6)
    return torch.where(x <= -3, x * 0, torch.where(x >= 3, x, between))


def _hardsigmoid(x: Tensor) -> Tensor:
    """0 up to -3, 1 from 3 on, x / 6 + 1 / 2 between."""
    return torch.where(x <= -3, torch.zeros_like(x), torch.where(x >= 3, torch.ones_like(x), x / 6 + 0.5))


def _mish(x: Tensor) -> Tensor:
    """x tanh(log(1 + e^x)) without the functions: the tangent is n / (n + 2) with n = e^x (e^x + 2).

    For positive x both are divided by e^(2 x), so that nothing overflows.
    """
    e = torch.exp(-torch.abs(x))
    above = (1 + 2 * e) / (1 + 2 * e + 2 * e * e)
    n = e * (e + 2)
    return x * torch.where(x > 0, above, n / (n + 2))


def _elu(x: Tensor, alpha: float) -> Tensor:
    return torch.where(x > 0, x, alpha * torch.expm1(x))


def _softplus(call: Call) -> Tensor:
    """(max(u, 0) + log(1 + e^-|u|)) / beta with u = beta x; x above the threshold."""
    x, beta = call["input"], call.param("beta")
    u = x * beta
    smooth = (torch.where(u < 0, torch.zeros_like(u), u) + torch.log1p(torch.exp(-torch.abs(u)))) / beta
    return torch.where(u > call.param("threshold"), x, smooth)


def _hardtanh(call: Call) -> Tensor:
    x, low, high = call["input"], call.param("min_val"), call.param("max_val")
    x = torch.where(x < low, torch.full_like(x, low), x)
    return torch.where(x > high, torch.full_like(x, high), x)


def _prelu(call: Call) -> Tensor:
    """One slope, or one per channel: axis 1."""
    x, weight = call["input"], call["weight"]
    per_channel = weight.dim() == 1 and x.dim() > 1 and weight.shape[0] == x.shape[1]
    slope = weight.reshape(-1, *(1,) * (x.dim() - 2)) if per_channel else weight.reshape(())
    return torch.where(x > 0, x, slope * x)


ORACLES = (
    unary("HardswishFwdOp", _hardswish, F.hardswish),
    unary("HardsigmoidFwdOp", _hardsigmoid, F.hardsigmoid, is_monotone),
    unary("MishFwdOp", _mish, F.mish),
    unary("SeluFwdOp", lambda x: SELU_SCALE * _elu(x, SELU_ALPHA), F.selu, is_monotone),
    single(
        "EluFwdOp",
        lambda c: _elu(c["input"], c.param("alpha")),
        lambda c: F.elu(c["input"], c.param("alpha")),
        is_monotone,
    ),
    single(
        "SoftplusFwdOp",
        _softplus,
        lambda c: F.softplus(c["input"], c.param("beta"), c.param("threshold")),
        is_monotone,
    ),
    single(
        "HardtanhFwdOp",
        _hardtanh,
        lambda c: F.hardtanh(c["input"], c.param("min_val"), c.param("max_val")),
        is_idempotent,
        is_monotone,
    ),
    single("PreluFwdOp", _prelu, lambda c: F.prelu(c["input"], c["weight"])),
)
