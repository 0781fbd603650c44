"""Oracle of index scores (source: DeepSeek-V3.2-Exp, technical report): which keys a sparse attention reads.

logits[b, s, n, g] = index_k_scale[b, n, g] * sum over heads h of group g of weights[s, h] *
max(index_q[b, s, h] . index_k[b, n, g], 0), h belonging to group h // (heads / kv_group); -inf for keys
outside cu_seqlen_ks[s] .. cu_seqlen_ke[s] - 1. index_q [batch, seq_len, heads, D], index_k [batch,
seq_len_kv, kv_group, D].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import accumulate, contract_as_step
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close


def _hidden(call: Call) -> Tensor:
    """Keys outside a query's range: [seq_len, seq_len_kv, 1]."""
    key = torch.arange(call["index_k"].shape[1], device=call["index_k"].device)
    first, end = (call[name].to(torch.int64)[:, None] for name in ("cu_seqlen_ks", "cu_seqlen_ke"))
    return ((key < first) | (key >= end))[..., None]


def _by_group(call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """q [batch, group, heads / group, seq_len, D], k [batch, group, 1, seq_len_kv, D], weights [group,
    heads / group, seq_len, 1].
    """
    q, k = call["index_q"], call["index_k"]
    groups = k.shape[2]
    share = q.shape[2] // groups
    q = q.unflatten(2, (groups, share)).permute(0, 2, 3, 1, 4)
    weights = call["weights"].t().unflatten(0, (groups, share))[..., None]
    return q, k.permute(0, 2, 1, 3)[:, :, None], weights


def _weighed(call: Call, q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """[batch, seq_len, seq_len_kv, group], head after head."""
    products = contract_as_step(q, k.mT)
    rectified = torch.where(products < 0, torch.zeros_like(products), products)
    total = accumulate((rectified * weights).movedim(2, 0)).permute(0, 2, 3, 1)
    scale = call.get("index_k_scale")
    return total if scale is None else total * scale[:, None]


def _program(call: Call) -> Outputs:
    return (_weighed(call, *_by_group(call)).masked_fill(_hidden(call), -math.inf),)


def _head_by_head(call: Call) -> Outputs:
    """Heads one after another by einsum, with torch's own rectifier."""
    q, k, weights = call["index_q"], call["index_k"], call["weights"]
    share = q.shape[2] // k.shape[2]
    out = q.new_zeros((q.shape[0], q.shape[1], k.shape[1], k.shape[2]))
    for head in range(q.shape[2]):
        scores = torch.einsum("bsd,bnd->bsn", q[:, :, head], k[:, :, head // share]).relu()
        out[..., head // share] += scores * weights[:, head, None]
    scale = call.get("index_k_scale")
    out = out if scale is None else out * scale[:, None]
    return (torch.where(_hidden(call), torch.full_like(out, -math.inf), out),)


def _magnitude(call: Call) -> Magnitudes:
    q, k, weights = (torch.abs(x) for x in _by_group(call))
    return (torch.abs(_weighed(call, q, k, weights)),)


def _cleaned(call: Call, outputs: Outputs) -> Outputs:
    """What stands outside a query's range means nothing unless it is cleaned."""
    (logits,) = outputs
    if call.param("clean_logits"):
        return outputs
    return (logits.masked_fill(_hidden(call).to(logits.device), -math.inf),)


def is_linear_in_the_weights(run: Run, inputs: Inputs, params: Params) -> bool:
    """Doubling the weights doubles the logits of the keys in range; -inf stays."""
    twice = {**inputs, "weights": inputs["weights"].to(torch.float64) * 2}
    return close(run(twice, params)[0], run(inputs, params)[0] * 2)


def opposite_queries_have_no_heads_in_common(run: Run, inputs: Inputs, params: Params) -> bool:
    """max(x, 0) - max(-x, 0) = x: logits of q and -q differ by what products without a rectifier give."""
    call = Call(inputs, params, torch.float64)
    difference = run(inputs, params)[0] - run({**inputs, "index_q": -call["index_q"]}, params)[0]
    q, k, weights = _by_group(call)
    plain = (torch.matmul(q, k.mT) * weights).sum(dim=2).permute(0, 2, 3, 1)
    scale = call.get("index_k_scale")
    plain = plain if scale is None else plain * scale[:, None]
    (size,) = _magnitude(call)
    shown = ~_hidden(call).expand_as(plain) & plain.isfinite() & difference.isfinite()
    return close(difference[shown], plain[shown], size[shown])


def _length(call: Call) -> int:
    return max(call["index_q"].shape[-1], call["index_q"].shape[2])


ORACLES = (
    Oracle(
        "FP8LightningIndexerFwdOp",
        _program,
        _head_by_head,
        magnitudes=_magnitude,
        length=_length,
        canonical=_cleaned,
        properties=(is_linear_in_the_weights, opposite_queries_have_no_heads_in_common),
    ),
)
