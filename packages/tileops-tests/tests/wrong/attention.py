"""Causal grouped-query attention: one right implementation and plausible wrong ones."""

from __future__ import annotations

import torch
from faults import Faults


def attend(q, k, v, *, is_causal=True, diagonal=0, scale=None, tiled_heads=False, compute=torch.float32):
    group = q.shape[2] // k.shape[2]
    query, key, value = (x.to(compute).transpose(1, 2) for x in (q, k, v))
    key, value = (
        x.repeat(1, group, 1, 1) if tiled_heads else x.repeat_interleave(group, 1) for x in (key, value)
    )
    scores = query @ key.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(diagonal)
        scores = scores.masked_fill(~allowed, -torch.inf)
    weights = torch.softmax(scores, -1).masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)
    return (weights @ value).transpose(1, 2).to(q.dtype).contiguous()


def right(q, k, v, *, is_causal=True):
    return attend(q, k, v, is_causal=is_causal)


def mask_off_by_one(q, k, v, *, is_causal=True):
    return attend(q, k, v, is_causal=is_causal, diagonal=1)


def mask_hides_the_diagonal(q, k, v, *, is_causal=True):
    return attend(q, k, v, is_causal=is_causal, diagonal=-1)


def no_mask(q, k, v, *, is_causal=True):
    return attend(q, k, v, is_causal=False)


def mask_always(q, k, v, *, is_causal=True):
    return attend(q, k, v, is_causal=True)


def no_scale(q, k, v, *, is_causal=True):
    return attend(q, k, v, is_causal=is_causal, scale=1.0)


def scale_of_the_whole_width(q, k, v, *, is_causal=True):
    return attend(q, k, v, is_causal=is_causal, scale=(q.shape[-1] * q.shape[2]) ** -0.5)


def heads_tiled_instead_of_grouped(q, k, v, *, is_causal=True):
    return attend(q, k, v, is_causal=is_causal, tiled_heads=True)


def half_precision_throughout(q, k, v, *, is_causal=True):
    group = q.shape[2] // k.shape[2]
    query, key, value = (x.to(torch.float16).transpose(1, 2) for x in (q, k, v))
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = query @ key.transpose(-1, -2) * q.shape[-1] ** -0.5
    if is_causal:
        scores = scores.masked_fill(
            ~torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(), -torch.inf
        )
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    total = torch.zeros_like(weights[..., 0])
    out = torch.zeros_like(query)
    for j in range(key.shape[2]):
        total = total + weights[..., j]
        out = out + weights[..., j, None] * value[:, :, None, j]
    return (out / total[..., None]).transpose(1, 2).to(q.dtype).contiguous()


def fp8_probabilities(q, k, v, *, is_causal=True):
    """Rounds the probabilities one step further than the entry lets."""
    group = q.shape[2] // k.shape[2]
    query, key, value = (x.float().transpose(1, 2) for x in (q, k, v))
    scores = query @ key.repeat_interleave(group, 1).mT * q.shape[-1] ** -0.5
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    out = weights.to(torch.float8_e4m3fn).float() @ value.repeat_interleave(group, 1)
    return (out / weights.sum(-1, keepdim=True)).transpose(1, 2).to(q.dtype).contiguous()


def dropped_keys(q, k, v, *, is_causal=True):
    """Whole tiles of 32 keys only."""
    whole = max(k.shape[1] // 32 * 32, 1)
    key, value = k.clone(), v.clone()
    key[:, whole:], value[:, whole:] = 0, 0
    return attend(q, key, value, is_causal=is_causal)


def without_maximum(q, k, v, *, is_causal=True):
    group = q.shape[2] // k.shape[2]
    query, key, value = (x.float().transpose(1, 2) for x in (q, k, v))
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    weights = torch.exp(query @ key.transpose(-1, -2) * q.shape[-1] ** -0.5)
    if is_causal:
        weights = weights.tril()
    return (weights @ value / weights.sum(-1, keepdim=True)).transpose(1, 2).to(q.dtype).contiguous()


faults = Faults(right)
