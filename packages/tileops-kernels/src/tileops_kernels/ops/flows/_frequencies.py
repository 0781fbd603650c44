"""Frequencies of rotary embeddings, and the rules that change them for contexts longer than those trained on.

Every rule starts from the plain frequencies `base^(-2 i / rotary_dim)`, in radians per position, and works in
float64 on the host, once per plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor, inf, log, pi, sqrt
from typing import Any

__all__ = ["LLAMA31", "LONGROPE", "PLAIN", "YARN", "Rule"]

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        frequencies: `(params, rotary_dim)` -> one frequency per pair.
        stretch: `(params)` -> factor of cosines and sines.
    """

    frequencies: Callable[[Params, int], list[float]]
    stretch: Callable[[Params], float] = lambda params: 1.0


def _plain(params: Params, rotary_dim: int) -> list[float]:
    return [float(params["base"]) ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)]


def _ramp(value: float, start: float, end: float) -> float:
    """0 up to `start`, 1 from `end` on, linear between.

    >>> _ramp(0, 1, 3), _ramp(2, 1, 3), _ramp(9, 1, 3)
    (0.0, 0.5, 1.0)
    """
    return min(max((value - start) / (end - start), 0.0), 1.0)


def _llama31(params: Params, rotary_dim: int) -> list[float]:
    """Frequencies that turn rarely within the original context are divided, those that turn often are
    kept."""

    def changed(frequency: float) -> float:
        turns = params["original_max_position"] * frequency / (2 * pi)
        kept = _ramp(turns, params["low_freq_factor"], params["high_freq_factor"])
        return frequency * (kept + (1 - kept) / params["scale_factor"])

    return [changed(frequency) for frequency in _plain(params, rotary_dim)]


def _yarn(params: Params, rotary_dim: int) -> list[float]:
    """As Llama 3.1, but the mixture is linear in the pair's index."""

    def pair_turning(times: float) -> float:
        wavelength = params["original_max_position"] / (2 * pi * times)
        exponent = log(wavelength) if wavelength else -inf
        return rotary_dim * exponent / (2 * log(params["base"]))

    # Bounded before they are rounded: a pair may be infinitely far.
    first = floor(max(pair_turning(params["beta_fast"]), 0))
    last = ceil(min(pair_turning(params["beta_slow"]), rotary_dim - 1))
    # The code of the paper: a ramp between equal ends is this steep.
    end = first + 0.001 if first == last else last

    def changed(i: int, frequency: float) -> float:
        divided = _ramp(i, first, end)
        return frequency * (1 - divided + divided / params["scale"])

    return [changed(i, frequency) for i, frequency in enumerate(_plain(params, rotary_dim))]


def _yarn_stretch(params: Params) -> float:
    return (0.1 * log(params["scale"]) + 1) * params["attn_factor"]


def _longrope_stretch(params: Params) -> float:
    context = params["original_max_position_embeddings"]
    scale = params["max_position_embeddings"] / context
    return sqrt(1 + log(scale) / log(context)) if scale > 1 else 1.0


PLAIN = Rule(_plain)
LLAMA31 = Rule(_llama31)
YARN = Rule(_yarn, _yarn_stretch)
# Its divisors are an input: the program divides.
LONGROPE = Rule(_plain, _longrope_stretch)
