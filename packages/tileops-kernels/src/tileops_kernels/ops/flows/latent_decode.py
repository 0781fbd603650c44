"""Attention of one query per request over a cache of latents: a splitting kernel, then a merging one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.decode import DecodeMergeKernel
from tileops_kernels.kernels.latent_decode import MAX_KEY, MAX_LATENT, LatentDecodeKernel
from tileops_kernels.kernels.latent_decode_hopper import LatentDecodeHopperKernel
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes
from tileops_kernels.ops.flows.decode import LOG2_E, attend_in_parts

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "LatentDecode"]


def _with_a_position(tensor: torch.Tensor) -> torch.Tensor:
    """Return positions as a tile program takes them: none are one that is 0."""
    return tensor if tensor.shape[-1] else tensor.new_zeros((*tensor.shape[:-1], 1))


class LatentDecode(Flow):
    """`o[b, h] = softmax((q k + q_pe k_pe) / sqrt(D + D_pe)) k`, in a fixed order of summation; on Hopper by
    a schedule of its own."""

    kernels = (LatentDecodeKernel, LatentDecodeHopperKernel, DecodeMergeKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        op, (q, q_pe, k, k_pe) = binding.entry.name, inputs
        dtype = binding.inputs["q"].dtype
        require_dtypes(op, LatentDecodeKernel, q=dtype)
        heads, head_dim = q.shape[1:]
        width = head_dim + q_pe.shape[2]
        for argument, got, limit in (("q.shape[2]", head_dim, MAX_LATENT), ("key elements", width, MAX_KEY)):
            if got > limit:
                raise NotImplementedOpError(op, argument=argument, got=got, expected=f"at most {limit}")
        if q.numel() == 0:
            return lambda q, *_: q.new_empty(q.shape)

        kv_heads = k.shape[2]
        static = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype}
        scalars = (LOG2_E / math.sqrt(width),)
        on_hopper = LatentDecodeHopperKernel.fits(q.device, heads // kv_heads, head_dim, q_pe.shape[2])
        kernel = LatentDecodeHopperKernel if on_hopper else LatentDecodeKernel
        example = (q, _with_a_position(q_pe), k, _with_a_position(k_pe))
        attend = attend_in_parts(kernel, example, scalars, k.shape[1], **static, pe_dim=example[1].shape[2])
        if q_pe.shape[2]:
            return attend
        return lambda q, q_pe, k, k_pe: attend(q, _with_a_position(q_pe), k, _with_a_position(k_pe))


OPS: dict[str, Flow] = {"MultiHeadLatentAttentionDecodeWithKVCacheFwdOp": LatentDecode()}
