"""Ops that subtract a mean, from each element as they should, or from a sum: E[x^2] - E[x]^2, in float32."""

from __future__ import annotations

import torch


def two_passes(x, axes):
    mean = x.mean(axes, keepdim=True)
    return mean, (x - mean).square().mean(axes, keepdim=True)


def difference_of_squares(x, axes):
    mean = x.mean(axes, keepdim=True)
    return mean, (x.square().mean(axes, keepdim=True) - mean.square()).clamp(min=0)


def product_of_deviations(dy, x, mean, axes):
    return (dy * (x - mean)).sum(axes)


def difference_of_products(dy, x, mean, axes):
    return (dy * x).sum(axes) - mean.flatten() * dy.sum(axes)


def axes_of(x, dim):
    named = (dim,) if isinstance(dim, int) else dim
    return tuple(named or range(x.dim()))


def per_channel(value, x):
    return value.float().reshape(1, -1, *(1,) * (x.dim() - 2))


class Ops:
    """The ops that subtract a mean, each by its functional name, around one way to compute the variance and
    the product with a gradient.
    """

    def __init__(self, moments, product):
        self.moments, self.product = moments, product

    def _unbiased(self, x, dim, correction):
        axes = axes_of(x, dim)
        mean, variance = self.moments(x.float(), axes)
        count = x.numel() // max(mean.numel(), 1)
        return mean, variance * torch.tensor(count, dtype=torch.float32) / max(count - correction, 0), axes

    def _shaped(self, value, axes, keepdim, dtype):
        kept = value if keepdim else value.squeeze(axes)
        return kept.to(dtype).contiguous()

    def var(self, x, *, dim=None, correction=1, keepdim=False):
        _, variance, axes = self._unbiased(x, dim, correction)
        return self._shaped(variance, axes, keepdim, x.dtype)

    def std(self, x, *, dim=None, correction=1, keepdim=False):
        _, variance, axes = self._unbiased(x, dim, correction)
        return self._shaped(variance.sqrt(), axes, keepdim, x.dtype)

    def var_mean(self, x, *, dim=None, correction=1, keepdim=False):
        mean, variance, axes = self._unbiased(x, dim, correction)
        return tuple(self._shaped(value, axes, keepdim, x.dtype) for value in (variance, mean))

    def _normalised(self, x, axes, eps):
        mean, variance = self.moments(x, axes)
        return (x - mean) * torch.rsqrt(variance + eps)

    def layer_norm(self, x, weight, bias, *, normalized_shape, eps=1e-5):
        axes = tuple(range(x.dim() - len(normalized_shape), x.dim()))
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        return (self._normalised(x.float(), axes, eps) * weight.float() + bias.float()).to(x.dtype)

    def fused_add_layer_norm(self, x, residual, weight, bias, *, eps=1e-5):
        added = (x.float() + residual.float()).to(x.dtype)
        return self.layer_norm(added, weight, bias, normalized_shape=weight.shape, eps=eps), added

    def ada_layer_norm(self, x, scale, shift, *, eps=1e-5):
        return (self._normalised(x.float(), (-1,), eps) * scale.float() + shift.float()).to(x.dtype)

    def ada_layer_norm_zero(self, x, scale, shift, gate, *, eps=1e-5):
        inner = self._normalised(x.float(), (-1,), eps) * scale.float() + shift.float()
        return (inner * gate.float()).to(x.dtype)

    def group_norm(self, x, weight, bias, *, num_groups, eps=1e-5):
        grouped = x.float().reshape(x.shape[0], num_groups, -1)
        return self._affine(self._normalised(grouped, (2,), eps).reshape(x.shape), weight, bias, x.dtype)

    def _affine(self, out, weight, bias, dtype):
        if weight is not None:
            out = out * per_channel(weight, out) + per_channel(bias, out)
        return out.to(dtype).contiguous()

    def batch_norm(
        self, x, running_mean, running_var, weight, bias, *, training=False, momentum=0.1, eps=1e-5
    ):
        axes = (0, *range(2, x.dim()))
        wide = x.float()
        mean, variance = per_channel(running_mean, x), per_channel(running_var, x)
        if training:
            mean, variance = self.moments(wide, axes)
            self._enter(running_mean, running_var, mean, variance, momentum, x.numel() // mean.numel())
        return self._affine((wide - mean) * torch.rsqrt(variance + eps), weight, bias, x.dtype)

    def batch_norm_bwd(self, grad_out, x, weight, mean, rstd):
        axes = (0, *range(2, x.dim()))
        dy, wide, count = grad_out.float(), x.float(), x.numel() // x.shape[1]
        grad_weight = self.product(dy, wide, per_channel(mean, x), axes) * rstd
        grad_bias = dy.sum(axes)
        xhat = (wide - per_channel(mean, x)) * per_channel(rstd, x)
        inner = dy - per_channel(grad_bias / count, x) - xhat * per_channel(grad_weight / count, x)
        grad_x = inner * per_channel(weight * rstd, x)
        return grad_x.to(x.dtype).contiguous(), grad_weight, grad_bias

    def instance_norm(
        self, x, running_mean, running_var, weight, bias, *, use_input_stats=True, momentum=0.1, eps=1e-5
    ):
        wide = x.float()
        if use_input_stats:
            mean, variance = self.moments(wide, tuple(range(2, x.dim())))
            if running_mean is not None:
                count = x[0, 0].numel()
                self._enter(running_mean, running_var, mean, variance, momentum, count)
        else:
            mean, variance = per_channel(running_mean, x), per_channel(running_var, x)
        return self._affine((wide - mean) * torch.rsqrt(variance + eps), weight, bias, x.dtype)

    def _enter(self, running_mean, running_var, mean, variance, momentum, count):
        for running, new in ((running_mean, mean), (running_var, variance * (count / (count - 1)))):
            running.lerp_(new.reshape(new.shape[0], -1).mean(0).to(running.dtype), momentum)


right = Ops(two_passes, product_of_deviations)
cancelling = Ops(difference_of_squares, difference_of_products)
