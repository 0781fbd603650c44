"""Oracle of 8-bit quantisation (arXiv:2412.19437, section 3.3).

Each vector (last axis) of x [B, S_kv, G, D] has its own scale.

scale = max(max |x|, 1e-4) / 448, 448 being the greatest float8_e4m3fn; output = x / scale, which the caller
rounds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import fold
from tileops_tests.oracles.base import Call, Inputs, Oracle, Outputs, Params, none_for
from tileops_tests.oracles.properties import Run

_GREATEST = 448.0
_LEAST_MAGNITUDE = 1e-4


def _scales(x: Tensor) -> Tensor:
    greatest = fold(torch.abs(x).movedim(-1, 0), torch.maximum)
    least = torch.full_like(greatest, _LEAST_MAGNITUDE)
    return torch.where(greatest < least, least, greatest) / _GREATEST


def _program(call: Call) -> Outputs:
    x = call["input_tensor"]
    scales = _scales(x)
    return scales, x / scales[..., None]


def _opinion(call: Call) -> Outputs:
    """By the norm of order infinity and the reciprocal of the scale."""
    x = call["input_tensor"]
    scales = torch.linalg.vector_norm(x, ord=float("inf"), dim=-1).clamp(min=_LEAST_MAGNITUDE) / _GREATEST
    return scales, x * scales.reciprocal().unsqueeze(-1)


def fits_the_format_and_restores_x(run: Run, inputs: Inputs, params: Params) -> bool:
    """|output| <= 448 and output * scale = x, for vectors that are finite."""
    x = inputs["input_tensor"].to(torch.float64)
    scales, quotients = (output.to(torch.float64) for output in run(inputs, params))
    finite = x.isfinite().all(dim=-1)
    restored = quotients * scales[..., None]
    within = quotients[finite].abs() <= _GREATEST * (1 + 2.0**-40)
    same = (restored - x)[finite].abs() <= 2.0**-40 * x[finite].abs()
    return bool(within.all() and same.all())


ORACLES = (
    Oracle(
        "FP8QuantFwdOp",
        _program,
        _opinion,
        magnitudes=none_for(2),
        properties=(fits_the_format_and_restores_x,),
    ),
)
