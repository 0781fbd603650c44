"""Attention: every SDPA backend by name, FlexAttention for windows, FlashInfer, and gather + SDPA for paged
caches.

Tensors are (batch, sequence, heads, head_dim) in the manifest and (batch, heads, sequence, head_dim) in SDPA;
the transposes are views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tileops_bench.baselines.base import CPU_AND_CUDA, CUDA, Baseline, Case, Make, UnsupportedCase, compiled

_BACKENDS: dict[str, tuple[SDPBackend, tuple[str, ...]]] = {
    "sdpa-flash": (SDPBackend.FLASH_ATTENTION, CPU_AND_CUDA),
    "sdpa-cudnn": (SDPBackend.CUDNN_ATTENTION, CUDA),
    "sdpa-efficient": (SDPBackend.EFFICIENT_ATTENTION, CUDA),
    "sdpa-math": (SDPBackend.MATH, CPU_AND_CUDA),
}
_DENSE = ("MultiHeadAttentionFwdOp", "GroupedQueryAttentionFwdOp")
_WINDOW = "GroupedQueryAttentionSlidingWindowFwdOp"
_DECODE = "GroupedQueryAttentionDecodeWithKVCacheFwdOp"
_PAGED = "GroupedQueryAttentionDecodePagedWithKVCacheFwdOp"
_WORKSPACE_BYTES = 128 << 20


def _sdpa(q: Any, k: Any, v: Any, **options: Any) -> torch.Tensor:
    grouped = q.shape[2] != k.shape[2]
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=grouped, **options
    )
    return out.transpose(1, 2)


def _on_backend(make: Make, backend: SDPBackend) -> Make:
    def pinned(case: Case) -> Callable[..., Any]:
        function = make(case)

        def call(*inputs: Any) -> Any:
            try:
                with sdpa_kernel(backend):
                    return function(*inputs)
            except RuntimeError as error:
                if "No available kernel" in str(error) or "no viable backend" in str(error).lower():
                    raise UnsupportedCase(str(error).splitlines()[0]) from error
                raise

        return call

    pinned.__module__ = make.__module__
    return pinned


def on_backends(op: str, make: Make, narrow: Make | None = None, local: bool = False) -> tuple[Baseline, ...]:
    """A baseline of an op for every backend of SDPA.

    Args:
        make: calls SDPA.
        narrow: the same for flash, whose values must be as wide as the keys; None where they are.
        local: whether that is a composition.
    """
    makes = {"sdpa-flash": narrow or make}
    return tuple(
        Baseline(op, name, _on_backend(makes.get(name, make), backend), targets=targets, local=local)
        for name, (backend, targets) in _BACKENDS.items()
    )


def _dense(case: Case) -> Callable[..., Any]:
    causal = case.params["is_causal"]
    return lambda q, k, v: _sdpa(q, k, v, is_causal=causal)


def window_mask(q_len: int, kv_len: int, params: Any, device: Any) -> torch.Tensor:
    """True where query i may see key j: causal, and within the window on either side (-1: unlimited)."""
    i = torch.arange(q_len, device=device)[:, None]
    j = torch.arange(kv_len, device=device)[None, :]
    seen = torch.ones(q_len, kv_len, dtype=torch.bool, device=device)
    if params["is_causal"]:
        seen &= j <= i
    if params["window_size_left"] >= 0:
        seen &= j >= i - params["window_size_left"]
    if params["window_size_right"] >= 0:
        seen &= j <= i + params["window_size_right"]
    return seen


def _window(case: Case) -> Callable[..., Any]:
    q, k = case.inputs["q"], case.inputs["k"]
    mask = window_mask(q.shape[1], k.shape[1], case.params, q.device)
    return lambda q, k, v: _sdpa(q, k, v, attn_mask=mask)


def _flex_window(case: Case) -> Callable[..., Any]:
    """FlexAttention skips the blocks that the window hides; its block mask is made once, outside the timed
    call."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, params = case.inputs["q"], case.inputs["k"], case.params
    left, right, causal = params["window_size_left"], params["window_size_right"], params["is_causal"]

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        ok = (j <= i) if causal else (j == j)
        ok = ok & (j >= i - left) if left >= 0 else ok
        return ok & (j <= i + right) if right >= 0 else ok

    block_mask = create_block_mask(seen, None, None, q.shape[1], k.shape[1], device=str(q.device))
    grouped = q.shape[2] != k.shape[2]
    attend = compiled(flex_attention)

    def call(q: Any, k: Any, v: Any) -> torch.Tensor:
        out = attend(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), block_mask=block_mask, enable_gqa=grouped
        )
        return out.transpose(1, 2)

    return call


def _decode(case: Case) -> Callable[..., Any]:
    options = _scale_option(case)
    if case.params.get("softcap"):
        return _softcap_decode(case.params["softcap"], options.get("scale"))
    return lambda q, k, v: _sdpa(q.unsqueeze(1), k, v, **options).squeeze(1)


def _scale_option(case: Case) -> dict[str, Any]:
    scale = case.params.get("sm_scale")
    return {} if scale is None else {"scale": scale}


def _softcap_decode(softcap: float, scale: float | None) -> Callable[..., Any]:
    """SDPA has no score cap: the same arithmetic in elementary operations."""

    def call(q: Any, k: Any, v: Any, mask: Any = None) -> torch.Tensor:
        batch, heads, dim = q.shape
        groups = heads // k.shape[2]
        grouped = q.reshape(batch, k.shape[2], groups, dim).float()
        scores = torch.einsum("bhgd,bnhd->bhgn", grouped, k.float()) * (scale or dim**-0.5)
        scores = softcap * torch.tanh(scores / softcap)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        out = torch.einsum("bhgn,bnhd->bhgd", scores.softmax(-1), v.float())
        return out.reshape(batch, heads, dim).to(q.dtype)

    return call


def _paged(case: Case) -> Callable[..., Any]:
    """Gather the pages that the table names into a dense cache, then SDPA with a length mask."""
    page, params = case.params["page_size"], case.params
    options = _scale_option(case)
    capped = _softcap_decode(params["softcap"], params.get("sm_scale")) if params.get("softcap") else None
    within = torch.arange(page, device=case.inputs["q"].device)

    def call(q: Any, k: Any, v: Any, real_seqlen_kv: Any, block_table: Any) -> torch.Tensor:
        rows = (block_table.long()[:, :, None] * page + within).flatten(1)
        keys, values = k[rows], v[rows]
        positions = torch.arange(rows.shape[1], device=q.device)
        mask = positions[None, :] < real_seqlen_kv[:, None]
        if capped is not None:
            return capped(q, keys, values, mask)
        return _sdpa(q.unsqueeze(1), keys, values, attn_mask=mask[:, None, None, :], **options).squeeze(1)

    return call


def _flashinfer_prefill(case: Case) -> Callable[..., Any]:
    """FlashInfer's ragged prefill with equal lengths; planning is done once, as a server does per batch."""
    import flashinfer

    q, k = case.inputs["q"], case.inputs["k"]
    right = case.params.get("window_size_right", -1)
    if right > 0 or (right == 0 and not case.params["is_causal"]):
        raise UnsupportedCase("no window on the right")
    batch, q_len, heads, dim = q.shape
    kv_len, kv_heads = k.shape[1:3]
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    steps = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    wrapper.plan(
        steps * q_len, steps * kv_len, heads, kv_heads, dim,
        causal=case.params["is_causal"], window_left=case.params.get("window_size_left", -1),
        q_data_type=q.dtype, kv_data_type=k.dtype,
    )  # fmt: skip

    def call(q: Any, k: Any, v: Any) -> torch.Tensor:
        return wrapper.run(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)).view(q.shape)

    return call


_SOURCES: dict[str, Make] = {
    **dict.fromkeys(_DENSE, _dense),
    _WINDOW: _window,
    _DECODE: _decode,
    _PAGED: _paged,
}

EAGER: dict[str, Make] = {}
LOCAL: dict[str, Make] = {_PAGED: _paged}
_SDPA = tuple(
    baseline for op, make in _SOURCES.items() for baseline in on_backends(op, make, local=op == _PAGED)
)
_FLASHINFER = tuple(
    Baseline(op, "flashinfer", _flashinfer_prefill, "flashinfer-python", "flashinfer", CUDA)
    for op in (*_DENSE, _WINDOW)
)
OTHERS: tuple[Baseline, ...] = (
    *_SDPA,
    Baseline(_WINDOW, "flex-attention", _flex_window, targets=CUDA),
    *_FLASHINFER,
)
