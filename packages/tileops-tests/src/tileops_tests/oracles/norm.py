"""Oracles of normalisations, each over a group of elements that share a mean or a mean square.

* RMS norm (arXiv:1910.07467): x / sqrt(mean(x^2) + eps) * weight, over the trailing dims of `weight`.
* Layer norm (arXiv:1607.06450): (x - mean) / sqrt(var + eps) * weight + bias, over the trailing dims of
  `weight`.
* Group norm (arXiv:1803.08494): the same over C / num_groups channels and all of space of x [N, C,
  *spatial], weight and bias [C] optional.
* Adaptive layer norm (arXiv:2212.09748): scale * layer_norm(x) + shift over the last dim, scale and shift
  shaped like x; its Zero form multiplies that by gate, shaped like x too.
* Fused add: residual_out = x + residual, and the norm of residual_out as it is returned: rounded to the
  input's dtype.

`eps` None is the epsilon of the input's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.arithmetic import group, mean_of
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close, ignores_the_scale


class Normalised(NamedTuple):
    """An output and the magnitude that each of its elements accumulates."""

    output: Tensor
    magnitude: Tensor


def _eps(call: Call) -> float:
    eps = call.param("eps")
    return torch.finfo(call.given["x"].dtype).eps if eps is None else eps


def _rows(x: Tensor, trailing: int) -> tuple[Tensor, tuple[int, ...]]:
    """`x` as [terms, *leading] and the shape that brings a statistic of a row back beside it."""
    axes = tuple(range(x.dim() - trailing, x.dim()))
    return group(x, axes), (*x.shape[: x.dim() - trailing], *(1,) * trailing)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Normalised:
    terms, back = _rows(x, weight.dim())
    root = torch.sqrt(mean_of(terms * terms).reshape(back) + eps)
    output = x / root * weight
    return Normalised(output, torch.abs(output))


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Normalised:
    centred, root, size = _standardised(x, weight.dim(), eps)
    output = centred / root * weight + bias
    return Normalised(output, size / root * torch.abs(weight) + torch.abs(bias))


def _standardised(x: Tensor, trailing: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """`(x - mean, sqrt(var + eps), |x| + mean |x|)`: two passes."""
    terms, back = _rows(x, trailing)
    centred = x - mean_of(terms).reshape(back)
    again, _ = _rows(centred, trailing)
    root = torch.sqrt(mean_of(again * again).reshape(back) + eps)
    return centred, root, torch.abs(x) + mean_of(torch.abs(terms)).reshape(back)


def _group_norm(call: Call) -> Normalised:
    x, weight, bias = call["x"], call.get("weight"), call.get("bias")
    groups = call.param("num_groups")
    grouped = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    centred, root, size = _standardised(grouped, grouped.dim() - 2, _eps(call))
    output, magnitude = (centred / root).reshape(x.shape), (size / root).reshape(x.shape)
    per_channel = (1, -1, *(1,) * (x.dim() - 2))
    if weight is not None:
        output, magnitude = (
            output * weight.reshape(per_channel),
            magnitude * torch.abs(weight).reshape(per_channel),
        )
    if bias is not None:
        output, magnitude = (
            output + bias.reshape(per_channel),
            magnitude + torch.abs(bias).reshape(per_channel),
        )
    return Normalised(output, magnitude)


def _plain_rms(call: Call) -> Normalised:
    return _rms_norm(call["x"], call["weight"], _eps(call))


def _plain_layer(call: Call) -> Normalised:
    return _layer_norm(call["x"], call["weight"], call["bias"], _eps(call))


def _adaptive_layer(call: Call) -> Normalised:
    centred, root, size = _standardised(call["x"], 1, _eps(call))
    scale, shift, gate = call["scale"], call["shift"], call.get("gate")
    output = centred / root * scale + shift
    magnitude = size / root * torch.abs(scale) + torch.abs(shift)
    if gate is None:
        return Normalised(output, magnitude)
    return Normalised(output * gate, magnitude * torch.abs(gate))


def _added(call: Call) -> Tensor:
    return call["x"] + call["residual"]


def _returned(call: Call) -> Tensor:
    """The sum as the caller gets it; the same value is what is normalised."""
    return _added(call).to(call.given["x"].dtype).to(call.dtype)


def _fused_rms(call: Call) -> Normalised:
    return _rms_norm(_returned(call), call["weight"], _eps(call))


def _fused_layer(call: Call) -> Normalised:
    return _layer_norm(_returned(call), call["weight"], call["bias"], _eps(call))


Norm = Callable[[Call], Normalised]


def _outputs(call: Call, norm: Norm, fused: bool) -> Outputs:
    return (norm(call).output, _added(call)) if fused else (norm(call).output,)


def _magnitudes(call: Call, norm: Norm, fused: bool) -> Magnitudes:
    """Adding the residual may cancel: its roundoff, seen through the norm, is that of both terms."""
    magnitude = norm(call).magnitude
    return (magnitude, torch.abs(call["x"]) + torch.abs(call["residual"])) if fused else (magnitude,)


def _length(call: Call) -> int:
    weight = call.get("weight")
    if "num_groups" in call.params:
        return math.prod(call["x"].shape[1:]) // call.param("num_groups")
    return call["x"].shape[-1] if weight is None else weight.numel()


def _torch_rms(call: Call) -> Outputs:
    x, weight = call["x"], call["weight"]
    return (F.rms_norm(x, weight.shape, weight=weight, eps=_eps(call)),)


def _torch_layer(call: Call) -> Outputs:
    x, weight, bias = call["x"], call["weight"], call["bias"]
    return (F.layer_norm(x, weight.shape, weight=weight, bias=bias, eps=_eps(call)),)


def _torch_group(call: Call) -> Outputs:
    x, groups = call["x"], call.param("num_groups")
    return (F.group_norm(x, groups, weight=call.get("weight"), bias=call.get("bias"), eps=_eps(call)),)


def _torch_adaptive(call: Call) -> Outputs:
    x, gate = call["x"], call.get("gate")
    moved = torch.addcmul(call["shift"], F.layer_norm(x, x.shape[-1:], eps=_eps(call)), call["scale"])
    return (moved if gate is None else torch.mul(gate, moved),)


def _torch_fused_rms(call: Call) -> Outputs:
    added = torch.add(call["x"], call["residual"])
    normed = _rounded(call, added)
    return F.rms_norm(normed, normed.shape[-1:], weight=call["weight"], eps=_eps(call)), added


def _torch_fused_layer(call: Call) -> Outputs:
    added = torch.add(call["x"], call["residual"])
    normed, weight, bias = _rounded(call, added), call["weight"], call["bias"]
    return F.layer_norm(normed, normed.shape[-1:], weight=weight, bias=bias, eps=_eps(call)), added


def _rounded(call: Call, added: Tensor) -> Tensor:
    return added.type(call.given["residual"].dtype).type(torch.float64)


def ignores_a_shift_of_rows(run: Run, inputs: Inputs, params: Params) -> bool:
    """Adding 1 to every element leaves a normalisation that subtracts the mean."""
    wide = inputs["x"].to(torch.float64)
    shifted = {**inputs, "x": wide + 1}
    return close(run(shifted, params)[0], run({**inputs, "x": wide}, params)[0], 16.0)


def _oracle(
    op: str, norm: Norm, opinion: Callable[[Call], Outputs], *properties, fused: bool = False
) -> Oracle:
    return Oracle(
        op,
        partial(_outputs, norm=norm, fused=fused),
        opinion,
        magnitudes=partial(_magnitudes, norm=norm, fused=fused),
        length=_length,
        properties=properties,
    )


ORACLES = (
    _oracle("RMSNormFwdOp", _plain_rms, _torch_rms, ignores_the_scale),
    _oracle("LayerNormFwdOp", _plain_layer, _torch_layer, ignores_the_scale, ignores_a_shift_of_rows),
    _oracle(
        "AdaLayerNormFwdOp", _adaptive_layer, _torch_adaptive, ignores_the_scale, ignores_a_shift_of_rows
    ),
    _oracle(
        "AdaLayerNormZeroFwdOp", _adaptive_layer, _torch_adaptive, ignores_the_scale, ignores_a_shift_of_rows
    ),
    _oracle("FusedAddRMSNormFwdOp", _fused_rms, _torch_fused_rms, fused=True),
    _oracle("FusedAddLayerNormFwdOp", _fused_layer, _torch_fused_layer, ignores_a_shift_of_rows, fused=True),
    _oracle("GroupNormFwdOp", _group_norm, _torch_group, ignores_the_scale, ignores_a_shift_of_rows),
)
