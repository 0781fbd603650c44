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
from tileops_kernels.kernels.attention_backward_hopper import (
    AttentionKeyGradientHopperKernel,
    AttentionQueryGradientHopperKernel,
)
from tileops_kernels.ops.flows._dense import bound_over_batch, reader
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "AttentionBackward"]


def _programs(device: torch.device, *, head_dim: int, dtype: str, **static: Any) -> list[Any]:
    """Return the programs of dq, then those of dk and dv."""
    static |= {"head_dim": head_dim, "dtype": dtype}
    if AttentionKeyGradientHopperKernel.fits(device, head_dim, dtype):
        kernels = (AttentionQueryGradientHopperKernel, AttentionKeyGradientHopperKernel)
        return [kernel.compiled(device, **static) for kernel in kernels]
    of_keys = (
        AttentionKeyGradientKernel.compiled(device, **static, gradients=gradients)
        for gradients in AttentionKeyGradientKernel.launches(head_dim)
    )
    return [AttentionQueryGradientKernel.compiled(device, **static), *of_keys]


class AttentionBackward(Flow):
    """Gradients of q, k and v over `[B, S, H, D]`, in a fixed order of summation; on Hopper by schedules of
    their own."""

    kernels = (
        AttentionStatisticsKernel,
        AttentionQueryGradientKernel,
        AttentionKeyGradientKernel,
        AttentionQueryGradientHopperKernel,
        AttentionKeyGradientHopperKernel,
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

        def allocate(q: torch.Tensor) -> tuple[torch.Tensor, ...]:
            statistics = q.new_empty(tiles, dtype=torch.float32)
            return statistics, *(q.new_empty(shape) for shape in shapes)

        q, k, v, o, grad_o, lse = (read(t) for read, t in zip(reads, inputs, strict=True))
        statistics, dq, dk, dv = allocate(q)
        prepare = bound_over_batch(
            AttentionStatisticsKernel.compiled(device, **static), o, grad_o, lse, statistics
        )
        programs = _programs(device, **shared)
        of_queries = bound_over_batch(programs[0], q, k, v, grad_o, statistics, dq)
        of_keys = [bound_over_batch(program, q, k, v, grad_o, statistics, dk, dv) for program in programs[1:]]

        def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            q, k, v, o, grad_o, lse = (read(t) for read, t in zip(reads, inputs, strict=True))
            statistics, dq, dk, dv = allocate(q)
            prepare(o, grad_o, lse, statistics)
            of_queries(q, k, v, grad_o, statistics, dq)
            for launch in of_keys:
                launch(q, k, v, grad_o, statistics, dk, dv)
            return dq, dk, dv

        return run


OPS: dict[str, Flow] = {
    "MultiHeadAttentionBwdOp": AttentionBackward(),
    "GroupedQueryAttentionBwdOp": AttentionBackward(),
}
