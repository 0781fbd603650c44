"""Oracles of normalisations per channel of x [N, C, *spatial]: (x - mean) / sqrt(var + eps) * weight + bias.

* Batch norm (arXiv:1502.03167): in training mean and (biased) variance are those of a channel over the batch
  and space, and the results are the output, running_mean and running_var; else they are the running ones.
* Instance norm (arXiv:1607.08022): the statistics of each channel of each instance, or the running ones with
  use_input_stats=False; weight and bias, and the running statistics, are optional.
* A running statistic becomes (1 - momentum) * running + momentum * new; the new variance is the unbiased one,
  n / (n - 1) times the biased. Of instances, new is the mean over the batch.
* Batch norm backward, with xhat = (x - mean) * rstd: grad_bias = sum of dy, grad_weight = sum of dy * xhat,
  grad_x = weight * rstd * (dy - mean of dy - xhat * mean of dy * xhat), sums over all but the channel.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.arithmetic import accumulate, group, mean_of
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close, doubled


class Statistics(NamedTuple):
    """Mean and biased variance, broadcastable to x, and the magnitude of what made the mean."""

    mean: Tensor
    variance: Tensor
    size: Tensor


def _per_channel(value: Tensor, x: Tensor) -> Tensor:
    return value.reshape(1, -1, *(1,) * (x.dim() - 2))


def _reduced_axes(x: Tensor, of_instances: bool) -> tuple[int, ...]:
    return tuple(range(2, x.dim())) if of_instances else (0, *range(2, x.dim()))


def _own(x: Tensor, axes: tuple[int, ...]) -> Statistics:
    """The statistics of the data over the axes: two passes."""
    kept = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    mean = mean_of(group(x, axes)).reshape(kept)
    centred = group(x - mean, axes)
    variance = mean_of(centred * centred).reshape(kept)
    return Statistics(mean, variance, mean_of(torch.abs(group(x, axes))).reshape(kept))


def _running(call: Call) -> Statistics:
    x, mean, variance = call["x"], call["running_mean"], call["running_var"]
    return Statistics(_per_channel(mean, x), _per_channel(variance, x), _per_channel(torch.abs(mean), x))


def _updates(call: Call, of_instances: bool) -> bool:
    """Whether the call normalises by the data's own statistics."""
    return call.param("use_input_stats" if of_instances else "training")


def _statistics(call: Call, of_instances: bool) -> Statistics:
    x = call["x"]
    return _own(x, _reduced_axes(x, of_instances)) if _updates(call, of_instances) else _running(call)


def _affine(call: Call, x: Tensor) -> Tensor:
    weight, bias = call.get("weight"), call.get("bias")
    return x if weight is None else x * _per_channel(weight, x) + _per_channel(bias, x)


def _count(call: Call, of_instances: bool) -> int:
    x = call["x"]
    return math.prod(x.shape[axis] for axis in _reduced_axes(x, of_instances))


def _shares(call: Call) -> tuple[float, float]:
    """What the running statistics keep of themselves, and what they take of new ones."""
    momentum = call.param("momentum")
    return 1 - momentum, momentum


def _entering(
    call: Call, of_instances: bool, mean: Tensor, variance: Tensor, shares: tuple[float, float]
) -> Outputs:
    """Running statistics that `mean` and the biased `variance` [N or 1, C, 1, ...] have entered."""
    n, (kept, taken) = _count(call, of_instances), shares
    new = (mean, variance * n / (n - 1))
    return tuple(
        kept * call[name] + taken * mean_of(value.reshape(value.shape[0], -1))
        for name, value in zip(("running_mean", "running_var"), new, strict=True)
    )


def _results(call: Call, of_instances: bool) -> Outputs:
    x, stats = call["x"], _statistics(call, of_instances)
    output = _affine(call, (x - stats.mean) / torch.sqrt(stats.variance + call.param("eps")))
    if not _updates(call, of_instances) or call.get("running_mean") is None:
        return (output,)
    return output, *_entering(call, of_instances, stats.mean, stats.variance, _shares(call))


def _magnitudes(call: Call, of_instances: bool) -> Magnitudes:
    x, stats = call["x"], _statistics(call, of_instances)
    weight, bias = call.get("weight"), call.get("bias")
    size = (torch.abs(x) + stats.size) / torch.sqrt(stats.variance + call.param("eps"))
    if weight is not None:
        size = size * _per_channel(torch.abs(weight), x) + _per_channel(torch.abs(bias), x)
    if not _updates(call, of_instances) or call.get("running_mean") is None:
        return (size,)
    # A variance is off by what its mean is off by, as that is updated or merged, times the spread (Chan,
    # Golub and LeVeque 1983), and by the square of it: sqrt(n) roundoffs of the terms.
    off = torch.sqrt(stats.variance) * torch.abs(stats.mean)
    off = off + 2.0**-24 * math.sqrt(_count(call, of_instances)) * stats.size**2
    positive = Call({**call.given, "running_mean": torch.abs(call["running_mean"])}, call.params, call.dtype)
    kept, taken = map(abs, _shares(call))
    return size, *_entering(positive, of_instances, stats.size, stats.variance + off, (kept, taken))


def _length(call: Call, of_instances: bool) -> int:
    return _count(call, of_instances) if _updates(call, of_instances) else 2


def _torch_results(call: Call, of_instances: bool) -> Outputs:
    mean, variance = (
        None if value is None else value.clone() for value in map(call.get, ("running_mean", "running_var"))
    )
    function = F.instance_norm if of_instances else F.batch_norm
    output = function(call["x"], mean, variance, call.get("weight"), call.get("bias"), **call.params)
    return (output, mean, variance) if _updates(call, of_instances) and mean is not None else (output,)


class Gradients(NamedTuple):
    """What the backward sums: dy, xhat, their product, each [terms, C], and the factor of grad_x [C]."""

    dy: Tensor
    xhat: Tensor
    product: Tensor
    factor: Tensor


def _gradient_terms(call: Call) -> Gradients:
    axes = _reduced_axes(call["x"], of_instances=False)
    dy, x = group(call["grad_out"], axes), group(call["x"], axes)
    xhat = (x - call["mean"]) * call["rstd"]
    return Gradients(dy, xhat, dy * xhat, call["weight"] * call["rstd"])


def _gradient_sizes(call: Call) -> Gradients:
    axes = _reduced_axes(call["x"], of_instances=False)
    # x and mean are given, so that their difference has no error but its own.
    dy, centred = (
        torch.abs(t) for t in (group(call["grad_out"], axes), group(call["x"], axes) - call["mean"])
    )
    xhat = centred * torch.abs(call["rstd"])
    return Gradients(dy, xhat, dy * xhat, torch.abs(call["weight"] * call["rstd"]))


def _as_input(terms: Tensor, like: Tensor) -> Tensor:
    """[terms, C] as [N, C, *spatial]."""
    return terms.reshape(like.shape[0], *like.shape[2:], like.shape[1]).movedim(-1, 1)


def _gradients(call: Call) -> Outputs:
    dy, xhat, product, factor = _gradient_terms(call)
    grad_x = factor * (dy - mean_of(dy) - xhat * mean_of(product))
    return _as_input(grad_x, call["x"]), accumulate(product), accumulate(dy)


def _gradient_magnitudes(call: Call) -> Magnitudes:
    dy, xhat, product, factor = _gradient_sizes(call)
    grad_x = factor * (dy + mean_of(dy) + xhat * mean_of(product))
    return _as_input(grad_x, call["x"]), accumulate(product), accumulate(dy)


def _torch_gradients(call: Call) -> Outputs:
    dy, x, weight, mean, rstd = (call[name] for name in ("grad_out", "x", "weight", "mean", "rstd"))
    return tuple(
        torch.ops.aten.native_batch_norm_backward(
            dy, x, weight, None, None, mean, rstd, True, 0.0, [True, True, True]
        )
    )


def ignores_the_scale_of_a_channel(run: Run, inputs: Inputs, params: Params) -> bool:
    """The output for 2 x + 1 is that for x, when epsilon is negligible and the statistics are x's own."""
    small = {**params, "eps": 1e-30}
    wide = inputs["x"].to(torch.float64)
    moved = run({**inputs, "x": doubled(wide) + 1}, small)[0]
    return close(moved, run({**inputs, "x": wide}, small)[0], 2.0**10)


def momentum_one_forgets(run: Run, inputs: Inputs, params: Params) -> bool:
    """With momentum 1 the running statistics are the data's own, with momentum 0 they stay."""
    _, *forgotten = run(inputs, {**params, "momentum": 1.0})
    zeros = {name: torch.zeros_like(inputs[name]) for name in ("running_mean", "running_var")}
    _, *fresh = run({**inputs, **zeros}, {**params, "momentum": 1.0})
    _, *kept = run(inputs, {**params, "momentum": 0.0})
    same = all(close(a, b) for a, b in zip(forgotten, fresh, strict=True))
    return same and all(
        close(now, inputs[name].to(torch.float64))
        for now, name in zip(kept, ("running_mean", "running_var"), strict=True)
    )


def is_orthogonal_to_what_normalising_removes(run: Run, inputs: Inputs, params: Params) -> bool:
    """With the batch's own statistics, grad_x of a channel sums to 0, and so does grad_x * xhat."""
    x = inputs["x"].to(torch.float64)
    own = _own(x, _reduced_axes(x, of_instances=False))
    rstd = 1 / torch.sqrt(own.variance + 1e-30)
    statistics = {"mean": own.mean.flatten(), "rstd": rstd.flatten()}
    grad_x, *_ = run({**inputs, "x": x, **statistics}, params)
    axes = _reduced_axes(x, of_instances=False)
    sums = (grad_x.sum(axes), (grad_x * (x - own.mean) * rstd).sum(axes))
    return all(close(total, torch.zeros_like(total), grad_x.abs().sum() + 1) for total in sums)


def _forward(op: str, of_instances: bool) -> Oracle:
    return Oracle(
        op,
        partial(_results, of_instances=of_instances),
        partial(_torch_results, of_instances=of_instances),
        magnitudes=partial(_magnitudes, of_instances=of_instances),
        length=partial(_length, of_instances=of_instances),
        properties=(ignores_the_scale_of_a_channel, momentum_one_forgets),
    )


ORACLES = (
    _forward("BatchNormFwdOp", of_instances=False),
    _forward("InstanceNormFwdOp", of_instances=True),
    Oracle(
        "BatchNormBwdOp",
        _gradients,
        _torch_gradients,
        magnitudes=_gradient_magnitudes,
        length=lambda call: _count(call, of_instances=False),
        properties=(is_orthogonal_to_what_normalising_removes,),
    ),
)
