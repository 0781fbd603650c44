"""Pooling with indices: one right implementation and plausible wrong ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def right(input, **params):
    values, indices = F.max_pool2d(input, **params, return_indices=True)
    return values.contiguous(), indices.contiguous()


def padding_is_zero(input, *, padding=0, **params):
    pads = (padding, padding) if isinstance(padding, int) else padding
    padded = F.pad(input, (pads[1], pads[1], pads[0], pads[0]))
    values, indices = F.max_pool2d(padded, **params, return_indices=True)
    row = indices // padded.shape[3] - pads[0]
    column = indices % padded.shape[3] - pads[1]
    return values, row * input.shape[3] + column


def without_the_last_window(input, *, ceil_mode=False, **params):
    values, indices = right(input, ceil_mode=ceil_mode, **params)
    floor = F.max_pool2d(input, **params)
    values[:, :, floor.shape[2] :] = 0
    values[:, :, :, floor.shape[3] :] = 0
    return values, indices


def last_of_equal_ones(input, **params):
    """Moves on to the next element where that is equal and its window's value too."""
    values, indices = right(input, **params)
    flat, at = input.flatten(2), indices.flatten(2)
    following = (at + 1).clamp(max=flat.shape[2] - 1)
    equal = (flat.gather(2, at) == flat.gather(2, following)).reshape(indices.shape)
    return values, torch.where(equal, following.reshape(indices.shape), indices)


def first_nan(input, **params):
    values, indices = right(input, **params)
    numbers = right(input.nan_to_num(float("inf")), **params)[1]
    return values, torch.where(values.isnan(), numbers, indices)
