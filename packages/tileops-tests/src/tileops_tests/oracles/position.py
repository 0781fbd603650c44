"""Oracles of rotary position embeddings (arXiv:2104.09864).

Pair i of a head is rotated by the angle position * base^(-2 i / rotated), rotated being the number of
elements that take part: (a, b) becomes (a cos - b sin, b cos + a sin). Neox pairs element i with i + rotated
/ 2, the other form pairs 2 i with 2 i + 1. Layout 1d is x [S, D], 2d is x [B, S, H, D], position s in both;
with position_ids x is [T, H, D] and elements from rotary_dim on are copied.

Angles and their sines and cosines are part of the definition, not of the arithmetic on x: they are computed
in float64 whatever the compute dtype, and then rounded to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close


class Rotation(NamedTuple):
    """x and, broadcastable to its leading elements, the angles of its pairs (float64); the factor by which
    the rotated pairs are stretched.
    """

    x: Tensor
    angles: Tensor
    factor: float = 1.0

    @property
    def cos(self) -> Tensor:
        """Stretched cosines, float64."""
        return torch.cos(self.angles) * self.factor

    @property
    def sin(self) -> Tensor:
        """Stretched sines, float64."""
        return torch.sin(self.angles) * self.factor


def frequencies(base: float, rotated: int, device: torch.device) -> Tensor:
    """base^(-2 i / rotated) for each pair i, float64."""
    exponent = torch.arange(0, rotated, 2, dtype=torch.float64, device=device) / rotated
    return torch.pow(torch.tensor(base, dtype=torch.float64, device=device), -exponent)


def by_row(call: Call, frequencies: Tensor, factor: float = 1.0) -> Rotation:
    """Row s of x [S, D] or [B, S, H, D] turned by s times the frequencies [D / 2]."""
    x = call["x"]
    rows = x.shape[0] if call.param("layout") == "1d" else x.shape[1]
    positions = torch.arange(rows, dtype=torch.float64, device=x.device)
    angles = positions[:, None] * frequencies
    return Rotation(x, angles if call.param("layout") == "1d" else angles[:, None, :], factor)


def _by_row(call: Call) -> Rotation:
    x = call["x"]
    return by_row(call, frequencies(call.param("base"), x.shape[-1], x.device))


def _by_id(call: Call) -> Rotation:
    x, rotary_dim = call["x"], call.param("rotary_dim")
    rotated = x.shape[-1] if rotary_dim is None else rotary_dim
    positions = call["position_ids"].to(torch.float64)
    angles = positions[:, None] * frequencies(call.param("base"), rotated, x.device)
    return Rotation(x, angles[:, None, :])


def _halves(x: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    return x[..., :pairs], x[..., pairs : 2 * pairs]


def _neighbours(x: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    return x[..., 0::2], x[..., 1::2]


def _join_halves(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat((first, second), dim=-1)


def _join_neighbours(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack((first, second), dim=-1).flatten(-2)


NEOX = (_halves, _join_halves)
_NON_NEOX = (_neighbours, _join_neighbours)


def rotated(rotation: Rotation, pairing: tuple[Callable, Callable]) -> Tensor:
    """Every pair turned by its angle."""
    x, (split, join) = rotation.x, pairing
    pairs = rotation.angles.shape[-1]
    a, b = split(x, pairs)
    cos, sin = rotation.cos.to(x.dtype), rotation.sin.to(x.dtype)
    turned = join(a * cos - b * sin, b * cos + a * sin)
    return torch.cat((turned, x[..., 2 * pairs :]), dim=-1)


def rotated_size(rotation: Rotation, pairing: tuple[Callable, Callable]) -> Tensor:
    """|a cos| + |b sin| and |b cos| + |a sin|: what each sum adds."""
    x, (split, join) = rotation.x, pairing
    pairs = rotation.angles.shape[-1]
    a, b = (torch.abs(part) for part in split(x, pairs))
    cos, sin = torch.abs(rotation.cos), torch.abs(rotation.sin)
    return torch.cat((join(a * cos + b * sin, b * cos + a * sin), torch.abs(x[..., 2 * pairs :])), dim=-1)


def _complex_opinion(rotation: Rotation, pairing: tuple[Callable, Callable]) -> Tensor:
    """The pair as a complex number, times e^(i angle)."""
    x, angles, (split, join) = rotation.x, rotation.angles, pairing
    pairs = angles.shape[-1]
    turned = torch.complex(*split(x, pairs)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((join(turned.real, turned.imag), x[..., 2 * pairs :]), dim=-1)


def half_turn_opinion(rotation: Rotation, pairing: tuple[Callable, Callable]) -> Tensor:
    """x * cos + (x turned by a quarter) * sin, over whole heads, as model code writes it."""
    x, angles = rotation.x, rotation.angles
    width = 2 * angles.shape[-1]
    head, tail = x[..., :width], x[..., width:]
    quarter = torch.cat((-head[..., width // 2 :], head[..., : width // 2]), dim=-1)
    both = torch.cat((angles, angles), dim=-1)
    turned = head * (both.cos() * rotation.factor) + quarter * (both.sin() * rotation.factor)
    return torch.cat((turned, tail), dim=-1)


def lengths_of_pairs_stay(pairing: tuple[Callable, Callable]) -> Callable[[Run, Inputs, Params], bool]:
    """a^2 + b^2 of every rotated pair stays."""

    def keeps_lengths(run: Run, inputs: Inputs, params: Params) -> bool:
        x = inputs["x"].to(torch.float64).nan_to_num(0, 0, 0).clamp(-1e100, 1e100)
        rotary_dim = params.get("rotary_dim")
        pairs = (x.shape[-1] if rotary_dim is None else rotary_dim) // 2
        (y,) = run({**inputs, "x": x}, params)
        before, after = (torch.hypot(*pairing[0](tensor, pairs)) for tensor in (x, y))
        return close(after, before)

    return keeps_lengths


def position_zero_is_copied(run: Run, inputs: Inputs, params: Params) -> bool:
    """A token at position 0 is not rotated."""
    x = inputs["x"].to(torch.float64).nan_to_num(0, 0, 0)
    ids = torch.zeros_like(inputs["position_ids"])
    return close(run({"x": x, "position_ids": ids}, params)[0], x)


def _oracle(
    op: str,
    rotation: Callable[[Call], Rotation],
    pairing: tuple[Callable, Callable],
    opinion: Callable[[Rotation, tuple[Callable, Callable]], Tensor],
    *properties,
) -> Oracle:
    def program(call: Call) -> Outputs:
        return (rotated(rotation(call), pairing),)

    def magnitudes(call: Call) -> Magnitudes:
        return (rotated_size(rotation(call), pairing),)

    return Oracle(
        op,
        program,
        lambda call: (opinion(rotation(call), pairing),),
        magnitudes=magnitudes,
        length=lambda call: 2,
        properties=(lengths_of_pairs_stay(pairing), *properties),
    )


ORACLES = (
    _oracle("RopeNeoxFwdOp", _by_row, NEOX, half_turn_opinion),
    _oracle("RopeNonNeoxFwdOp", _by_row, _NON_NEOX, _complex_opinion),
    _oracle("RopeNeoxPositionIdsFwdOp", _by_id, NEOX, half_turn_opinion, position_zero_is_copied),
)
