"""Attention over packed requests of different lengths: windows, and prefill with softcap and factors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.attention_packed import PackedAttentionKernel
from tileops_kernels.ops.flows._dense import reader
from tileops_kernels.ops.flows.attention import window_of
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes
from tileops_kernels.ops.flows.decode import score_scalars

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "PackedAttention"]

_FACTORS = slice(5, 8)


class PackedAttention(Flow):
    """Queries, keys and values `[tokens, heads, D]`, offsets of the requests in them, perhaps factors."""

    kernels = (PackedAttentionKernel,)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        op, params, (q, k) = binding.entry.name, binding.params, inputs[:2]
        dtype = binding.inputs["q"].dtype
        require_dtypes(op, PackedAttentionKernel, q=dtype)
        total, heads, head_dim = q.shape
        if head_dim > PackedAttentionKernel.MAX_HEAD_DIM:
            raise NotImplementedOpError(
                op,
                argument="q.shape[2]",
                got=head_dim,
                expected=f"at most {PackedAttentionKernel.MAX_HEAD_DIM}",
            )
        (result,) = binding.outputs.values()
        out_dtype, shape = torch_dtype(result.dtype), q.shape
        if q.numel() == 0:
            return lambda q, *_: q.new_empty(shape, dtype=out_dtype)

        # No query is further from a key than all tokens together.
        left, right = window_of(params, total + k.shape[0])
        given = {name: t for name, t in zip("qkv", inputs[_FACTORS], strict=False) if t is not None}
        static = {
            "heads": heads,
            "kv_heads": k.shape[1],
            "head_dim": head_dim,
            "dtype": dtype,
            "out_dtype": result.dtype,
            "left_bounded": left is not None,
            "right_bounded": right is not None,
            "capped": params.get("softcap") is not None,
            "scaled": "".join(given),
        }
        program = PackedAttentionKernel.compiled(q.device, **static)
        scale, cap = score_scalars({"sm_scale": None, "softcap": None, **params}, head_dim)
        numbers = (left or 0, right or 0, min(params["max_seqlen_q"], total), scale, cap)
        reads = [None if t is None else reader(t, PackedAttentionKernel) for t in inputs]

        def operands(inputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
            """As the program takes them: a factor that it does not read is another one."""
            read = [None if read is None else read(t) for read, t in zip(reads, inputs, strict=True)]
            factors = read[_FACTORS]
            some = next((factor for factor in factors if factor is not None), None)
            return read[:5] if some is None else [*read[:5], *(some if t is None else t for t in factors)]

        launch = program.bound(*operands(inputs), q.new_empty(shape, dtype=out_dtype), *numbers)

        def run(*inputs: torch.Tensor | None) -> torch.Tensor:
            o = inputs[0].new_empty(shape, dtype=out_dtype)
            launch(*operands(inputs), o, *numbers)
            return o

        return run


OPS: dict[str, Flow] = {
    "GroupedQueryAttentionSlidingWindowVarlenFwdOp": PackedAttention(),
    "GroupedQueryAttentionPrefillFwdOp": PackedAttention(),
}
