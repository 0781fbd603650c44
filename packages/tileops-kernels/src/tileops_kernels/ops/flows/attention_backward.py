"""Flow of attention's gradients: statistics of the queries, then gradients of the queries and of the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.attention_backward import (
    STATISTICS_ROWS,
    AttentionKeyGradientKernel,
    AttentionQueryGradientKernel,
    AttentionStatisticsKernel,
)
from tileops_kernels.kernels.attention_backward_hopper import AttentionGradientHopperKernel
from tileops_kernels.ops.flows._dense import bound_over_batch, reader
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "AttentionBackward"]


_OF_QUERIES, _OF_KEYS, _ALL = slice(0, 1), slice(1, 3), slice(0, 3)  # of the gradients dq, dk and dv


def _programs(device: torch.device, *, head_dim: int, dtype: str, **static: Any) -> list[tuple[Any, slice]]:
    """Return the programs, and which of the gradients each of them writes."""
    static |= {"head_dim": head_dim, "dtype": dtype}
    if AttentionGradientHopperKernel.fits(device, head_dim, dtype):
        return [(AttentionGradientHopperKernel.compiled(device, **static), _ALL)]
    of_keys = (
        (AttentionKeyGradientKernel.compiled(device, **static, gradients=gradients), _OF_KEYS)
        for gradients in AttentionKeyGradientKernel.launches(head_dim)
    )
    return [(AttentionQueryGradientKernel.compiled(device, **static), _OF_QUERIES), *of_keys]


class AttentionBackward(Flow):
    """Gradients of q, k and v over `[B, S, H, D]`, in a fixed order of summation; on Hopper by a schedule of
    its own."""

    kernels = (
        AttentionStatisticsKernel,
        AttentionQueryGradientKernel,
        AttentionKeyGradientKernel,
        AttentionGradientHopperKernel,
    )

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        op, (q, k, *_) = binding.entry.name, inputs
        dtype, device = binding.inputs["q"].dtype, q.device
        require_dtypes(op, AttentionQueryGradientKernel, q=dtype)
        batch, seq, heads, head_dim = q.shape
        if head_dim > AttentionQueryGradientKernel.MAX_HEAD_DIM:
            raise NotImplementedOpError(
                op,
                argument="q.shape[3]",
                got=head_dim,
                expected=f"at most {AttentionQueryGradientKernel.MAX_HEAD_DIM}",
            )
        if q.numel() == 0:
            return lambda q, k, *_: (q.new_empty(q.shape), k.new_zeros(k.shape), k.new_zeros(k.shape))

        static = {"heads": heads, "head_dim": head_dim, "dtype": dtype}
        shared = {**static, "kv_heads": k.shape[2], "causal": binding.params["is_causal"]}
        reads = tuple(reader(t, AttentionQueryGradientKernel) for t in inputs)
        shapes = (q.shape, k.shape, k.shape)
        tiles = (batch, heads, -(-seq // STATISTICS_ROWS), 2, STATISTICS_ROWS)

        def allocate(q: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
            return q.new_empty(tiles, dtype=torch.float32), tuple(q.new_empty(shape) for shape in shapes)

        q, k, v, o, grad_o, lse = (read(t) for read, t in zip(reads, inputs, strict=True))
        statistics, gradients = allocate(q)
        prepare = bound_over_batch(
            AttentionStatisticsKernel.compiled(device, **static), o, grad_o, lse, statistics
        )
        launches = [
            (bound_over_batch(program, q, k, v, grad_o, statistics, *gradients[written]), written)
            for program, written in _programs(device, **shared)
        ]

        def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
            q, k, v, o, grad_o, lse = (read(t) for read, t in zip(reads, inputs, strict=True))
            statistics, gradients = allocate(q)
            prepare(o, grad_o, lse, statistics)
            for launch, written in launches:
                launch(q, k, v, grad_o, statistics, *gradients[written])
            return gradients

        return run


OPS: dict[str, Flow] = {
    "MultiHeadAttentionBwdOp": AttentionBackward(),
    "GroupedQueryAttentionBwdOp": AttentionBackward(),
}
