"""Convolution: one right implementation and plausible wrong ones."""

from __future__ import annotations

import torch.nn.functional as F


def right(input, weight, bias=None, **params):
    wide = (None if x is None else x.float() for x in (input, weight, bias))
    return F.conv2d(*wide, **params).to(input.dtype).contiguous()


def flips_the_filter(input, weight, bias=None, **params):
    return right(input, weight.flip(2, 3), bias, **params)


def odd_padding_in_front(input, weight, bias=None, *, padding=0, dilation=1, **params):
    if padding != "same":
        return right(input, weight, bias, padding=padding, dilation=dilation, **params)
    steps = (dilation, dilation) if isinstance(dilation, int) else dilation
    reach = [step * (size - 1) for step, size in zip(steps, weight.shape[2:], strict=True)]
    ends = [amount for total in reversed(reach) for amount in (total - total // 2, total // 2)]
    return right(F.pad(input, ends), weight, bias, dilation=dilation, **params)


def groups_interleaved(input, weight, bias=None, *, groups=1, **params):
    order = input.unflatten(1, (-1, groups)).transpose(1, 2).flatten(1, 2)
    return right(order, weight, bias, groups=groups, **params)
