"""Oracles of rotary embeddings with changed frequencies, pairing element i of a head with i + D / 2.

Row s of x [S, D] (layout 1d) or [B, S, H, D] (2d) is turned by the angles s * f_i, f_i made of the plain
theta_i = base^(-2 i / D), which turns L theta_i / (2 pi) times within an original context of L positions:

* Llama 3.1 (arXiv:2407.21783, `llama3` of the models' configurations): theta_i / scale_factor where it turns
  fewer than low_freq_factor times, theta_i where more than high_freq_factor times, between them the mean of
  both, weighted linearly by the turns.
* YaRN (arXiv:2309.00071 and its code): with c(b) the pair index, a real number, that turns b times,
  theta_i up to the pair floor(c(beta_fast)), theta_i / scale from ceil(c(beta_slow)) on, between them
  their mean, weighted linearly by the index; the first end is at least 0, the second at most D - 1, and
  they are 0.001 apart when equal. Rotated pairs are stretched by attn_factor * (0.1 ln scale + 1).
* LongRoPE (arXiv:2402.13753, `longrope` of the models' configurations): theta_i / rescale_factors[i]; pairs
  are stretched by sqrt(1 + ln s / ln L) with s = max_position_embeddings / L, when s > 1.

Frequencies and angles are part of the definition: float64 whatever the compute dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Inputs, Oracle, Params
from tileops_tests.oracles.position import (
    NEOX,
    Rotation,
    by_row,
    frequencies,
    half_turn_opinion,
    rotated,
    rotated_size,
)
from tileops_tests.oracles.properties import Run, close


def _plain(call: Call) -> list[float]:
    width = call["x"].shape[-1]
    return [call.param("base") ** (-2 * i / width) for i in range(width // 2)]


def _by_pairs(call: Call, values: list[float], factor: float = 1.0) -> Rotation:
    made = torch.tensor(values, dtype=torch.float64, device=call["x"].device)
    return by_row(call, made, factor)


def _llama31(call: Call) -> Rotation:
    low, high = call.param("low_freq_factor"), call.param("high_freq_factor")

    def changed(theta: float) -> float:
        turns = call.param("original_max_position") * theta / (2 * math.pi)
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return kept * theta + (1 - kept) * theta / call.param("scale_factor")

    return _by_pairs(call, [changed(theta) for theta in _plain(call)])


def _llama31_as_models_do(call: Call) -> Rotation:
    """By wavelengths, with masks."""
    x, factor = call["x"], call.param("scale_factor")
    low, high = call.param("low_freq_factor"), call.param("high_freq_factor")
    context = call.param("original_max_position")
    plain = frequencies(call.param("base"), x.shape[-1], x.device)
    wavelength = 2 * math.pi / plain
    made = torch.where(wavelength > context / low, plain / factor, plain)
    smooth = (context / wavelength - low) / (high - low)
    between = ~(wavelength < context / high) & ~(wavelength > context / low)
    made = torch.where(between, (1 - smooth) * made / factor + smooth * made, made)
    return by_row(call, made)


def _pair_that_turns(call: Call, times: float) -> float:
    """Index, a real number, of the pair whose frequency turns so many times within the original context."""
    wavelength, width = call.param("original_max_position") / (times * 2 * math.pi), call["x"].shape[-1]
    exponent = math.log(wavelength) if wavelength else -math.inf  # more turns than any pair makes
    return width * exponent / (2 * math.log(call.param("base")))


def _yarn_stretch(call: Call) -> float:
    return call.param("attn_factor") * (0.1 * math.log(call.param("scale")) + 1.0)


def _yarn(call: Call) -> Rotation:
    width = call["x"].shape[-1]
    first = math.floor(max(_pair_that_turns(call, call.param("beta_fast")), 0))
    last = math.ceil(min(_pair_that_turns(call, call.param("beta_slow")), width - 1))
    span = last - first if last != first else 0.001

    def changed(i: int, theta: float) -> float:
        divided = min(max((i - first) / span, 0.0), 1.0)
        return divided * theta / call.param("scale") + (1 - divided) * theta

    return _by_pairs(call, [changed(i, theta) for i, theta in enumerate(_plain(call))], _yarn_stretch(call))


def _yarn_as_models_do(call: Call) -> Rotation:
    """Extrapolated and interpolated frequencies, mixed by a clamped ramp."""
    x, base, context = call["x"], call.param("base"), call.param("original_max_position")
    width = x.shape[-1]
    powers = base ** (torch.arange(0, width, 2, dtype=torch.float64, device=x.device) / width)
    ends = torch.tensor([call.param("beta_fast"), call.param("beta_slow")], dtype=torch.float64)
    found = width * torch.log(context / (ends * 2 * math.pi)) / (2 * math.log(base))
    low, high = found[0].floor().clamp(min=0).item(), found[1].ceil().clamp(max=width - 1).item()
    high = high + 0.001 if low == high else high
    ramp = ((torch.arange(width // 2, dtype=torch.float64, device=x.device) - low) / (high - low)).clamp(0, 1)
    extrapolated, interpolated = 1 / powers, 1 / (call.param("scale") * powers)
    made = interpolated * ramp + extrapolated * (1 - ramp)
    scale = call.param("scale")
    stretch = 1.0 if scale <= 1 else 0.1 * math.log(scale) + 1.0
    return by_row(call, made, stretch * call.param("attn_factor"))


def _long_stretch(call: Call) -> float:
    context = call.param("original_max_position_embeddings")
    scale = call.param("max_position_embeddings") / context
    return math.sqrt(1 + math.log(scale) / math.log(context)) if scale > 1 else 1.0


def _longrope(call: Call) -> Rotation:
    factors = call.given.get("rescale_factors")
    divisors = [1.0] * (call["x"].shape[-1] // 2) if factors is None else factors.tolist()
    changed = [theta / divisor for theta, divisor in zip(_plain(call), divisors, strict=True)]
    return _by_pairs(call, changed, _long_stretch(call))


def _longrope_as_models_do(call: Call) -> Rotation:
    """Powers of the base times the factors, inverted."""
    x, factors = call["x"], call.given.get("rescale_factors")
    width = x.shape[-1]
    powers = call.param("base") ** (torch.arange(0, width, 2, dtype=torch.float64, device=x.device) / width)
    context, extended = (call.param(f"{prefix}max_position_embeddings") for prefix in ("original_", ""))
    made = 1 / (powers if factors is None else factors.to(torch.float64) * powers)
    stretch = 1.0 if extended <= context else (math.log(extended) / math.log(context)) ** 0.5
    return by_row(call, made, stretch)


def stretches_pairs_by(stretch: Callable[[Call], float]) -> Callable[[Run, Inputs, Params], bool]:
    """Every pair keeps its length up to the op's one factor."""

    def stretches_pairs_evenly(run: Run, inputs: Inputs, params: Params) -> bool:
        x = inputs["x"].to(torch.float64).nan_to_num(0, 0, 0).clamp(-1e100, 1e100)
        (y,) = run({**inputs, "x": x}, params)
        before, after = (torch.hypot(*NEOX[0](tensor, x.shape[-1] // 2)) for tensor in (x, y))
        return close(after, before * stretch(Call(inputs, params, torch.float64)))

    return stretches_pairs_evenly


def without(**changes: float) -> Callable[[Run, Inputs, Params], bool]:
    """With these params, and without rescale factors, the rotation is the plain one."""

    def is_plain_without_scaling(run: Run, inputs: Inputs, params: Params) -> bool:
        x = inputs["x"].to(torch.float64)
        given = {**inputs, "x": x, "rescale_factors": None} if "rescale_factors" in inputs else {"x": x}
        call = Call({"x": x}, params, torch.float64)
        plain = by_row(call, frequencies(call.param("base"), x.shape[-1], x.device))
        (turned,) = run(given, {**params, **changes})
        return close(turned, rotated(plain, NEOX), rotated_size(plain, NEOX))

    return is_plain_without_scaling


def _unit(call: Call) -> float:
    return 1.0


def _oracle(
    op: str,
    rotation: Callable[[Call], Rotation],
    opinion: Callable[[Call], Rotation],
    stretch: Callable[[Call], float],
    **unscaled: float,
) -> Oracle:
    def program(call: Call) -> tuple[Tensor]:
        return (rotated(rotation(call), NEOX),)

    return Oracle(
        op,
        program,
        lambda call: (half_turn_opinion(opinion(call), NEOX),),
        magnitudes=lambda call: (rotated_size(rotation(call), NEOX),),
        length=lambda call: 2,
        properties=(stretches_pairs_by(stretch), without(**unscaled)),
    )


ORACLES = (
    _oracle("RopeLlama31FwdOp", _llama31, _llama31_as_models_do, _unit, scale_factor=1.0),
    _oracle("RopeYarnFwdOp", _yarn, _yarn_as_models_do, _yarn_stretch, scale=1.0, attn_factor=1.0),
    _oracle("RopeLongRopeFwdOp", _longrope, _longrope_as_models_do, _long_stretch, max_position_embeddings=1),
)
