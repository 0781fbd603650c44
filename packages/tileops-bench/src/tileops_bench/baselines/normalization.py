"""Normalisations: torch, Liger and FlashInfer; the fused-add and adaptive forms are local
compositions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tileops_bench.baselines.base import CUDA, Baseline, Case, Make, UnsupportedCase


def _rms_norm(case: Case) -> Callable[..., Any]:
    shape, eps = tuple(case.params["normalized_shape"]), case.params["eps"]
    return lambda x, weight: F.rms_norm(x, shape, weight, eps)


def _layer_norm(case: Case) -> Callable[..., Any]:
    shape, eps = tuple(case.params["normalized_shape"]), case.params["eps"]
    return lambda x, weight, bias: F.layer_norm(x, shape, weight, bias, eps)


def _group_norm(case: Case) -> Callable[..., Any]:
    groups, eps = case.params["num_groups"], case.params["eps"]
    return lambda x, weight=None, bias=None: F.group_norm(x, groups, weight, bias, eps)


def _fused_add_rms_norm(case: Case) -> Callable[..., Any]:
    eps = case.params["eps"]

    def fused(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return F.rms_norm(total, weight.shape, weight, eps), total

    return fused


def _fused_add_layer_norm(case: Case) -> Callable[..., Any]:
    eps = case.params["eps"]

    def fused(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return F.layer_norm(total, weight.shape, weight, bias, eps), total

    return fused


def _one_dim(case: Case) -> None:
    if len(case.params["normalized_shape"]) != 1:
        raise UnsupportedCase("one normalised dim only")


def _liger_rms_norm(case: Case) -> Callable[..., Any]:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    _one_dim(case)
    eps = case.params["eps"]
    return lambda x, weight: LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False)


def _liger_layer_norm(case: Case) -> Callable[..., Any]:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    _one_dim(case)
    eps = case.params["eps"]
    return lambda x, weight, bias: LigerLayerNormFunction.apply(x, weight, bias, eps)


def _flashinfer_rms_norm(case: Case) -> Callable[..., Any]:
    import flashinfer

    _one_dim(case)
    eps = case.params["eps"]
    return lambda x, weight: flashinfer.rmsnorm(x, weight, eps)


def _ada_layer_norm(case: Case) -> Callable[..., Any]:
    eps = case.params["eps"]

    def modulated(
        x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor | None = None
    ) -> torch.Tensor:
        moved = scale * F.layer_norm(x, x.shape[-1:], eps=eps) + shift
        return moved if gate is None else gate * moved

    return modulated


def _batch_norm(case: Case) -> Callable[..., Any]:
    """Torch takes the statistics and the weights in the order of the entry; the running ones are written."""
    return partial(F.batch_norm, **case.params)


def _instance_norm(case: Case) -> Callable[..., Any]:
    return partial(F.instance_norm, **case.params)


def _batch_norm_bwd(case: Case) -> Callable[..., Any]:
    """Torch's own gradient of batch normalisation; eps is in `rstd` already."""
    backward = torch.ops.aten.native_batch_norm_backward
    return lambda grad_out, x, weight, mean, rstd: backward(
        grad_out, x, weight, None, None, mean, rstd, True, 0.0, [True, True, True]
    )


EAGER: dict[str, Make] = {
    "BatchNormFwdOp": _batch_norm,
    "InstanceNormFwdOp": _instance_norm,
    "BatchNormBwdOp": _batch_norm_bwd,
    "RMSNormFwdOp": _rms_norm,
    "LayerNormFwdOp": _layer_norm,
    "GroupNormFwdOp": _group_norm,
}
LOCAL: dict[str, Make] = {
    "FusedAddRMSNormFwdOp": _fused_add_rms_norm,
    "FusedAddLayerNormFwdOp": _fused_add_layer_norm,
    "AdaLayerNormFwdOp": _ada_layer_norm,
    "AdaLayerNormZeroFwdOp": _ada_layer_norm,
}
OTHERS: tuple[Baseline, ...] = (
    Baseline("RMSNormFwdOp", "liger", _liger_rms_norm, "liger-kernel", "liger_kernel", CUDA),
    Baseline("LayerNormFwdOp", "liger", _liger_layer_norm, "liger-kernel", "liger_kernel", CUDA),
    Baseline("RMSNormFwdOp", "flashinfer", _flashinfer_rms_norm, "flashinfer-python", "flashinfer", CUDA),
)
