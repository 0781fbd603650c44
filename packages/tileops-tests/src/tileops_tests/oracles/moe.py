"""Oracles of routing permutations (arXiv:2211.15841).

Copy c = t * top_k + j is token t on its way to expert topk_ids[t, j].

* MoePermuteNopad: perm_h holds the rows of the copies of local expert 0, then 1, …, and zeros after them;
  true_sizes and true_offsets say where each expert's part lies, expert_first_token_offset the same with the
  total at its end; fwd_idx[c] is the row of copy c, -1 where its expert is not local. Within an expert
  copies keep their order.
* MoePermuteAlign: sorted_token_ids lists the copies by expert, each expert's part padded to a multiple of
  block_size with the id total_tokens * top_k; expert_ids names the expert of each block, num_tokens_post_pad
  the padded total. Blocks from there on mean nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Inputs, Oracle, Outputs, Params, none_for
from tileops_tests.oracles.properties import Run

_NOT_LOCAL = -1


def _local_experts(call: Call) -> Tensor:
    """Local number of the expert of each copy, -1 where it is elsewhere: int64 [num_tokens * top_k]."""
    experts = call["topk_ids"].reshape(-1).to(torch.int64)
    mapped = call.get("expert_map")
    return experts if mapped is None else mapped.to(torch.int64)[experts]


def _counted(experts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """How many copies each expert has, and of each copy how many before it have the same expert."""
    sizes = torch.zeros(count, dtype=torch.int64, device=experts.device)
    rank = torch.zeros_like(experts)
    for expert in range(count):
        mine = torch.nonzero(experts == expert).reshape(-1)
        sizes[expert] = mine.numel()
        rank[mine] = torch.arange(mine.numel(), device=experts.device)
    return sizes, rank


def _starts(sizes: Tensor) -> Tensor:
    """0, then the running sum of the sizes."""
    return torch.cat((torch.zeros_like(sizes[:1]), sizes.cumsum(dim=0)))


def _nopad(call: Call) -> Outputs:
    hidden, experts = call["hidden_states"], _local_experts(call)
    top_k = call["topk_ids"].shape[1]
    sizes, rank = _counted(experts, call.param("num_experts_local"))
    starts = _starts(sizes)
    local = experts != _NOT_LOCAL
    row = torch.where(local, starts[experts.clamp(min=0)] + rank, torch.full_like(experts, -1))
    permuted = torch.zeros((experts.numel(), hidden.shape[1]), dtype=hidden.dtype, device=hidden.device)
    copies = torch.arange(experts.numel(), device=hidden.device)
    permuted[row[local]] = hidden[copies[local] // top_k]
    return permuted, starts[:-1].to(torch.int32), sizes.to(torch.int32), starts, row.to(torch.int32)


def _nopad_by_sorting(call: Call) -> Outputs:
    hidden, experts = call["hidden_states"], _local_experts(call)
    count, top_k = call.param("num_experts_local"), call["topk_ids"].shape[1]
    order = torch.argsort(torch.where(experts < 0, count, experts), stable=True)
    order = order[: int((experts >= 0).sum())]
    permuted = torch.zeros((experts.numel(), hidden.shape[1]), dtype=hidden.dtype, device=hidden.device)
    permuted[: order.numel()] = hidden.index_select(0, order // top_k)
    row = torch.full_like(experts, -1)
    row[order] = torch.arange(order.numel(), device=experts.device)
    sizes = torch.bincount(experts[experts >= 0], minlength=count)
    ends = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    return permuted, ends[:-1].to(torch.int32), sizes.to(torch.int32), ends, row.to(torch.int32)


def _align(call: Call) -> Outputs:
    """Walk over the experts, one block of the output after another."""
    experts, block = call["topk_ids"].reshape(-1).to(torch.int64), call.param("block_size")
    count = call.param("num_experts")
    capacity = experts.numel() + count * (block - 1)
    sizes, rank = _counted(experts, count)
    blocks = (sizes + block - 1) // block
    first_block = _starts(blocks)
    ids = torch.full((capacity,), experts.numel(), dtype=torch.int32, device=experts.device)
    ids[first_block[experts] * block + rank] = torch.arange(
        experts.numel(), dtype=torch.int32, device=ids.device
    )
    place = torch.arange(-(-capacity // block), device=experts.device)
    inside = (place[:, None] >= first_block[:-1]) & (place[:, None] < first_block[1:])
    owner = (inside * torch.arange(count, device=experts.device)).sum(dim=1)
    owner = torch.where(inside.any(dim=1), owner, torch.full_like(owner, -1))
    return ids, owner.to(torch.int32), (first_block[-1:] * block).to(torch.int32)


def _align_by_lists(call: Call) -> Outputs:
    """Python lists, expert by expert."""
    experts, block = call["topk_ids"].reshape(-1).tolist(), call.param("block_size")
    count, pad = call.param("num_experts"), len(experts)
    ids: list[int] = []
    owners: list[int] = []
    for expert in range(count):
        mine = [copy for copy, e in enumerate(experts) if e == expert]
        filled = mine + [pad] * (-len(mine) % block)
        ids += filled
        owners += [expert] * (len(filled) // block)
    capacity = pad + count * (block - 1)
    padded = ids + [pad] * (capacity - len(ids))
    owners += [-1] * (-(-capacity // block) - len(owners))
    return tuple(torch.tensor(values, dtype=torch.int32) for values in (padded, owners, [len(ids)]))


def _meaningful(call: Call, outputs: Outputs) -> Outputs:
    """What lies past num_tokens_post_pad cleared: ids to the padding id, experts to -1."""
    ids, owners, total = outputs
    end, block, pad = int(total[0]), call.param("block_size"), call["topk_ids"].numel()
    position = torch.arange(ids.numel(), device=ids.device)
    place = torch.arange(owners.numel(), device=owners.device)
    return (
        torch.where(position < end, ids, torch.full_like(ids, pad)),
        torch.where(place * block < end, owners, torch.full_like(owners, -1)),
        total,
    )


def every_local_copy_has_its_row(run: Run, inputs: Inputs, params: Params) -> bool:
    """fwd_idx of the local copies is a permutation of the first rows, each inside its expert's part."""
    outputs = run(inputs, params)
    starts, row = outputs[3], outputs[4].to(torch.int64)
    experts = _local_experts(Call(inputs, params, torch.float64))
    local = experts >= 0
    used = row[local]
    complete = torch.equal(used.sort().values, torch.arange(used.numel()))
    inside = (used >= starts[experts[local]]) & (used < starts[experts[local] + 1])
    return complete and bool(inside.all()) and bool((row[~local] == -1).all())


def every_copy_is_listed_once_in_its_experts_blocks(run: Run, inputs: Inputs, params: Params) -> bool:
    """Ids below the padding id are a permutation, and each stands in a block of its own expert."""
    ids, owners, _ = run(inputs, params)
    experts = inputs["topk_ids"].reshape(-1)
    place = torch.nonzero(ids < experts.numel()).reshape(-1)
    listed = ids[place].to(torch.int64)
    owner = owners[place // params["block_size"]]
    return torch.equal(listed.sort().values, torch.arange(experts.numel())) and torch.equal(
        owner, experts[listed]
    )


ORACLES = (
    Oracle(
        "MoePermuteNopadFwdOp",
        _nopad,
        _nopad_by_sorting,
        magnitudes=none_for(5),
        properties=(every_local_copy_has_its_row,),
    ),
    Oracle(
        "MoePermuteAlignFwdOp",
        _align,
        _align_by_lists,
        magnitudes=none_for(3),
        canonical=_meaningful,
        properties=(every_copy_is_listed_once_in_its_experts_blocks,),
    ),
)
