"""Ops whose inputs need structure: drawn from the plain distribution they would not exercise the op at all.

A product of 4096 bell values is 0, `all` of a row of them is always true, the logarithm of half of them is
NaN. Each class says which values its ops need. `adversarial` inputs are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch

from tileops_manifest import TensorMeta, TensorSpec

from .base import WorkloadBase
from .bits import below
from .dtypes import torch_dtype
from .registry import register

Made = Mapping[str, torch.Tensor | None]


class _Reshaped(WorkloadBase):
    """A workload that changes what its distribution draws, element by element, except in `adversarial`."""

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        plain = super().gen_input(spec, meta, made)
        return plain if self.distribution == "adversarial" else self.reshape(spec.name, plain)

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        """The input made from the plain one. Each subclass says how."""
        raise NotImplementedError

    def one_in(self, n: float, name: str, like: torch.Tensor) -> torch.Tensor:
        """A mask of `like`'s shape that is true for one element in `n`."""
        limit = 1 << 30
        drawn = below(self.stream(name, "one-in"), like.numel(), limit, self.device)
        return (drawn < limit / n).reshape(like.shape)


@register("LogFwdOp", "SqrtFwdOp", "RsqrtFwdOp")
class MostlyPositiveWorkload(_Reshaped):
    """For functions of non-negative arguments: one element in 16 keeps its sign, so that NaN is met too."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        return torch.where(self.one_in(16, name, plain), plain, plain.abs())


@register("PowFwdOp")
class PowerWorkload(MostlyPositiveWorkload):
    """For powers: bases mostly positive, exponents of either sign."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        return super().reshape(name, plain) if name == "input" else plain


@register("Expm1FwdOp", "Log1pFwdOp")
class NearZeroWorkload(_Reshaped):
    """For functions that must not cancel near 0: half of the elements lie there."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        return torch.where(self.one_in(2, name, plain), plain * 2**-10, plain)


@register("EqFwdOp", "NeFwdOp", "GtFwdOp", "GeFwdOp", "LeFwdOp")
class CoarseWorkload(WorkloadBase):
    """For comparisons: few distinct values, so that equal ones are common."""

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        return self.draw(spec.name, meta, "exact" if self.distribution == "normal" else self.distribution)


@register("LogicalNotFwdOp", "LogicalAndFwdOp", "LogicalOrFwdOp", "SignFwdOp", "CountNonzeroFwdOp")
class SomeZerosWorkload(_Reshaped):
    """For truth values and signs of numbers: one element in 4 is zero."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        return plain.masked_fill(self.one_in(4, name, plain), 0)


@register("IsnanFwdOp")
class SomeNanWorkload(_Reshaped):
    """For predicates of NaN: one element in 4 of a float input is NaN."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        if not plain.is_floating_point():
            return plain
        return plain.masked_fill(self.one_in(4, name, plain), math.nan)


@register("IsinfFwdOp", "IsfiniteFwdOp", "NanToNumFwdOp")
class SomeSpecialsWorkload(_Reshaped):
    """For what is done with NaN and infinities: one element in 4 of a float input is NaN, Inf or -Inf."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        if not plain.is_floating_point():
            return plain
        kinds = torch.tensor([math.nan, math.inf, -math.inf], dtype=plain.dtype, device=self.device)
        kind = below(self.stream(name, "kind"), plain.numel(), len(kinds), self.device).reshape(plain.shape)
        return torch.where(self.one_in(4, name, plain), kinds[kind], plain)


class _ReductionWorkload(_Reshaped):
    """A reduction of one input; `length` inputs make one element of each output."""

    @property
    def length(self) -> int:
        output = next(iter(self.binding.outputs.values()))
        return math.prod(self._leading.shape) // max(math.prod(output.shape), 1)


@register("AllFwdOp")
class MostlyTrueWorkload(_ReductionWorkload):
    """Nonzero but for a few zeros: about half of the reduced groups hold one."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        exception = self.one_in(max(self.length / math.log(2), 2), name, plain)
        nonzero = torch.where(plain == 0, torch.ones_like(plain), plain)
        return nonzero.masked_fill(exception, 0)


@register("AnyFwdOp")
class MostlyFalseWorkload(_ReductionWorkload):
    """Zero but for a few: about half of the reduced groups hold one nonzero element."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        exception = self.one_in(max(self.length / math.log(2), 2), name, plain)
        nonzero = torch.where(plain == 0, torch.ones_like(plain), plain)
        return nonzero.masked_fill(~exception, 0)


# Between two neighbours of every lower format: 2^-4.2 away from 8-bit floats, 2^-11.4 from tf32; 1 + 7 / 128
# is a bfloat16.
_HARD_TO_ROUND = 1 + 7 / 128 + 3 / 8192


@register("VarFwdOp", "StdFwdOp", "VarMeanFwdOp", "L2NormFwdOp")
class DominatedWorkload(_ReductionWorkload):
    """About one element of each reduced group outweighs the others together; only in `normal` inputs.

    A sum of alike terms averages their rounding errors away, so a result in a lower precision would pass: a
    dominant term shows it. The first element is one, and is far from what lower formats can hold.
    """

    most_groups: ClassVar[float] = math.inf

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        groups = math.prod(next(iter(self.binding.outputs.values())).shape)
        if self.distribution != "normal" or not plain.numel() or groups > self.most_groups:
            return plain
        # Twice the root of the length, a power of two, within the range of float16.
        weight = min(2 ** math.ceil(math.log2(2 * math.sqrt(self.length))), 1 << 13)
        shaped = torch.where(self.one_in(max(2 * self.length, 2), name, plain), plain * weight, plain)
        shaped.view(-1)[0] = 2 * weight * _HARD_TO_ROUND
        return shaped


@register("SumFwdOp", "MeanFwdOp")
class LongSumWorkload(DominatedWorkload):
    """Sums with few outputs: among many there are always some in which one term stands out."""

    most_groups = 16


@register("L1NormFwdOp")
class OutweighedWorkload(_ReductionWorkload):
    """As `DominatedWorkload`, for sums of magnitudes, which grow with the length and not with its root."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        if self.distribution != "normal" or not plain.numel():
            return plain
        # The ratio is shared out, so that both kinds lie within the normal range of float16.
        exponent = math.ceil(math.log2(16 * max(self.length, 1)))
        small, large = plain * 2.0 ** -(exponent // 2), plain * 2.0 ** (exponent - exponent // 2)
        shaped = torch.where(self.one_in(max(2 * self.length, 2), name, plain), large, small)
        shaped.view(-1)[0] = 2.0 ** (exponent - exponent // 2 + 1) * _HARD_TO_ROUND
        return shaped


@register("HardswishFwdOp", "HardsigmoidFwdOp", "SoftplusFwdOp", "MishFwdOp")
class SpreadWorkload(_Reshaped):
    """For functions with pieces: four times the unit, so that every piece is met."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        return plain * 4 if self.distribution == "normal" else plain


@register("LogSoftmaxFwdOp")
class LogitsWorkload(_Reshaped):
    """Spread like logits, four times the unit: else the outputs of a long row are nearly the same."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        return plain * 4 if self.distribution == "normal" else plain


@register("LogSumExpFwdOp")
class PeakedWorkload(_ReductionWorkload):
    """As `DominatedWorkload`, for exponents: the dominant element is larger by the length's logarithm."""

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        if self.distribution != "normal":
            return plain
        chosen = self.one_in(max(self.length, 2), name, plain)
        return torch.where(chosen, plain.abs() + (4 + math.ceil(math.log(max(self.length, 1)))), plain)


@register("ProdFwdOp")
class NearUnitWorkload(_ReductionWorkload):
    """Factors whose product stays near 1: 1 + z / sqrt(length) with a random sign; signed powers of two when
    exact.
    """

    def reshape(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        length = max(self.length, 1)
        negative = below(self.stream(name, "sign"), plain.numel(), 2, self.device).reshape(plain.shape) == 1
        if self.distribution in ("exact", "sparse-exact"):
            factor = torch.where(plain.abs() < 2, torch.full_like(plain, 0.5), torch.full_like(plain, 2.0))
            magnitude = torch.where(
                self.one_in(max(length / 8, 8), name, plain), factor, torch.ones_like(plain)
            )
        else:
            # Independent factors: the logarithms add up like a random walk. A row of equal ones: they just
            # add up.
            steps = length if self.distribution == "structured" else math.sqrt(length)
            spread = plain.to(torch.float32).mul_(1.0 / steps)
            magnitude = spread.clamp_(-0.75, 3.0).add_(1.0).to(plain.dtype)
        return torch.where(negative, -magnitude, magnitude)


@register("CumprodFwdOp")
class NearUnitScanWorkload(NearUnitWorkload):
    """As `NearUnitWorkload`, for running products."""

    @property
    def length(self) -> int:
        shape = self._leading.shape
        return shape[self.binding.params["dim"]] if shape else 1


@register("TopkSelectorFwdOp")
class DistinctScoresWorkload(WorkloadBase):
    """Scores of a query differ from each other, so that the chosen set is unique; `structured` scores do
    tie.
    """

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        if spec.values is not None or self.distribution not in ("normal", "exact"):
            return super().gen_input(spec, meta, made)
        return self._distinct_scores(spec.name, meta)

    def _distinct_scores(self, name: str, meta: TensorMeta) -> torch.Tensor:
        """Bijections of k-bit numbers (xor-shift and odd multiplication), another one for each query."""
        batch, queries, keys, groups = meta.shape
        bits = max((keys - 1).bit_length(), 2)
        mask = (1 << bits) - 1
        out = torch.empty((batch * queries, keys, groups), dtype=torch_dtype(meta.dtype), device=self.device)
        multipliers = below(self.stream(name), 2 * batch * queries * groups, 1 << 24, self.device) | 1
        odd = multipliers.reshape(2, batch * queries, 1, groups)
        position = torch.arange(keys, dtype=torch.int64, device=self.device).reshape(1, keys, 1)
        rows_at_once = max((1 << 24) // max(keys * groups, 1), 1)
        for start in range(0, batch * queries, rows_at_once):
            rows = slice(start, start + rows_at_once)
            code = position * odd[0, rows] & mask
            code = (code ^ code >> bits // 2) * odd[1, rows] & mask
            code = code ^ code >> bits // 2
            # An integer below 2^24 times a power of two: exact, so distinct codes stay distinct in float32.
            out[rows] = (2 * code - mask).to(torch.float32).mul_(2.0 ** (2 - bits))
        return out.reshape(meta.shape)
