"""Replacing NaN and infinities: one right implementation, and one for each param that ignores it."""

from __future__ import annotations

import torch


def right(input, *, nan=0.0, posinf=None, neginf=None):
    return torch.nan_to_num(input, nan, posinf, neginf).contiguous()


def ignores_nan(input, *, nan=0.0, posinf=None, neginf=None):
    return right(input, posinf=posinf, neginf=neginf)


def ignores_posinf(input, *, nan=0.0, posinf=None, neginf=None):
    return right(input, nan=nan, neginf=neginf)


def ignores_neginf(input, *, nan=0.0, posinf=None, neginf=None):
    return right(input, nan=nan, posinf=posinf)
