"""Ops with constants of a model beside their data, searches in windows, and transforms of whole rows.

What an infinite weight, statistic or factor does depends on how an implementation joins it to its
neighbours: whether padding is multiplied by it, whether a scale and a shift are made one. That is no
property of the op, so such inputs stay moderate, also in `adversarial`; the data keeps its NaN, infinities
and extremes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch

from tileops_manifest import TensorMeta, TensorSpec

from .base import WorkloadBase
from .distributions import generate
from .registry import register
from .sequence import positive
from .structured import Made

Role = Callable[[torch.Tensor], torch.Tensor]


def any_value(x: torch.Tensor) -> torch.Tensor:
    """Of either sign, around 0."""
    return x


def variance(x: torch.Tensor) -> torch.Tensor:
    """At least 0, and sometimes near it, where an epsilon matters."""
    return x.abs()


def divisor(x: torch.Tensor) -> torch.Tensor:
    """At least 1, as factors that stretch a context are."""
    return x.abs() + 1


class ConstantsWorkload(WorkloadBase):
    """`constants` names the inputs that are constants of a model, and what their values mean."""

    constants: ClassVar[Mapping[str, Role]] = {}

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        role = self.constants.get(spec.name)
        if role is None:
            return super().gen_input(spec, meta, made)
        moderate = "normal" if self.distribution == "adversarial" else self.distribution
        return role(self.draw(spec.name, meta, moderate))


@register("Conv1dFwdOp", "Conv2dFwdOp", "Conv3dFwdOp")
class FiltersWorkload(ConstantsWorkload):
    """Convolutions: padding is 0 times a weight, or left out."""

    constants: ClassVar[Mapping[str, Role]] = {"weight": any_value}


@register("BatchNormFwdOp", "InstanceNormFwdOp")
class ChannelsWorkload(ConstantsWorkload):
    """Normalisations per channel: statistics, weight and bias may be joined to one scale and one shift."""

    constants: ClassVar[Mapping[str, Role]] = {
        "running_mean": any_value,
        "running_var": variance,
        "weight": any_value,
        "bias": any_value,
    }


@register("BatchNormBwdOp")
class SavedStatisticsWorkload(ConstantsWorkload):
    """The backward of a normalisation per channel: where x is `shifted`, the mean of a channel lies among its
    values.
    """

    constants: ClassVar[Mapping[str, Role]] = {"mean": any_value, "rstd": positive, "weight": any_value}

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        if spec.name == "mean" and self.distribution == "shifted":
            # One of the values and not their sum, whose last bit would be the machine's.
            return made["x"].transpose(0, 1).reshape(meta.shape[0], -1)[:, 0].to(torch.float32)
        return super().gen_input(spec, meta, made)


@register(
    "MaxPool1dIndicesFwdOp", "MaxPool2dIndicesFwdOp", "MaxPool3dIndicesFwdOp", "AdaptiveMaxPool2dIndicesFwdOp"
)
class NeighbouringNanWorkload(WorkloadBase):
    """For searches in windows: a NaN of `adversarial` inputs has another one behind it, so that it matters
    which of them is found.
    """

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        plain = super().gen_input(spec, meta, made)
        if self.distribution != "adversarial":
            return plain
        return torch.where(plain.roll(1, -1).isnan(), plain.roll(1, -1), plain)


@register("RopeLongRopeFwdOp")
class RescaledWorkload(ConstantsWorkload):
    """Rotations whose frequencies are divided."""

    constants: ClassVar[Mapping[str, Role]] = {"rescale_factors": divisor}


# Leaves room for sums over any row, and for the splitting of products into exact parts.
_ROOM = 2.0**-40


@register("FFTC2CFwdOp")
class SpectrumWorkload(WorkloadBase):
    """Transforms add whole rows up: `adversarial` values are finite and so are their sums. `normal` values of
    double precision use all of it: plain ones are float32 numbers.
    """

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        plain = super().gen_input(spec, meta, made)
        parts = torch.view_as_real(plain)
        if self.distribution == "normal" and parts.dtype == torch.float64:
            finer = generate(self.stream(spec.name, "fine"), meta.shape, plain.dtype, "normal", self.device)
            return plain + finer * 2.0**-26
        if self.distribution != "adversarial":
            return plain
        largest = torch.finfo(parts.dtype).max * _ROOM
        return torch.view_as_complex(parts.nan_to_num(0, 0, 0).clamp(-largest, largest))
