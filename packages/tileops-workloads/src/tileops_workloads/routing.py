"""Products and routed layers: which expert is where, and scores between which rounding cannot choose."""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from tileops_manifest import TensorMeta, TensorSpec

from .base import WorkloadBase
from .bits import below, ranks
from .dtypes import torch_dtype
from .registry import register
from .structured import Made


@register(
    "BmmFp8KNFwdOp",
    "BmmFp8NKFwdOp",
    "GemmFp8FwdOp",
    "GroupedGemmFwdOp",
    "MoeGroupedGemmNopadFwdOp",
    "MoeGateUpFwdOp",
    "MoeUnpermuteFwdOp",
)
class OneRandomOperandWorkload(WorkloadBase):
    """In `structured` inputs the first operand is random all the same, and so are scales.

    Rounding errors of a product of regular operands cancel, so that a result in a lower precision would pass;
    and the one element of a ramp is 0.
    """

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        random = spec.name == next(iter(self.entry.inputs)) or spec.name.startswith("scale_")
        if random and self.distribution == "structured":
            return self.draw(spec.name, meta, "normal")
        return super().gen_input(spec, meta, made)


@register("MoePermuteNopadFwdOp", "FusedMoEExpertsNopadPersistent3WGFwdOp")
class ExpertMapWorkload(OneRandomOperandWorkload):
    """`expert_map` numbers the local experts 0, 1, … in random order and maps every other expert to -1."""

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        if spec.name != "expert_map":
            return super().gen_input(spec, meta, made)
        order = ranks(self.stream(spec.name), 1, meta.shape[0], self.device)[0]
        local = self.binding.params["num_experts_local"]
        return torch.where(order < local, order, torch.full_like(order, -1)).to(torch_dtype(meta.dtype))


@register("FusedMoeFwdOp")
class SeparatedScoresWorkload(OneRandomOperandWorkload):
    """A token's scores, biased where there is a bias, lie 5 / (8 experts) apart, in every distribution.

    Of two scores that differ by a rounding error either may be the greater one: which expert is chosen then
    is no property of the op. The logits are those whose sigmoid plus the expert's bias is an evenly spaced
    score.
    """

    biases: ClassVar[tuple[float, ...]] = (0.0, 1 / 64, 2 / 64, 3 / 64)

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        if spec.name == "correction_bias":
            return self._look_up(self.biases, self._bias_of_each_expert())
        if spec.name != "gating_output":
            return super().gen_input(spec, meta, made)
        tokens, experts = meta.shape
        place = ranks(self.stream(spec.name), tokens, experts, self.device)
        biased = self.binding.inputs["correction_bias"] is not None
        biases = self.biases if biased else (0.0,)
        scores = [[1 / 8 + 5 / 8 * (i + 0.5) / experts - bias for i in range(experts)] for bias in biases]
        table = tuple(math.log(score / (1 - score)) for row in scores for score in row)
        return self._look_up(table, place + experts * self._bias_of_each_expert() if biased else place)

    def _bias_of_each_expert(self) -> torch.Tensor:
        experts = self.binding.dims["experts"]
        return below(self.stream("correction_bias"), experts, len(self.biases), self.device)

    def _look_up(self, table: tuple[float, ...], place: torch.Tensor) -> torch.Tensor:
        values = torch.tensor(table, dtype=torch.float32, device=self.device)
        return values.index_select(0, place.reshape(-1)).reshape(place.shape)
