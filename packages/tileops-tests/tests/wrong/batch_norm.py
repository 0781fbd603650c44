"""Batch norm: one right implementation and wrong ones, of the output or of what it writes beside it."""

from __future__ import annotations

import torch


def per_channel(value, x):
    return value.reshape(1, -1, *(1,) * (x.dim() - 2))


def normalise(x, mean, variance, weight, bias, eps):
    scale = weight * torch.rsqrt(variance + eps)
    moved = (x.float() - per_channel(mean, x)) * per_channel(scale, x) + per_channel(bias, x)
    return moved.to(x.dtype).contiguous()


def batch(x, correction=0):
    axes = (0, *range(2, x.dim()))
    return x.float().mean(axes), x.float().var(axes, correction=correction)


def right(x, running_mean, running_var, weight, bias, *, training=False, momentum=0.1, eps=1e-5):
    if not training:
        return normalise(x, running_mean, running_var, weight, bias, eps)
    mean, variance = batch(x)
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(batch(x, correction=1)[1], momentum)
    return normalise(x, mean, variance, weight, bias, eps)


def forgets_the_running_statistics(x, running_mean, running_var, *affine, **params):
    return right(x, running_mean.clone(), running_var.clone(), *affine, **params)


def biased_running_variance(x, running_mean, running_var, *affine, momentum=0.1, **params):
    before = running_var.clone()
    out = right(x, running_mean, running_var, *affine, momentum=momentum, **params)
    if params.get("training"):
        running_var.copy_(before.lerp(batch(x)[1], momentum))
    return out


def momentum_of_the_old(x, running_mean, running_var, *affine, momentum=0.1, **params):
    return right(x, running_mean, running_var, *affine, momentum=1 - momentum, **params)


def updates_in_inference(x, running_mean, running_var, *affine, **params):
    out = right(x, running_mean, running_var, *affine, **params)
    if not params.get("training"):
        running_mean.lerp_(batch(x)[0], 0.1)
    return out


def unbiased_output(x, running_mean, running_var, weight, bias, *, training=False, momentum=0.1, eps=1e-5):
    mean, variance = batch(x, correction=1)
    right(x, running_mean, running_var, weight, bias, training=training, momentum=momentum, eps=eps)
    return normalise(x, mean, variance, weight, bias, eps)


def ignores_eps_in_inference(x, *tensors, eps=1e-5, **params):
    return right(x, *tensors, eps=eps if params.get("training") else 1e-5, **params)
