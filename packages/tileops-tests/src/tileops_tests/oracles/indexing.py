"""Oracle of top-k selection (torch.topk, within a range of keys).

indexes[b, s, g] are those of the topk greatest scores among keys starts[b, s] .. ends[b, s] - 1.

index_score [B, S, S_kv, G] float32, starts and ends [B, S]; indexes [B, S, G, topk] int32, in any order, -1
where the range is shorter. Equal scores may be chosen among freely, so results are compared as what they
select.

Source: the documentation of torch.topk.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Inputs, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run


def _candidates(call: Call) -> tuple[Tensor, Tensor]:
    """Scores as [B, S, G, S_kv] and which of them lie in their query's range."""
    scores = call["index_score"].transpose(2, 3)
    key = torch.arange(scores.shape[-1], device=scores.device)
    starts, ends = (call[name][:, :, None, None] for name in ("starts", "ends"))
    return scores, (key >= starts) & (key < ends)


def _program(call: Call) -> Outputs:
    """The greatest remaining score, topk times over; the first of equal ones."""
    scores, open_ = _candidates(call)
    left = torch.where(open_, scores, torch.full_like(scores, -math.inf))
    open_ = open_.expand_as(scores).clone()
    chosen = []
    for _ in range(call.param("topk")):
        best = torch.where(open_, left, torch.full_like(left, -math.inf)).amax(dim=-1, keepdim=True)
        hit = open_ & (left == best)
        position = torch.arange(left.shape[-1], device=left.device).expand_as(left)
        index = torch.where(hit, position, torch.full_like(position, left.shape[-1])).amin(
            dim=-1, keepdim=True
        )
        found = hit.any(dim=-1, keepdim=True)
        chosen.append(torch.where(found, index, torch.full_like(index, -1)))
        open_ &= position != index
    return (torch.cat(chosen, dim=-1).to(torch.int32),)


def _opinion(call: Call) -> Outputs:
    """By two stable sorts: by falling score, then keys in range before the others."""
    scores, open_ = _candidates(call)
    open_ = open_.expand_as(scores)
    by_score = torch.argsort(scores, dim=-1, descending=True, stable=True)
    by_range = torch.argsort(open_.gather(-1, by_score).to(torch.int8), dim=-1, descending=True, stable=True)
    index = by_score.gather(-1, by_range)[..., : call.param("topk")]
    return (torch.where(open_.gather(-1, index), index, torch.full_like(index, -1)).to(torch.int32),)


def _selected(call: Call, outputs: Outputs) -> Outputs:
    """The selected scores in falling order, -Inf for -1: equal for all right answers.

    An index that is out of its range or chosen twice becomes NaN, which equals nothing. -0 is 0: the entry
    lets either be chosen.
    """
    scores, open_ = _candidates(call)
    index = outputs[0].to(torch.int64)
    inside = (index >= 0) & (index < scores.shape[-1])
    safe = torch.where(inside, index, torch.zeros_like(index))
    values = scores.gather(-1, safe)
    allowed = inside & open_.expand_as(scores).gather(-1, safe)
    ordered = index.sort(dim=-1)
    twice = torch.zeros_like(inside)
    again = (ordered.values[..., 1:] == ordered.values[..., :-1]) & (ordered.values[..., 1:] >= 0)
    twice.scatter_(-1, ordered.indices[..., 1:], again)
    values = torch.where(index == -1, torch.full_like(values, -math.inf), values)
    wrong = ~(allowed | (index == -1)) | twice
    values = torch.where(wrong, torch.full_like(values, math.nan), values)
    values = torch.where(values == 0, torch.zeros_like(values), values)
    return (values.sort(dim=-1, descending=True).values,)


def selects_nothing_below_what_it_leaves(run: Run, inputs: Inputs, params: Params) -> bool:
    """The least selected score is not below the greatest score in range that was left."""
    call = Call(inputs, params, torch.float64)
    (index,) = run(inputs, params)
    scores, open_ = _candidates(call)
    keys = scores.shape[-1]
    place = torch.where(index < 0, torch.full_like(index, keys), index).to(torch.int64)
    marked = torch.zeros((*scores.shape[:-1], keys + 1), dtype=torch.bool).scatter_(-1, place, True)
    taken = marked[..., :keys]
    left = torch.where(open_ & ~taken, scores, torch.full_like(scores, -math.inf)).amax(dim=-1)
    least = torch.where(taken, scores, torch.full_like(scores, math.inf)).amin(dim=-1)
    return bool(((left <= least) | scores.isnan().any(dim=-1)).all())


ORACLES = (
    Oracle(
        "TopkSelectorFwdOp",
        _program,
        _opinion,
        canonical=_selected,
        properties=(selects_nothing_below_what_it_leaves,),
    ),
)
