"""Attention of one query per request over a cache, dense or paged: a splitting kernel, then a merging one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.decode import DecodeKernel, DecodeMergeKernel
from tileops_kernels.kernels.decode_base import SplitDecodeKernel, pick_splits
from tileops_kernels.kernels.paged_decode import PagedDecodeKernel
from tileops_kernels.ops.flows._dense import bound_over_batch, reader
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["LOG2_E", "OPS", "Decode", "attend_in_parts", "score_scalars"]

LOG2_E = math.log2(math.e)
"""Factor by which scores in base e become scores in base 2."""

# Bends no score of 16-bit operands; float32 must hold the cap and the quotient of a score and it.
_WIDEST_CAP = 2.0**64
_CPU_UNITS = 8  # for a CPU, as if it had so many multiprocessors


def _units(device: torch.device) -> int:
    if device.type == "cpu":
        return _CPU_UNITS
    return torch.cuda.get_device_properties(device).multi_processor_count


def score_scalars(params: Mapping[str, Any], head_dim: int) -> tuple[float, float]:
    """Return the kernel's (scale, cap): scores in base 2 are `qk * scale`, or `cap * tanh(qk * scale)`."""
    sm_scale, softcap = params["sm_scale"], params["softcap"]
    sm_scale = 1.0 / math.sqrt(head_dim) if sm_scale is None else sm_scale
    if softcap is None:
        return sm_scale * LOG2_E, 0.0
    softcap = min(softcap, _WIDEST_CAP)
    return sm_scale / softcap, softcap * LOG2_E


def attend_in_parts(
    kernel: type[SplitDecodeKernel],
    inputs: Sequence[torch.Tensor],
    scalars: Sequence[float],
    tokens: int,
    *,
    shared: tuple[int, ...] = (),
    **static: Any,
) -> Run:
    """Return `run(*inputs)`, which attends to a cache of up to `tokens` tokens, split over as many blocks as
    keep the device busy, and merges the parts.

    Args:
        kernel: takes the inputs, the parts and their log-sum-exp, then `scalars`.
        inputs: the queries [B, H, D], then what else the kernel takes.
        scalars: numbers that the kernel takes.
        tokens: of the longest cache.
        shared: positions of inputs that have no batch axis.
        **static: of the kernel, except `whole`.
    """
    q = inputs[0]
    batch, heads, head_dim = q.shape
    config = kernel.config_for(q.device, **static)
    group = heads // static["kv_heads"]
    blocks = batch * static["kv_heads"] * -(-group // kernel.tile_rows(group))
    steps = -(-tokens // config.block_n)
    splits = pick_splits(blocks, steps, _units(q.device), kernel.BLOCKS_PER_UNIT)
    program = kernel.compiled(q.device, config, **static, whole=splits == 1)
    reads = tuple(reader(t, kernel) for t in inputs)
    example = [read(t) for read, t in zip(reads, inputs, strict=True)]
    part_shape, part_dtype = (batch, splits, heads, head_dim), q.dtype if splits == 1 else torch.float32

    def parts(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return q.new_empty(part_shape, dtype=part_dtype), q.new_empty(part_shape[:3], dtype=torch.float32)

    part, lse = parts(q)
    launch = bound_over_batch(program, *example, part, lse, *scalars, shared=shared)
    if splits == 1:

        def run_whole(*inputs: torch.Tensor) -> torch.Tensor:
            part, lse = parts(inputs[0])
            launch(*[read(t) for read, t in zip(reads, inputs, strict=True)], part, lse, *scalars)
            return part[:, 0]

        return run_whole

    merge = DecodeMergeKernel.compiled(q.device, heads=heads, head_dim=head_dim, dtype=static["dtype"])
    launch_merge = bound_over_batch(merge, part, lse, q.new_empty(q.shape))

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        part, lse = parts(inputs[0])
        o = inputs[0].new_empty(inputs[0].shape)
        launch(*[read(t) for read, t in zip(reads, inputs, strict=True)], part, lse, *scalars)
        launch_merge(part, lse, o)
        return o

    return run


class Decode(Flow):
    """`o[b, h] = softmax(scores(q[b, h], cache)) values`, in a fixed order of summation.

    Args:
        kernel: the splitting kernel, `DecodeKernel` or `PagedDecodeKernel`.
    """

    def __init__(self, kernel: type[SplitDecodeKernel]) -> None:
        self.kernel = kernel
        self.kernels = (kernel, DecodeMergeKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        op, kernel, params = binding.entry.name, self.kernel, binding.params
        q, k = inputs[0], inputs[1]
        dtype = binding.inputs["q"].dtype
        require_dtypes(op, kernel, q=dtype)
        heads, head_dim = q.shape[1:]
        kv_heads = k.shape[-2]
        if head_dim > kernel.MAX_HEAD_DIM:
            raise NotImplementedOpError(
                op, argument="q.shape[2]", got=head_dim, expected=f"at most {kernel.MAX_HEAD_DIM}"
            )
        if q.numel() == 0:
            return lambda *inputs: inputs[0].new_empty(inputs[0].shape)

        static = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype}
        static["capped"] = params["softcap"] is not None
        tokens = (
            binding.dims["N_kv"]
            if kernel is DecodeKernel
            else binding.dims["num_pages"] * params["page_size"]
        )
        if kernel is PagedDecodeKernel:
            static["page_size"] = params["page_size"]
        scalars = score_scalars(params, head_dim)
        # Pages belong to all requests; the cache of a dense decode has a batch axis.
        pages = (1, 2) if kernel is PagedDecodeKernel else ()
        return attend_in_parts(kernel, inputs, scalars, tokens, shared=pages, **static)


OPS: dict[str, Flow] = {
    "GroupedQueryAttentionDecodeWithKVCacheFwdOp": Decode(DecodeKernel),
    "GroupedQueryAttentionDecodePagedWithKVCacheFwdOp": Decode(PagedDecodeKernel),
}
