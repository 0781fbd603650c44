"""Ops that subtract a mean, and over which elements they take it: where `shifted` values lie far from 0.

A variance computed as E[x^2] - E[x]^2 is right on values around 0 and loses all its digits on these. Each
group of elements that share a mean gets another one, so that no single shift of the whole input helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from tileops_manifest import Binding

Groups = Callable[[Binding], tuple[tuple[int, ...], tuple[int, ...]]]


class Centred(NamedTuple):
    """The input that a mean is subtracted from. `groups` gives the shape that it is seen in, and the axes of
    that over which the mean goes.
    """

    input: str
    groups: Groups


def _reduced(binding: Binding) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = binding.inputs["x"].shape
    return shape, binding.eval("axes(dim, rank(x))")


def _trailing(binding: Binding) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = binding.inputs["x"].shape
    trailing = len(binding.packs.get("norm", (0,)))
    return shape, tuple(range(len(shape) - trailing, len(shape)))


def _channel_groups(binding: Binding) -> tuple[tuple[int, ...], tuple[int, ...]]:
    batch, channels, *spatial = binding.inputs["x"].shape
    groups = binding.params["num_groups"]
    return (batch * groups, channels // groups * math.prod(spatial)), (1,)


def _instances(binding: Binding) -> tuple[tuple[int, ...], tuple[int, ...]]:
    batch, channels, *spatial = binding.inputs["x"].shape
    return (batch * channels, math.prod(spatial)), (1,)


def _channels(binding: Binding) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = binding.inputs["x"].shape
    return shape, (0, *range(2, len(shape)))


CENTRED: Mapping[str, Centred] = {
    "VarFwdOp": Centred("x", _reduced),
    "StdFwdOp": Centred("x", _reduced),
    "VarMeanFwdOp": Centred("x", _reduced),
    "LayerNormFwdOp": Centred("x", _trailing),
    "FusedAddLayerNormFwdOp": Centred("x", _trailing),
    "AdaLayerNormFwdOp": Centred("x", _trailing),
    "AdaLayerNormZeroFwdOp": Centred("x", _trailing),
    "GroupNormFwdOp": Centred("x", _channel_groups),
    "InstanceNormFwdOp": Centred("x", _instances),
    "BatchNormFwdOp": Centred("x", _channels),
    "BatchNormBwdOp": Centred("x", _channels),
}


def in_groups(
    binding: Binding, groups: Groups, draw: Callable[[tuple[int, ...]], torch.Tensor]
) -> torch.Tensor:
    """`draw((groups, elements of a group))`, brought into the shape that the groups are seen in."""
    shape, axes = groups(binding)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    order = (*kept, *axes)
    rows = draw((math.prod(shape[axis] for axis in kept), math.prod(shape[axis] for axis in axes)))
    place = sorted(range(len(order)), key=order.__getitem__)
    return rows.reshape([shape[axis] for axis in order]).permute(place).contiguous()
