"""Oracles of attention: o_i = sum over visible j of softmax_j(scale * q_i . k_j) v_j, key head h // (H /
H_kv).

* Forward (arXiv:1706.03762, arXiv:2305.13245): q, o [B, S, H, D]; k, v [B, S, H_kv, D]; scale 1 / sqrt(D).
  Causal: query i sees keys 0 .. i. Window (arXiv:2004.05150): keys i - left .. i + right, -1 being no bound.
* Decode: q, o [B, H, D]; k, v [B, N_kv, H_kv, D]. softcap bounds the scores: softcap * tanh(scores /
  softcap).
* Paged decode (arXiv:2309.06180): k, v [P, H_kv, D] in pages of page_size tokens; request b has
  real_seqlen_kv[b] tokens, token t in page block_table[b, t // page_size].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.arithmetic import contract_as_step, exponentials
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close

# Scores in memory at once; requests are taken in groups that stay below it.
_MAX_SCORES = 1 << 25


class Heads(NamedTuple):
    """Operands by key head, the queries that share it side by side: q [B, H_kv, Q, D], k and v [B, H_kv,
    S_kv, D], what is visible (bool, broadcastable to [B, H_kv, Q, S_kv], None: all), factor and bound of the
    scores. `call` says how its intermediate values are rounded.
    """

    call: Call
    q: Tensor
    k: Tensor
    v: Tensor
    visible: Tensor | None
    sm_scale: float
    softcap: float | None = None


def attend(heads: Heads) -> Tensor:
    """[B, H_kv, Q, D], a few requests at a time."""
    if not heads.q.numel() or not heads.v.numel():
        return heads.q.new_zeros((*heads.q.shape[:-1], heads.v.shape[-1]))
    return torch.cat([_attend_few(part) for part in _parts(heads)])


def _attend_few(heads: Heads) -> Tensor:
    scores = _capped(contract_as_step(heads.q, heads.k.mT) * heads.sm_scale, heads.softcap)
    if heads.visible is not None:
        scores = scores.masked_fill(~heads.visible, -math.inf)
    _, powers, total = exponentials(scores, -1)
    weights = heads.call.rounded("probabilities", powers)
    out = contract_as_step(weights, heads.v, heads.visible) / total
    return out.masked_fill((scores == -math.inf).all(dim=-1, keepdim=True), 0)


def _capped(scores: Tensor, softcap: float | None) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _parts(heads: Heads) -> Iterator[Heads]:
    per_request = max(heads.q.shape[1] * heads.q.shape[2] * heads.k.shape[2], 1)
    count = max(_MAX_SCORES // per_request, 1)
    for start in range(0, heads.q.shape[0], count):
        few = slice(start, start + count)
        visible = heads.visible
        if visible is not None and visible.dim() == 4 and visible.shape[0] > 1:
            visible = visible[few]
        yield heads._replace(q=heads.q[few], k=heads.k[few], v=heads.v[few], visible=visible)


def by_key_head(q: Tensor, key_heads: int) -> Tensor:
    """[B, S, H, D] as [B, H_kv, H / H_kv * S, D]: query head h reads key head h // (H / H_kv)."""
    batch, length, heads, dim = q.shape
    grouped = q.transpose(1, 2).reshape(batch, key_heads, heads // max(key_heads, 1), length, dim)
    return grouped.flatten(2, 3)


def by_query(out: Tensor, heads: int, length: int) -> Tensor:
    """The inverse: [B, H_kv, H / H_kv * S, D] as [B, S, H, D]; said by the caller, since S may be 0."""
    batch, _, _, dim = out.shape
    return out.reshape(batch, heads, length, dim).transpose(1, 2)


def _window(call: Call) -> tuple[int, int]:
    """Keys before and after its own position that a query sees; -1 is no bound."""
    left, right = call.params.get("window_size_left", -1), call.params.get("window_size_right", -1)
    return left, 0 if call.param("is_causal") else right


def _visible(call: Call, queries: int, keys: int, device: torch.device) -> Tensor | None:
    left, right = _window(call)
    if left < 0 and right < 0:
        return None
    distance = torch.arange(keys, device=device)[None, :] - torch.arange(queries, device=device)[:, None]
    visible = torch.ones_like(distance, dtype=torch.bool)
    if left >= 0:
        visible &= distance >= -left
    if right >= 0:
        visible &= distance <= right
    return visible


def _forward_heads(call: Call) -> Heads:
    q, k, v = (call[name] for name in "qkv")
    visible = _visible(call, q.shape[1], k.shape[1], q.device)
    if visible is not None:
        visible = visible.repeat(q.shape[2] // max(k.shape[2], 1), 1)
    grouped = by_key_head(q, k.shape[2])
    return Heads(call, grouped, k.transpose(1, 2), v.transpose(1, 2), visible, 1 / math.sqrt(q.shape[-1]))


def _decode_heads(call: Call, k: Tensor, v: Tensor, visible: Tensor | None) -> Heads:
    q, sm_scale = call["q"], call.param("sm_scale")
    factor = 1 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
    grouped = by_key_head(q[:, None], k.shape[2])
    return Heads(call, grouped, k.transpose(1, 2), v.transpose(1, 2), visible, factor, call.param("softcap"))


def _dense_heads(call: Call) -> Heads:
    return _decode_heads(call, call["k"], call["v"], None)


def _paged_heads(call: Call) -> Heads:
    """Every token of every request fetched from its page; those past a request's end are not visible."""
    page_size, table = call.param("page_size"), call["block_table"].to(torch.int64)
    token = torch.arange(table.shape[1] * page_size, device=table.device)
    place = table[:, token // page_size] * page_size + token % page_size
    visible = (token < call["real_seqlen_kv"][:, None])[:, None, None, :]
    return _decode_heads(call, call["k"][place], call["v"][place], visible)


def _heads_and_length(call: Call) -> tuple[int, int]:
    """Of a forward pass's queries [B, S, H, D]."""
    _, length, heads, _ = call["q"].shape
    return heads, length


def _forward(call: Call) -> Outputs:
    return (by_query(attend(_forward_heads(call)), *_heads_and_length(call)),)


def _dense(call: Call) -> Outputs:
    return (by_query(attend(_dense_heads(call)), call["q"].shape[1], 1)[:, 0],)


def _paged(call: Call) -> Outputs:
    return (by_query(attend(_paged_heads(call)), call["q"].shape[1], 1)[:, 0],)


def magnitude(heads: Heads) -> Tensor:
    """sum_j p_j |v_j|, times 1 + the greatest |q| |k_j| behind a score: what a roundoff of scores is
    worth.
    """
    weighed = attend(heads._replace(v=torch.abs(heads.v)))
    length_q, length_k = (torch.linalg.vector_norm(x, dim=-1).nan_to_num(0, 0, 0) for x in (heads.q, heads.k))
    longest = (
        length_k.amax(dim=-1, keepdim=True) if length_k.shape[-1] else length_k.sum(dim=-1, keepdim=True)
    )
    return weighed * (1 + length_q * longest * abs(heads.sm_scale))[..., None]


def _forward_magnitude(call: Call) -> Magnitudes:
    return (by_query(magnitude(_forward_heads(call)), *_heads_and_length(call)),)


def _dense_magnitude(call: Call) -> Magnitudes:
    return (by_query(magnitude(_dense_heads(call)), call["q"].shape[1], 1)[:, 0],)


def _paged_magnitude(call: Call) -> Magnitudes:
    return (by_query(magnitude(_paged_heads(call)), call["q"].shape[1], 1)[:, 0],)


def _torch_forward(call: Call) -> Outputs:
    q, k, v = (call[name].transpose(1, 2) for name in "qkv")
    out = F.scaled_dot_product_attention(q, k, v, is_causal=call.param("is_causal"), enable_gqa=True)
    return (out.transpose(1, 2),)


def _query_by_query(call: Call) -> Outputs:
    """The window as a slice of keys for each query, instead of a mask."""
    q, k, v = call["q"], call["k"], call["v"]
    (left, right), keys = _window(call), k.shape[1]
    out = torch.zeros_like(q)
    for i in range(q.shape[1]):
        first = 0 if left < 0 else max(i - left, 0)
        last = keys if right < 0 else min(i + right + 1, keys)
        out[:, i] = one_query(q[:, i], k[:, first:last], v[:, first:last], 1 / math.sqrt(q.shape[-1]), None)
    return (out,)


def one_query(q: Tensor, k: Tensor, v: Tensor, factor: float, softcap: float | None) -> Tensor:
    """q [B, H, D] over k, v [B, N, H_kv, D], heads grouped by einsum instead of repeated."""
    batch, heads, dim = q.shape
    grouped = q.reshape(batch, k.shape[2], heads // max(k.shape[2], 1), dim)
    scores = torch.einsum("bgrd,bngd->bgrn", grouped, k) * factor
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    out = torch.einsum("bgrn,bngd->bgrd", torch.softmax(scores, dim=-1), v)
    return torch.where(torch.isneginf(scores).all(dim=-1)[..., None], torch.zeros_like(out), out).reshape(
        q.shape
    )


def _factor(call: Call) -> float:
    given = call.param("sm_scale")
    return call["q"].shape[-1] ** -0.5 if given is None else given


def _torch_dense(call: Call) -> Outputs:
    return (one_query(call["q"], call["k"], call["v"], _factor(call), call.param("softcap")),)


def _page_by_page(call: Call) -> Outputs:
    """Each request's tokens concatenated from its pages by slicing, no further than it goes."""
    q, k, v, page_size = call["q"], call["k"], call["v"], call.param("page_size")
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        length = int(call["real_seqlen_kv"][b])
        pages = [int(page) for page in call["block_table"][b, : -(-length // page_size)]]
        slices = [slice(page * page_size, (page + 1) * page_size) for page in pages]
        keys = torch.cat([k[s] for s in slices])[None, :length]
        values = torch.cat([v[s] for s in slices])[None, :length]
        out[b] = one_query(q[b : b + 1], keys, values, _factor(call), call.param("softcap"))[0]
    return (out,)


def constant_values_pass_through(run: Run, inputs: Inputs, params: Params) -> bool:
    """With every value vector equal to 1, every output that is not NaN is 1."""
    (out,) = run({**inputs, "v": torch.ones_like(inputs["v"])}, params)
    return close(out, torch.where(out.isnan(), out, torch.ones_like(out)))


def the_future_does_not_matter(run: Run, inputs: Inputs, params: Params) -> bool:
    """Causal: the first half of the outputs does not depend on the second half of keys and values."""
    if not params["is_causal"] or inputs["k"].shape[1] < 2:
        return True
    half = inputs["k"].shape[1] // 2
    changed = dict(inputs)
    for name in ("k", "v"):
        changed[name] = inputs[name].clone()
        changed[name][:, half:] = 1
    return close(run(changed, params)[0][:, :half], run(inputs, params)[0][:, :half])


def tokens_past_the_end_do_not_matter(run: Run, inputs: Inputs, params: Params) -> bool:
    """Paged: a cache whose tokens outside every request are NaN gives the same outputs."""
    page_size = params["page_size"]
    used = torch.zeros(inputs["k"].shape[0], dtype=torch.bool)
    for length, row in zip(inputs["real_seqlen_kv"].tolist(), inputs["block_table"].tolist(), strict=True):
        for token in range(length):
            used[row[token // page_size] * page_size + token % page_size] = True
    poisoned = {
        name: torch.where(used[:, None, None], inputs[name], torch.full_like(inputs[name], math.nan))
        for name in ("k", "v")
    }
    return close(run({**inputs, **poisoned}, params)[0], run(inputs, params)[0], 1.0)


def _forward_length(call: Call) -> int:
    return max(call["k"].shape[1], call["q"].shape[-1])


def _dense_length(call: Call) -> int:
    return max(call["k"].shape[1], call["q"].shape[-1])


def _paged_length(call: Call) -> int:
    return max(call["block_table"].shape[1] * call.param("page_size"), call["q"].shape[-1])


_FORWARD = {
    "magnitudes": _forward_magnitude,
    "length": _forward_length,
    "properties": (constant_values_pass_through, the_future_does_not_matter),
}

ORACLES = (
    Oracle("MultiHeadAttentionFwdOp", _forward, _torch_forward, **_FORWARD),
    Oracle("GroupedQueryAttentionFwdOp", _forward, _torch_forward, **_FORWARD),
    Oracle("GroupedQueryAttentionSlidingWindowFwdOp", _forward, _query_by_query, **_FORWARD),
    Oracle(
        "GroupedQueryAttentionDecodeWithKVCacheFwdOp",
        _dense,
        _torch_dense,
        magnitudes=_dense_magnitude,
        length=_dense_length,
        properties=(constant_values_pass_through,),
    ),
    Oracle(
        "GroupedQueryAttentionDecodePagedWithKVCacheFwdOp",
        _paged,
        _page_by_page,
        magnitudes=_paged_magnitude,
        length=_paged_length,
        properties=(constant_values_pass_through, tokens_past_the_end_do_not_matter),
    ),
)
