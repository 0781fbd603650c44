"""RMSNorm: one right implementation and plausible wrong ones."""

from __future__ import annotations

import torch
from faults import Faults


def normalise(x, weight, normalized_shape, eps, *, compute=torch.float32):
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    wide = x.to(compute)
    mean_square = (wide * wide).mean(dims, keepdim=True)
    return (wide * torch.rsqrt(mean_square + eps) * weight.to(compute)).to(x.dtype).contiguous()


def right(x, weight, *, normalized_shape, eps=None):
    return normalise(x, weight, normalized_shape, 1e-6 if eps is None else eps)


def wrong_eps(x, weight, *, normalized_shape, eps=None):
    return normalise(x, weight, normalized_shape, 1e-5)


def half_precision_accumulation(x, weight, *, normalized_shape, eps=None):
    columns = weight.numel()
    rows = x.reshape(-1, columns)
    total = torch.zeros(len(rows), dtype=torch.float16)
    for column in rows.half().unbind(-1):
        total = total + column * column
    scale = torch.rsqrt(total.float() / columns + (1e-6 if eps is None else eps))
    return (rows.float() * scale[:, None] * weight.float().flatten()).to(x.dtype).reshape(x.shape)


def ignored_weight(x, weight, *, normalized_shape, eps=None):
    return normalise(x, torch.ones_like(weight), normalized_shape, 1e-6 if eps is None else eps)


def dropped_tail(x, weight, *, normalized_shape, eps=None):
    """Sums whole vectors of 8 only: what is left over does not enter the mean."""
    flat = x.flatten(x.dim() - len(normalized_shape)).float()
    whole = flat[..., : flat.shape[-1] // 8 * 8]
    mean_square = (whole * whole).sum(-1, keepdim=True) / max(flat.shape[-1], 1)
    out = flat * torch.rsqrt(mean_square + (1e-6 if eps is None else eps)) * weight.float().flatten()
    return out.to(x.dtype).reshape(x.shape)


def subtracts_the_mean(x, weight, *, normalized_shape, eps=None):
    dims = tuple(range(x.dim() - len(normalized_shape), x.dim()))
    return right(
        (x.float() - x.float().mean(dims, keepdim=True)).to(x.dtype),
        weight,
        normalized_shape=normalized_shape,
    )


def assumes_contiguous(x, weight, *, normalized_shape, eps=None):
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())[x.storage_offset() :]
    return right(memory[: x.numel()].view(x.shape), weight, normalized_shape=normalized_shape, eps=eps)


faults = Faults(right)
