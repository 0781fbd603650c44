"""Attention ops: a mask hides keys, but not from a product of tiles; statistics and factors have their sizes.

A tiled implementation weighs a hidden value with 0, and 0 * NaN is NaN: what such a value does to a query
that does not see it is no property of an op. So all that is weighed is finite, also in `adversarial`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from tileops_manifest import TensorMeta, TensorSpec

from .base import WorkloadBase
from .bits import ranks
from .dtypes import torch_dtype
from .registry import register
from .structured import Made


@register(
    "MultiHeadAttentionFwdOp",
    "GroupedQueryAttentionFwdOp",
    "GroupedQueryAttentionSlidingWindowFwdOp",
    "GroupedQueryAttentionSlidingWindowVarlenFwdOp",
    "MultiHeadAttentionDecodePagedWithKVCacheFwdOp",
)
class MaskedAttentionWorkload(WorkloadBase):
    """Values are finite. Queries and keys keep their NaN and infinities, which a mask does hide."""

    weighed: ClassVar[frozenset[str]] = frozenset({"v"})

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        values = super().gen_input(spec, meta, made)
        if spec.name not in self.weighed:
            return values
        return values.to(torch.float32).nan_to_num(0.0, 0.0, 0.0).to(values.dtype)


@register("GroupedQueryAttentionPrefillFwdOp")
class ScaledAttentionWorkload(MaskedAttentionWorkload):
    """Factors are positive, those of queries large: few keys then have nearly all weight, and which ones is
    what a lower precision of the operands changes.
    """

    least: ClassVar[dict[str, float]] = {"q_scale": 4.0, "k_scale": 1.0, "v_scale": 1.0}

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        if spec.name not in self.least:
            return super().gen_input(spec, meta, made)
        plain = self.draw(spec.name, meta, "normal")
        return plain.abs() / 4 + self.least[spec.name]


@register("GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp")
class CachedAttentionWorkload(MaskedAttentionWorkload):
    """Factors of the cache are powers of two: dividing by one rounds nothing, so keys have one 8-bit form."""

    weighed: ClassVar[frozenset[str]] = frozenset({"v_new", "v_pages"})

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        if spec.name not in ("k_scale", "v_scale"):
            return super().gen_input(spec, meta, made)
        return torch.full(meta.shape, 0.5, dtype=torch_dtype(meta.dtype), device=self.device)


@register("MultiHeadAttentionBwdOp", "GroupedQueryAttentionBwdOp")
class AttentionGradientWorkload(WorkloadBase):
    """`lse` is near what scores of unit variance give: log(keys that the query sees) + 1/2. Without that the
    weights are not of size 1 / keys, so queries and keys are random in `structured` too; and so are
    gradients, of which sums of equal ones cancel. All but `lse` is weighed in one of the sums, and no more
    than 16.
    """

    largest: ClassVar[float] = 16.0

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        if spec.name == "lse":
            plain = self.draw(spec.name, meta, "normal")
            return plain / 8 + self._expected(meta)
        random = self.distribution == "structured" and spec.name in ("q", "k", "do")
        values = self.draw(spec.name, meta, "normal" if random else None)
        return values.masked_fill(~(values.abs() <= self.largest), 0)

    def _expected(self, meta: TensorMeta) -> torch.Tensor:
        length = meta.shape[-1]
        seen = range(1, length + 1) if self.binding.params["is_causal"] else [length] * length
        table = [math.log(keys) + 0.5 for keys in seen]
        return torch.tensor(table, dtype=torch.float32, device=self.device)


@register("DeepSeekSparseAttentionDecodeWithKVCacheFwdOp")
class SelectedKeysWorkload(MaskedAttentionWorkload):
    """In `normal` inputs a query names keys that it may see, as an indexer chooses them, and -1 once
    there are no more; in the others any key, which a causal query may have to leave out.
    """

    weighed: ClassVar[frozenset[str]] = frozenset({"kv"})

    def gen_input(self, spec: TensorSpec, meta: TensorMeta, made: Made) -> torch.Tensor:
        if spec.name != "indices" or self.distribution != "normal":
            return super().gen_input(spec, meta, made)
        batch, queries, heads, selected = meta.shape
        params, keys = self.binding.params, self.binding.dims["S_kv"]
        seen = torch.full((queries,), keys, device=self.device)
        if params["is_causal"]:
            position = params["q_start_index_s"] + torch.arange(queries, device=self.device)
            seen = torch.minimum((position + 1) // params["stride_kv"], seen)
        order = ranks(self.stream(spec.name), batch * queries * heads, keys, self.device)
        order = order.reshape(batch, queries, heads, keys)
        hidden = order >= seen[:, None, None]
        named = order.masked_fill(hidden, -1).gather(-1, hidden.to(torch.int8).argsort(dim=-1, stable=True))
        out = torch.full(meta.shape, -1, dtype=torch.int64, device=self.device)
        most = min(selected, keys)
        out[..., :most] = named[..., :most]
        return out.to(torch_dtype(meta.dtype))
