"""Products of groups of rows: one right implementation, and ones wrong past the groups or of infinities."""

from __future__ import annotations

import torch


def right(a, b, batch_sizes, batch_offsets, *, transpose_a=False, transpose_b=True):
    groups = [slice(s, s + n) for s, n in zip(batch_offsets.tolist(), batch_sizes.tolist(), strict=True)]
    a, b, dtype = a.float(), b.float(), a.dtype
    b = b.mT if transpose_b else b
    if transpose_a:
        return torch.stack([a[rows].mT @ b[rows] for rows in groups]).to(dtype)
    out = a.new_zeros(a.shape[0], b.shape[2])
    for rows, matrix in zip(groups, b, strict=True):
        out[rows] = a[rows] @ matrix
    return out.to(dtype)


def ones_past_the_last_group(a, b, batch_sizes, *offsets, transpose_a=False, transpose_b=True):
    """In one branch alone."""
    out = right(a, b, batch_sizes, *offsets, transpose_a=transpose_a, transpose_b=transpose_b)
    if not transpose_a and not transpose_b:
        out[int(batch_sizes.sum()) :] = 1
    return out


def multiplies_by_a_mask(a, b, batch_sizes, batch_offsets, *, transpose_a=False, transpose_b=True):
    """An infinity times 0 is NaN."""
    finite = [torch.where(x.isinf(), x * 0, x) for x in (a, b)]
    return right(*finite, batch_sizes, batch_offsets, transpose_a=transpose_a, transpose_b=transpose_b)
