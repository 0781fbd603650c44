"""Rotary position embedding: no torch function has it, so these are local compositions with precomputed
tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tileops_bench.baselines.base import Baseline, Case, Make


def _frequencies(dim: int, base: float, device: Any) -> torch.Tensor:
    """Radians per position of each pair, float64."""
    return base ** -(torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)


def _turns(length: int, frequencies: torch.Tensor, stretch: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of position x frequency, float32, each (length, dim / 2)."""
    places = torch.arange(length, dtype=torch.float64, device=frequencies.device)
    angles = places[:, None] * frequencies
    return (angles.cos() * stretch).float(), (angles.sin() * stretch).float()


def _tables(length: int, dim: int, base: float, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return _turns(length, _frequencies(dim, base, device))


def _rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    pairs = x.float().unflatten(-1, (-1, 2))
    even, odd = pairs[..., 0], pairs[..., 1]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)


def _length(case: Case) -> int:
    return case.inputs["x"].shape[0 if case.params["layout"] == "1d" else 1]


def _placed(case: Case, *tables: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tables (length, dim / 2) so that they stand beside x: heads lie between where there are some."""
    return tables if case.params["layout"] == "1d" else tuple(table[:, None, :] for table in tables)


def _by_layout(rotate: Callable[..., torch.Tensor]) -> Make:
    """Layout `1d` is (sequence, dim); `2d` is (batch, sequence, heads, dim)."""

    def make(case: Case) -> Callable[..., Any]:
        x = case.inputs["x"]
        cos, sin = _placed(case, *_tables(_length(case), x.shape[-1], case.params["base"], x.device))
        return lambda x: rotate(x, cos, sin)

    return make


def _llama31(params: Mapping[str, Any], plain: torch.Tensor) -> tuple[torch.Tensor, float]:
    turns = params["original_max_position"] * plain / (2 * math.pi)
    low, high = params["low_freq_factor"], params["high_freq_factor"]
    return torch.lerp(plain / params["scale_factor"], plain, ((turns - low) / (high - low)).clamp(0, 1)), 1.0


def _yarn(params: Mapping[str, Any], plain: torch.Tensor) -> tuple[torch.Tensor, float]:
    pairs, base, scale = plain.shape[0], params["base"], params["scale"]
    low, high = (
        pairs * math.log(params["original_max_position"] / (2 * math.pi * params[turns])) / math.log(base)
        for turns in ("beta_fast", "beta_slow")
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), 2 * pairs - 1)
    index = torch.arange(pairs, dtype=torch.float64, device=plain.device)
    ramp = ((index - low) / ((high - low) or 0.001)).clamp(0, 1)
    stretch = 0.1 * math.log(scale) + 1 if scale > 1 else 1.0
    return torch.lerp(plain, plain / scale, ramp), stretch * params["attn_factor"]


def _longrope_stretch(params: Mapping[str, Any]) -> float:
    context = params["original_max_position_embeddings"]
    scale = params["max_position_embeddings"] / context
    return math.sqrt(1 + math.log(scale) / math.log(context)) if scale > 1 else 1.0


def _with_rule(rule: Callable[..., tuple[torch.Tensor, float]]) -> Make:
    """Frequencies are made from the params, outside the timed call."""

    def make(case: Case) -> Callable[..., Any]:
        x = case.inputs["x"]
        frequencies, stretch = rule(case.params, _frequencies(x.shape[-1], case.params["base"], x.device))
        cos, sin = _placed(case, *_turns(_length(case), frequencies, stretch))
        return lambda x: _rotate_halves(x, cos, sin)

    return make


def _longrope(case: Case) -> Callable[..., Any]:
    """Rescale factors are an input: the tables are part of the call where there are some."""
    x, length, stretch = case.inputs["x"], _length(case), _longrope_stretch(case.params)
    plain = _frequencies(x.shape[-1], case.params["base"], x.device)

    def call(x: torch.Tensor, rescale_factors: torch.Tensor | None = None) -> torch.Tensor:
        frequencies = plain if rescale_factors is None else plain / rescale_factors
        return _rotate_halves(x, *_placed(case, *_turns(length, frequencies, stretch)))

    return call


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
    "RopeLlama31FwdOp": _with_rule(_llama31),
    "RopeYarnFwdOp": _with_rule(_yarn),
    "RopeLongRopeFwdOp": _longrope,
}
OTHERS: tuple[Baseline, ...] = ()
