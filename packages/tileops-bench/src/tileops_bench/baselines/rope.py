"""Rotary position embedding: no torch function has it, so these are local compositions with precomputed
tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tileops_bench.baselines.base import Baseline, Case, Make


def _tables(length: int, dim: int, base: float, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of position x frequency, float32, each (length, dim / 2)."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim
    angles = torch.arange(length, dtype=torch.float64, device=device)[:, None] * base**-exponents
    return angles.cos().float(), angles.sin().float()


def _rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    pairs = x.float().unflatten(-1, (-1, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def _by_layout(rotate: Callable[..., torch.Tensor]) -> Make:
    """Layout `1d` is (sequence, dim); `2d` is (batch, sequence, heads, dim)."""

    def make(case: Case) -> Callable[..., Any]:
        x = case.inputs["x"]
        length = x.shape[0] if case.params["layout"] == "1d" else x.shape[1]
        cos, sin = _tables(length, x.shape[-1], case.params["base"], x.device)
        if case.params["layout"] != "1d":
            cos, sin = cos[:, None, :], sin[:, None, :]
        return lambda x: rotate(x, cos, sin)

    return make


def _position_ids(case: Case) -> Callable[..., Any]:
    x, params = case.inputs["x"], case.params
    dim = params["rotary_dim"] or x.shape[-1]
    cos, sin = _tables(params["max_position"], dim, params["base"], x.device)

    def call(x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        rows_cos, rows_sin = cos[position_ids][:, None, :], sin[position_ids][:, None, :]
        if dim == x.shape[-1]:
            return _rotate_halves(x, rows_cos, rows_sin)
        return torch.cat((_rotate_halves(x[..., :dim], rows_cos, rows_sin), x[..., dim:]), dim=-1)

    return call


EAGER: dict[str, Make] = {}
LOCAL: dict[str, Make] = {
    "RopeNeoxFwdOp": _by_layout(_rotate_halves),
    "RopeNonNeoxFwdOp": _by_layout(_rotate_pairs),
    "RopeNeoxPositionIdsFwdOp": _position_ids,
}
OTHERS: tuple[Baseline, ...] = ()
