"""Oracles of tables of positions: ops without inputs, whose params say the sizes and the dtype.

ALiBi (arXiv:2108.12409): [heads, queries, keys]; head h of H, counted from 1, adds -|i - j| 2^(-8 h / H) to
the score of query i and key j. The paper names the slopes of powers of two; its formula holds for any H.
Sinusoidal (arXiv:1706.03762): [positions, columns]; sine and cosine of s 10000^(-2 k / D) take turns. As with
rotary embeddings angles are part of the definition: float64 whatever the compute dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Magnitudes
from tileops_tests.oracles.forms import single
from tileops_tests.oracles.properties import Inputs, Params, Run, close

_BASE = 10000.0


def _alibi(call: Call) -> Tensor:
    heads, length = call.param("num_heads"), call.param("seq_len")
    slopes = torch.exp2(-8 * torch.arange(1, heads + 1).to(call.dtype) / heads)
    place = torch.arange(length)
    distance = torch.abs(place[:, None] - place).to(call.dtype)
    return -(slopes[:, None, None] * distance)


def _alibi_by_steps(call: Call) -> Tensor:
    """Slopes as running products of the first one; a bias as the sum of the steps between the two places."""
    heads, length = call.param("num_heads"), call.param("seq_len")
    slopes = torch.full((heads,), 2.0 ** (-8 / heads), dtype=call.dtype).cumprod(0)
    behind = torch.ones(length, length, dtype=call.dtype).triu(1).cumsum(1)
    return (behind + behind.T) * -slopes[:, None, None]


def _angles(call: Call, exponent: Tensor) -> Tensor:
    place = torch.arange(call.param("seq_len"), dtype=torch.float64)
    return place[:, None] * torch.pow(torch.tensor(_BASE, dtype=torch.float64), -exponent)


def _sinusoidal(call: Call) -> Tensor:
    columns = call.param("d_model")
    angles = _angles(call, torch.arange(0, columns, 2, dtype=torch.float64) / columns)
    return torch.stack((torch.sin(angles), torch.cos(angles)), dim=-1).flatten(-2).to(call.dtype)


def _sinusoidal_by_turning(call: Call) -> Tensor:
    """Row s is row s - 1 turned by each column pair's angle: powers of a complex number."""
    length, columns = call.param("seq_len"), call.param("d_model")
    turns = torch.exp(
        -torch.log(torch.tensor(_BASE, dtype=call.dtype)) * torch.arange(0, columns, 2) / columns
    )
    one = torch.ones_like(turns)
    step = torch.polar(one, turns).expand(length - 1, -1)
    powers = torch.cat((torch.polar(one, torch.zeros_like(turns))[None], step)).cumprod(0)
    return torch.stack((powers.imag, powers.real), dim=-1).flatten(-2)


def _unit(call: Call) -> Magnitudes:
    """A sine near 0 comes from an angle of any size."""
    return (torch.ones((), dtype=call.dtype),)


def falls_with_the_distance(run: Run, inputs: Inputs, params: Params) -> bool:
    """0 on the diagonal, symmetric, and one step further costs each head the same."""
    (bias,) = run(inputs, params)
    steps = bias[:, 0].diff(dim=-1)
    return (
        bool((bias.diagonal(dim1=1, dim2=2) == 0).all())
        and close(bias, bias.transpose(1, 2))
        and (steps.shape[1] == 0 or close(steps, steps[:, :1].expand_as(steps)))
    )


def squares_sum_to_one(run: Run, inputs: Inputs, params: Params) -> bool:
    """sin^2 + cos^2 = 1 in each pair of columns; row 0 is 0, 1, 0, 1, ..."""
    (table,) = run(inputs, params)
    pairs = table.reshape(table.shape[0], -1, 2)
    start = torch.tensor([0.0, 1.0], dtype=table.dtype).expand_as(pairs[0])
    lengths = (pairs * pairs).sum(-1)
    return close(lengths, torch.ones_like(lengths)) and torch.equal(pairs[0], start)


ORACLES = (
    single("AlibiFwdOp", _alibi, _alibi_by_steps, falls_with_the_distance),
    single("SinusoidalFwdOp", _sinusoidal, _sinusoidal_by_turning, squares_sum_to_one, magnitudes=_unit),
)
