"""Selection, quantisation and expert routing: local compositions of torch operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tileops_bench.baselines.base import Baseline, Case, Make

E4M3_MAX = 448.0
SCALE_FLOOR = 1e-4


def _topk_selector(case: Case) -> Callable[..., Any]:
    topk = case.params["topk"]

    def call(index_score: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        keys = torch.arange(index_score.shape[2], device=index_score.device)[None, None, :, None]
        seen = (keys >= starts[:, :, None, None]) & (keys < ends[:, :, None, None])
        scores = index_score.masked_fill(~seen, float("-inf"))
        chosen = scores.topk(topk, dim=2).indices
        inside = (chosen >= starts[:, :, None, None]) & (chosen < ends[:, :, None, None])
        return chosen.where(inside, -1).transpose(2, 3).to(torch.int32)

    return call


def _fp8_quant(case: Case) -> Callable[..., Any]:
    def call(input_tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = input_tensor.float()
        scale = values.abs().amax(dim=-1).clamp_min(SCALE_FLOOR) / E4M3_MAX
        scaled = (values / scale[..., None]).clamp(-E4M3_MAX, E4M3_MAX)
        return scale, scaled.to(torch.float8_e4m3fn)

    return call


def _moe_permute(case: Case) -> Callable[..., Any]:
    local = case.params["num_experts_local"]

    def call(hidden_states: Any, topk_ids: Any, expert_map: Any = None) -> tuple[torch.Tensor, ...]:
        experts = topk_ids.flatten().long()
        if expert_map is not None:
            experts = expert_map.long()[experts]
            experts = torch.where(experts >= 0, experts, local)  # copies of other experts come last
        order = experts.argsort(stable=True)
        counts = torch.bincount(experts, minlength=local + 1)[:local]
        ends = counts.cumsum(0)
        forward = torch.empty_like(order)
        forward[order] = torch.arange(order.numel(), device=order.device)
        first = torch.cat((ends.new_zeros(1), ends))
        permuted = hidden_states[order // topk_ids.shape[1]]
        if expert_map is not None:
            permuted = permuted.masked_fill((experts[order] == local)[:, None], 0)
            forward = forward.masked_fill(experts == local, -1)
        return permuted, first[:-1].int(), counts.int(), first, forward.int()

    return call


def _moe_align(case: Case) -> Callable[..., Any]:
    """Token slots sorted by expert, each expert padded to whole blocks; unused slots hold the number of
    slots."""
    experts_total, block = case.params["num_experts"], case.params["block_size"]
    slots = case.params["total_tokens"] * case.params["top_k"]
    longest = slots + experts_total * (block - 1)
    blocks = -(-longest // block)

    def call(topk_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        experts = topk_ids.flatten().long()
        order = experts.argsort(stable=True)
        counts = torch.bincount(experts, minlength=experts_total)
        padded = (counts + block - 1) // block * block
        starts, ends = padded.cumsum(0) - padded, padded.cumsum(0)
        rank = torch.arange(slots, device=experts.device) - (counts.cumsum(0) - counts)[experts[order]]
        sorted_ids = torch.full((longest,), slots, dtype=torch.int32, device=experts.device)
        sorted_ids[starts[experts[order]] + rank] = order.int()
        edges = torch.arange(blocks, device=experts.device) * block
        owners = torch.searchsorted(ends, edges, right=True).clamp_max(experts_total - 1)
        return sorted_ids, owners.int(), ends[-1:].int()

    return call


def _moe_unpermute(case: Case) -> Callable[..., Any]:
    def call(mm2_pad: torch.Tensor, fwd_idx: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        copies = mm2_pad[fwd_idx.clamp_min(0).long()].view(*topk_weights.shape, -1).float()
        weights = topk_weights.masked_fill((fwd_idx < 0).view(topk_weights.shape), 0)
        return (copies * weights[..., None]).sum(dim=1).to(mm2_pad.dtype)

    return call


EAGER: dict[str, Make] = {}
LOCAL: dict[str, Make] = {
    "TopkSelectorFwdOp": _topk_selector,
    "FP8QuantFwdOp": _fp8_quant,
    "MoePermuteNopadFwdOp": _moe_permute,
    "MoePermuteAlignFwdOp": _moe_align,
    "MoeUnpermuteFwdOp": _moe_unpermute,
}
OTHERS: tuple[Baseline, ...] = ()
