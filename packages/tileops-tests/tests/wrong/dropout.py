"""Dropout: one right implementation, and one for which dropping everything is dropping nothing."""

from __future__ import annotations

import torch

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)


def words(count, seed):
    a = torch.arange(-(-count // 4))
    b, c, d = a >> 32, torch.zeros_like(a), torch.zeros_like(a)
    a, k0, k1 = a & MASK, seed & MASK, seed >> 32 & MASK
    for _ in range(10):
        (high0, low0), (high1, low1) = (product(m, x) for m, x in zip(MULTIPLIERS, (a, c), strict=True))
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
        k0, k1 = k0 + 0x9E3779B9 & MASK, k1 + 0xBB67AE85 & MASK
    return torch.stack((a, b, c, d), 1).flatten()[:count]


def product(factor, x):
    low = factor * (x & 0xFFFF)
    high = factor * (x >> 16) + (low >> 16)
    return high >> 16, (high << 16 | low & 0xFFFF) & MASK


def right(input, *, p=0.5, seed=0, training=True):
    if not training:
        return input.clone(memory_format=torch.contiguous_format)
    kept = (words(input.numel(), seed) >= p * 2.0**32).reshape(input.shape)
    scale = 1 / (1 - p) if p < 1 else 0.0
    return (input.float() * (kept * scale)).to(input.dtype).contiguous()


def drops_nothing_at_one(input, *, p=0.5, seed=0, training=True):
    return right(input, p=p, seed=seed, training=training and p != 1)
