"""Oracles of gated activations: x [M, 2 N] holds gate and up side by side, the output is activation(gate) *
up [M, N].

Source: Shazeer, "GLU variants improve transformer", arXiv:2002.05202.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params, no_magnitudes
from tileops_tests.oracles.elementwise import gelu, gelu_tanh, silu
from tileops_tests.oracles.properties import Run, close, doubled

Activation = Callable[[Tensor], Tensor]


def _gated(call: Call, activation: Activation) -> Outputs:
    x = call["x"]
    width = x.shape[-1] // 2
    return (activation(x[..., :width]) * x[..., width:],)


def _both_halves(call: Call) -> Magnitudes:
    """|gate| |up|: GELU adds gate / 2 and gate / 2 * erf(...), which cancel below zero."""
    gate, up = call["x"].chunk(2, dim=-1)
    return (torch.abs(gate) * torch.abs(up),)


def _opinion(call: Call, activation: Activation) -> Outputs:
    gate, up = call["x"].chunk(2, dim=-1)
    return (activation(gate).mul(up),)


def is_linear_in_up(run: Run, inputs: Inputs, params: Params) -> bool:
    """Doubling the right half doubles the output."""
    gate, up = inputs["x"].to(torch.float64).chunk(2, dim=-1)
    changed = {"x": torch.cat((gate, doubled(up)), dim=-1)}
    return close(run(changed, params)[0], run(inputs, params)[0] * 2)


def _oracle(
    op: str,
    activation: Activation,
    opinion: Activation,
    magnitudes: Callable[[Call], Magnitudes] = no_magnitudes,
) -> Oracle:
    return Oracle(
        op,
        partial(_gated, activation=activation),
        partial(_opinion, activation=opinion),
        magnitudes=magnitudes,
        properties=(is_linear_in_up,),
    )


ORACLES = (
    _oracle("SiluAndMulFwdOp", silu, F.silu),
    _oracle("GeluAndMulFwdOp", gelu, F.gelu, _both_halves),
    _oracle("GeluTanhAndMulFwdOp", gelu_tanh, partial(F.gelu, approximate="tanh"), _both_halves),
)
