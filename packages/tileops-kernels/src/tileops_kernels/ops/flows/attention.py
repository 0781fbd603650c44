"""Attention over whole sequences: multi-head, grouped-query, sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.attention import AttentionForwardKernel
from tileops_kernels.kernels.attention_hopper import AttentionHopperKernel
from tileops_kernels.ops.flows._dense import bound_over_batch, reader
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "AttentionForward", "window_of"]


def window_of(params: dict, seq: int) -> tuple[int | None, int | None]:
    """Return how many keys to the left and right of itself a query sees; None means all of them.

    A negative size in the params means unbounded, and causal bounds the right side by 0. A size past the
    sequence is cut to it: that changes nothing, keeps the run-time scalar small and leaves the choice of
    program to the params.
    """
    left, right = params.get("window_size_left", -1), params.get("window_size_right", -1)
    if params["is_causal"]:
        right = 0
    return (None if left < 0 else min(left, seq)), (None if right < 0 else min(right, seq))


class AttentionForward(Flow):
    """`o = softmax(mask(q k^T / sqrt(D))) v` over `[B, S, H, D]`; on Hopper by a schedule of its own."""

    kernels = (AttentionForwardKernel, AttentionHopperKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        op, (q, k, v) = binding.entry.name, inputs
        dtype = binding.inputs["q"].dtype
        require_dtypes(op, AttentionForwardKernel, q=dtype)
        _, seq, heads, head_dim = q.shape
        if head_dim > AttentionForwardKernel.MAX_HEAD_DIM:
            raise NotImplementedOpError(
                op,
                argument="q.shape[3]",
                got=head_dim,
                expected=f"at most {AttentionForwardKernel.MAX_HEAD_DIM}",
            )
        if q.numel() == 0:
            return lambda q, k, v: q.new_empty(q.shape)

        left, right = window_of(binding.params, seq)
        on_hopper = AttentionHopperKernel.fits(q.device, head_dim, dtype)
        kernel = AttentionHopperKernel if on_hopper else AttentionForwardKernel
        static = {
            "heads": heads,
            "kv_heads": k.shape[2],
            "head_dim": head_dim,
            "dtype": dtype,
            "left_bounded": left is not None,
            "right_bounded": right is not None,
        }
        program = kernel.compiled(q.device, kernel.config_for(q.device, seq=seq, **static), **static)
        read_q, read_k, read_v = (reader(t, kernel) for t in (q, k, v))
        left, right = left or 0, right or 0
        shape = q.shape
        launch = bound_over_batch(program, read_q(q), read_k(k), read_v(v), q.new_empty(shape), left, right)

        def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            o = q.new_empty(shape)
            launch(read_q(q), read_k(k), read_v(v), o, left, right)
            return o

        return run


OPS: dict[str, Flow] = {
    "MultiHeadAttentionFwdOp": AttentionForward(),
    "GroupedQueryAttentionFwdOp": AttentionForward(),
    "GroupedQueryAttentionSlidingWindowFwdOp": AttentionForward(),
}
