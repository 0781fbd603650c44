"""Oracles of further decode attention; the softmax and its conventions are those of `attention`.

* Multi-query decode (arXiv:1706.03762): q, o [B, S_q, H, D]; k, v [B, N_kv, H, D]; scale 1 / sqrt(D).
* The same over pages (arXiv:2309.06180): k, v [P, H, D], token t of request b in page block_table[b, t //
  page_size]; causal, query i sees tokens 0 .. real_seqlen_kv[b] - S_q + i, else 0 .. real_seqlen_kv[b] - 1.
* Latent decode (arXiv:2405.04434): q, o [B, H, D], q_pe [B, H, D_pe]; k [B, N_kv, H_kv, D] is key and value,
  k_pe [B, N_kv, H_kv, D_pe] the rest of the key; scale 1 / sqrt(D + D_pe).
* Sparse decode (DeepSeek-V3.2-Exp): q [B, S, H, D + tail], kv [B, S_kv, H_kv, D + tail], o [B, S, H, D],
  values being the first D elements; query s sees the keys that indices [B, S, H_kv, topk] name, -1 naming
  none, and if causal key j only if (j + 1) * stride_kv - 1 <= q_start_index_s + s.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tileops_tests.oracles.attention import (
    Heads,
    attend,
    by_key_head,
    by_query,
    constant_values_pass_through,
    magnitude,
    one_query,
    tokens_past_the_end_do_not_matter,
)
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close


def _dense_heads(call: Call) -> Heads:
    q, k, v = (call[name].transpose(1, 2) for name in "qkv")
    return Heads(call, q, k, v, None, 1 / math.sqrt(q.shape[-1]))


def _paged_heads(call: Call) -> Heads:
    q, page_size, table = call["q"], call.param("page_size"), call["block_table"].to(torch.int64)
    token = torch.arange(table.shape[1] * page_size, device=table.device)
    place = table[:, token // page_size] * page_size + token % page_size
    length = call["real_seqlen_kv"].to(torch.int64)[:, None]
    query = torch.arange(q.shape[1], device=q.device)
    last = length - q.shape[1] + query if call.param("is_causal") else (length - 1).expand(-1, q.shape[1])
    visible = token <= last[..., None]
    k, v = (call[name][place].transpose(1, 2) for name in "kv")
    return Heads(call, q.transpose(1, 2), k, v, visible[:, None], 1 / math.sqrt(q.shape[-1]))


def _latent_heads(call: Call) -> Heads:
    latent = call["k"]
    q = torch.cat((call["q"], call["q_pe"]), dim=-1)
    k = torch.cat((latent, call["k_pe"]), dim=-1)
    grouped = by_key_head(q[:, None], k.shape[2])
    return Heads(call, grouped, k.transpose(1, 2), latent.transpose(1, 2), None, 1 / math.sqrt(q.shape[-1]))


def _named(call: Call) -> tuple[Tensor, Tensor]:
    """Keys named by each query, int64 [B, S, H_kv, topk], and which of them it sees."""
    indices = call["indices"].to(torch.int64)
    seen = indices >= 0
    if call.param("is_causal"):
        position = call.param("q_start_index_s") + torch.arange(indices.shape[1], device=indices.device)
        stride = call.param("stride_kv")
        seen &= (indices + 1) * stride - 1 <= position[:, None, None]
    return indices.clamp(min=0), seen


def _sparse_scale(call: Call) -> float:
    given = call.param("sm_scale")
    return 1 / math.sqrt(call["q"].shape[-1]) if given is None else given


def _sparse_heads(call: Call) -> Heads:
    """Every query a request of its own, with the keys that it names."""
    q, kv = call["q"], call["kv"]
    batch, queries, _, width = q.shape
    key_heads, values = kv.shape[2], width - call.param("dim_tail")
    named, seen = _named(call)
    keys = (
        torch.stack([kv[b, :, g][named[b, :, g]] for b in range(batch) for g in range(key_heads)])
        if batch
        else kv.new_zeros((0, queries, named.shape[-1], width))
    )
    keys = keys.unflatten(0, (batch, key_heads)).transpose(1, 2).flatten(0, 1)
    grouped = q.unflatten(2, (key_heads, q.shape[2] // key_heads)).flatten(0, 1)
    return Heads(call, grouped, keys, keys[..., :values], seen.flatten(0, 1)[:, :, None], _sparse_scale(call))


def _sparse_rows(call: Call, out: Tensor) -> Tensor:
    """[B * S, H_kv, H / H_kv, D] as [B, S, H, D]."""
    return out.unflatten(0, call["q"].shape[:2]).flatten(2, 3)


def _dense(call: Call) -> Outputs:
    return (attend(_dense_heads(call)).transpose(1, 2),)


def _paged(call: Call) -> Outputs:
    return (attend(_paged_heads(call)).transpose(1, 2),)


def _latent(call: Call) -> Outputs:
    return (by_query(attend(_latent_heads(call)), call["q"].shape[1], 1)[:, 0],)


def _sparse(call: Call) -> Outputs:
    return (_sparse_rows(call, attend(_sparse_heads(call))),)


def _dense_magnitude(call: Call) -> Magnitudes:
    return (magnitude(_dense_heads(call)).transpose(1, 2),)


def _paged_magnitude(call: Call) -> Magnitudes:
    return (magnitude(_paged_heads(call)).transpose(1, 2),)


def _latent_magnitude(call: Call) -> Magnitudes:
    return (by_query(magnitude(_latent_heads(call)), call["q"].shape[1], 1)[:, 0],)


def _sparse_magnitude(call: Call) -> Magnitudes:
    return (_sparse_rows(call, magnitude(_sparse_heads(call))),)


def _query_after_query(call: Call) -> Outputs:
    q, k, v = call["q"], call["k"], call["v"]
    out = torch.zeros_like(q)
    for i in range(q.shape[1]):
        out[:, i] = one_query(q[:, i], k, v, q.shape[-1] ** -0.5, None)
    return (out,)


def _page_by_page(call: Call) -> Outputs:
    """Each request's tokens concatenated from its pages by slicing, no further than each query sees."""
    q, page_size = call["q"], call.param("page_size")
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        length = int(call["real_seqlen_kv"][b])
        pages = [int(page) for page in call["block_table"][b, : -(-length // page_size)]]
        k, v = (
            torch.cat([call[name][page * page_size : (page + 1) * page_size] for page in pages])
            for name in "kv"
        )
        for i in range(q.shape[1]):
            seen = length - q.shape[1] + i + 1 if call.param("is_causal") else length
            if seen > 0:
                one = one_query(q[b : b + 1, i], k[None, :seen], v[None, :seen], q.shape[-1] ** -0.5, None)
                out[b, i] = one[0]
    return (out,)


def _latents_absorbed(call: Call) -> Outputs:
    """Scores of the two parts added, key heads by einsum."""
    k, k_pe = call["k"], call["k_pe"]
    batch, heads, dim = call["q"].shape
    groups = k.shape[2]
    q, q_pe = (call[name].unflatten(1, (groups, heads // groups)) for name in ("q", "q_pe"))
    scores = torch.einsum("bgrd,bngd->bgrn", q, k) + torch.einsum("bgrd,bngd->bgrn", q_pe, k_pe)
    weights = torch.softmax(scores * (dim + q_pe.shape[-1]) ** -0.5, dim=-1)
    out = torch.einsum("bgrn,bngd->bgrd", weights, k).reshape(batch, heads, dim)
    masked = torch.isneginf(scores).all(dim=-1).reshape(batch, heads, 1)
    return (out.masked_fill(masked, 0),)


def _masked_instead_of_gathered(call: Call) -> Outputs:
    """All keys, those that are not named or not seen masked."""
    q, kv = call["q"], call["kv"]
    batch, queries, heads, width = q.shape
    keys, groups = kv.shape[1], kv.shape[2]
    named, seen = _named(call)
    mask = torch.zeros((batch, queries, groups, keys + 1), dtype=torch.bool, device=q.device)
    mask.scatter_(-1, torch.where(seen, named, keys), True)
    grouped = q.reshape(batch, queries, groups, heads // groups, width)
    scores = torch.einsum("bsgrd,bngd->bsgrn", grouped, kv) * _sparse_scale(call)
    scores = scores.masked_fill(~mask[:, :, :, None, :keys], -math.inf)
    weights = torch.softmax(scores, dim=-1).masked_fill(torch.isneginf(scores).all(-1, keepdim=True), 0)
    out = torch.einsum("bsgrn,bngd->bsgrd", weights, kv[..., : width - call.param("dim_tail")])
    return (out.flatten(2, 3),)


def values_are_averaged(run: Run, inputs: Inputs, params: Params) -> bool:
    """An element that all latents share is every output's element."""
    cache = {name: inputs[name].clone() for name in ("k", "kv") if name in inputs}
    for tensor in cache.values():
        tensor[..., 0] = 1
    (out,) = run({**inputs, **cache}, params)
    first = out[..., 0]
    return close(first, torch.where(first.isnan() | (first == 0), first, torch.ones_like(first)))


def the_order_of_named_keys_does_not_matter(run: Run, inputs: Inputs, params: Params) -> bool:
    """Sparse: reversing the list of keys changes nothing."""
    reversed_list = {**inputs, "indices": inputs["indices"].flip(-1)}
    return close(run(reversed_list, params)[0], run(inputs, params)[0], 1.0)


def _dense_length(call: Call) -> int:
    return max(call["k"].shape[1], call["q"].shape[-1])


def _paged_length(call: Call) -> int:
    return max(call["block_table"].shape[1] * call.param("page_size"), call["q"].shape[-1])


def _latent_length(call: Call) -> int:
    return max(call["k"].shape[1], call["q"].shape[-1] + call["q_pe"].shape[-1])


def _sparse_length(call: Call) -> int:
    return max(call["indices"].shape[-1], call["q"].shape[-1])


ORACLES = (
    Oracle(
        "MultiHeadAttentionDecodeWithKVCacheFwdOp",
        _dense,
        _query_after_query,
        magnitudes=_dense_magnitude,
        length=_dense_length,
        properties=(constant_values_pass_through,),
    ),
    Oracle(
        "MultiHeadAttentionDecodePagedWithKVCacheFwdOp",
        _paged,
        _page_by_page,
        magnitudes=_paged_magnitude,
        length=_paged_length,
        properties=(constant_values_pass_through, tokens_past_the_end_do_not_matter),
    ),
    Oracle(
        "MultiHeadLatentAttentionDecodeWithKVCacheFwdOp",
        _latent,
        _latents_absorbed,
        magnitudes=_latent_magnitude,
        length=_latent_length,
        properties=(values_are_averaged,),
    ),
    Oracle(
        "DeepSeekSparseAttentionDecodeWithKVCacheFwdOp",
        _sparse,
        _masked_instead_of_gathered,
        magnitudes=_sparse_magnitude,
        length=_sparse_length,
        properties=(values_are_averaged, the_order_of_named_keys_does_not_matter),
    ),
)
