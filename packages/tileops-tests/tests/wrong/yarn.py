"""Frequencies of YaRN: one right implementation, and ones whose ramp ends elsewhere."""

from __future__ import annotations

import math

import torch


def right(x, *, layout, base, scale, original_max_position, beta_fast, beta_slow, attn_factor, last=1.0):
    width = x.shape[-1]
    first, end = (
        width * math.log(original_max_position / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (beta_fast, beta_slow)
    )
    first, end = max(math.floor(first), 0), min(math.ceil(end), int(width * last) - 1)
    pairs = torch.arange(width // 2, dtype=torch.float64)
    ramp = ((pairs - first) / (end - first if end != first else 0.001)).clamp(0, 1)
    theta = base ** (-2 * pairs / width) * (1 - ramp + ramp / scale)
    along = x.shape[0] if layout == "1d" else x.shape[1]
    angle = torch.arange(along)[:, None] * theta
    angle = angle if layout == "1d" else angle[:, None]
    factor = attn_factor * (0.1 * math.log(scale) + 1)
    cos, sin = angle.cos() * factor, angle.sin() * factor
    a, b = x.double().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def ramp_ends_at_the_last_pair(x, **params):
    return right(x, **params, last=0.5)


def ramp_ends_anywhere(x, **params):
    return right(x, **params, last=1000.0)
