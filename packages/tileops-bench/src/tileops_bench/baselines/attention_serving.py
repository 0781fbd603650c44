"""Attention as a server calls it: over a cache of latents.

SDPA takes the heads that share a latent as queries of one head: that is what its fused backends read a cache
once for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tileops_bench.baselines.attention import on_backends
from tileops_bench.baselines.base import Baseline, Case, Make

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


EAGER: dict[str, Make] = {}
LOCAL: dict[str, Make] = {_LATENT: _latent_products}
OTHERS: tuple[Baseline, ...] = on_backends(_LATENT, _latent_sdpa, _latent_sdpa_of_keys, local=True)
