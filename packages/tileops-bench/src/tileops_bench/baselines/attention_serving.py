"""Attention as a server calls it: over packed requests, and over a cache of latents.

SDPA takes the heads that share a latent as queries of one head: that is what its fused backends read a cache
once for. Packed requests are called one after the other, or all at once by torch's flash attention, which
reads offsets on the device.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

from tileops_bench.baselines.attention import on_backends
from tileops_bench.baselines.base import CUDA, Baseline, Case, Make, UnsupportedCase

_PACKED = ("GroupedQueryAttentionSlidingWindowVarlenFwdOp", "GroupedQueryAttentionPrefillFwdOp")
_LATENT = "MultiHeadLatentAttentionDecodeWithKVCacheFwdOp"


def _by_latent(query: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[B, H, D] as [B, H_kv, H / H_kv, D]."""
    return query.unflatten(1, (kv_heads, query.shape[1] // kv_heads))


def _whole(q: Any, q_pe: Any, k: Any, k_pe: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys of both parts; torch copies the cache for that."""
    query = _by_latent(torch.cat((q, q_pe), dim=-1), k.shape[2])
    return query, torch.cat((k, k_pe), dim=-1).transpose(1, 2)


def _latent_sdpa(case: Case) -> Callable[..., Any]:
    def call(q: Any, q_pe: Any, k: Any, k_pe: Any) -> torch.Tensor:
        query, key = _whole(q, q_pe, k, k_pe)
        return F.scaled_dot_product_attention(query, key, k.transpose(1, 2)).flatten(1, 2)

    return call


def _latent_sdpa_of_keys(case: Case) -> Callable[..., Any]:
    """Values are whole keys, the result of whose last elements is dropped."""

    def call(q: Any, q_pe: Any, k: Any, k_pe: Any) -> torch.Tensor:
        query, key = _whole(q, q_pe, k, k_pe)
        return F.scaled_dot_product_attention(query, key, key)[..., : k.shape[-1]].flatten(1, 2)

    return call


def _latent_products(case: Case) -> Callable[..., Any]:
    """Three products by cuBLAS, which read the cache in place, around a float32 softmax."""
    scale = (case.inputs["q"].shape[2] + case.inputs["q_pe"].shape[2]) ** -0.5

    def call(q: Any, q_pe: Any, k: Any, k_pe: Any) -> torch.Tensor:
        latents, positions = k.transpose(1, 2), k_pe.transpose(1, 2)
        scores = _by_latent(q, k.shape[2]) @ latents.mT
        scores = scores + _by_latent(q_pe, k.shape[2]) @ positions.mT
        weights = (scores.float() * scale).softmax(-1).to(q.dtype)
        return (weights @ latents).flatten(1, 2)

    return call


def _seen(case: Case, queries: int, keys: int) -> torch.Tensor:
    """True where a query of a request sees a key of it; the last query stands at the last key."""
    device = case.inputs["q"].device
    position = torch.arange(queries, device=device)[:, None] + keys - queries
    key = torch.arange(keys, device=device)
    left, right = case.params["window_size_left"], case.params["window_size_right"]
    right = 0 if case.params["is_causal"] else right
    seen = torch.ones(queries, keys, dtype=torch.bool, device=device)
    seen = seen & (key >= position - left) if left >= 0 else seen
    return seen & (key <= position + right) if right >= 0 else seen


def _request(case: Case, q: Any, k: Any, v: Any, factors: Any) -> torch.Tensor:
    """One request in elementary operations: what SDPA has no cap and no factors for."""
    group = q.shape[1] // k.shape[1]
    q_scale, k_scale, v_scale = factors
    query = q.float().unflatten(1, (k.shape[1], group)) * q_scale[:, None, None]
    key, value = k.float() * k_scale[:, None], v.float() * v_scale[:, None]
    scale, cap = case.params.get("sm_scale"), case.params.get("softcap")
    scores = torch.einsum("qhgd,khd->hgqk", query, key) * (q.shape[2] ** -0.5 if scale is None else scale)
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    seen = _seen(case, q.shape[0], k.shape[0])
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).masked_fill(~seen, 0)
    return torch.einsum("hgqk,khd->qhgd", weights, value).flatten(1, 2)


def _packed(case: Case) -> Callable[..., Any]:
    """Request after request; lengths come from the offsets, for which the device is waited for."""
    narrow = case.inputs["q"].element_size() == 1

    def call(q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, *factors: Any) -> torch.Tensor:
        kind = case.dtype_param("dtype") if narrow else q.dtype
        one = torch.ones(k.shape[1], device=q.device)
        out = torch.zeros(q.shape, dtype=kind, device=q.device)
        spans = zip(pairwise(starts_q.tolist()), pairwise(starts_k.tolist()), strict=True)
        for r, ((q0, q1), (k0, k1)) in enumerate(spans):
            given = [one if f is None else f[r] for f in factors or (None, None, None)]
            if q1 > q0 and k1 > k0:
                out[q0:q1] = _request(case, q[q0:q1], k[k0:k1], v[k0:k1], given).to(kind)
        return out

    return call


def _torch_varlen(case: Case) -> Callable[..., Any]:
    """Torch's flash attention by offsets, which the device reads."""
    params, q = case.params, case.inputs["q"]
    if q.element_size() != 2 or params.get("softcap") is not None:
        raise UnsupportedCase("16-bit operands without a cap only")
    left, right = params["window_size_left"], params["window_size_right"]
    causal, longest = params["is_causal"], params["max_seqlen_q"]
    window = {"window_size_left": left, "window_size_right": 0 if causal else right}
    if left < 0 and window["window_size_right"] <= 0 and (causal or right < 0):
        window = {}
    longest_k = params.get("max_seqlen_kv", case.inputs["k"].shape[0])

    def call(q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, *_: Any) -> torch.Tensor:
        return torch.ops.aten._flash_attention_forward(
            q, k, v, starts_q, starts_k, longest, longest_k, 0.0, causal, False,
            scale=params.get("sm_scale"), **window,
        )[0]  # fmt: skip

    return call


EAGER: dict[str, Make] = {}
LOCAL: dict[str, Make] = {_LATENT: _latent_products}
OTHERS: tuple[Baseline, ...] = (
    *on_backends(_LATENT, _latent_sdpa, _latent_sdpa_of_keys, local=True),
    *(Baseline(op, "composition", _packed, local=True) for op in _PACKED),
    *(Baseline(op, "torch-varlen", _torch_varlen, targets=CUDA) for op in _PACKED),
)
