"""Elementwise ops: one torch callable each; gated ones, with Liger and FlashInfer beside them, and tables are
local compositions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tileops_bench.baselines.base import Baseline, Case, Make

# op → (torch callable, params that it takes as keywords)
_TORCH: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "ReluFwdOp": (F.relu, ()),
    "GeluFwdOp": (F.gelu, ("approximate",)),
    "SiluFwdOp": (F.silu, ()),
    "ExpFwdOp": (torch.exp, ()),
    "LogFwdOp": (torch.log, ()),
    "SqrtFwdOp": (torch.sqrt, ()),
    "RsqrtFwdOp": (torch.rsqrt, ()),
    "AbsFwdOp": (torch.abs, ()),
    "NegFwdOp": (torch.neg, ()),
    "ReciprocalFwdOp": (torch.reciprocal, ()),
    "SigmoidFwdOp": (torch.sigmoid, ()),
    "TanhFwdOp": (torch.tanh, ()),
    "ErfFwdOp": (torch.erf, ()),
    "FloorFwdOp": (torch.floor, ()),
    "SinFwdOp": (torch.sin, ()),
    "CosFwdOp": (torch.cos, ()),
    "LeakyReluFwdOp": (F.leaky_relu, ("negative_slope",)),
    "HardswishFwdOp": (F.hardswish, ()),
    "HardsigmoidFwdOp": (F.hardsigmoid, ()),
    "MishFwdOp": (F.mish, ()),
    "SeluFwdOp": (F.selu, ()),
    "EluFwdOp": (F.elu, ("alpha",)),
    "SoftplusFwdOp": (F.softplus, ("beta", "threshold")),
    "HardtanhFwdOp": (F.hardtanh, ("min_val", "max_val")),
    "PreluFwdOp": (F.prelu, ()),
    "Expm1FwdOp": (torch.expm1, ()),
    "Log1pFwdOp": (torch.log1p, ()),
    "CeilFwdOp": (torch.ceil, ()),
    "TruncFwdOp": (torch.trunc, ()),
    "SignFwdOp": (torch.sign, ()),
    "IsinfFwdOp": (torch.isinf, ()),
    "IsfiniteFwdOp": (torch.isfinite, ()),
    "ClampFwdOp": (torch.clamp, ()),
    "ClampScalarFwdOp": (torch.clamp, ("min", "max")),
    "IsnanFwdOp": (torch.isnan, ()),
    "LogicalNotFwdOp": (torch.logical_not, ()),
    "BitwiseNotFwdOp": (torch.bitwise_not, ()),
    "AddFwdOp": (torch.add, ("alpha",)),
    "SubFwdOp": (torch.sub, ("alpha",)),
    "MulFwdOp": (torch.mul, ()),
    "DivFwdOp": (torch.div, ("rounding_mode",)),
    "MaximumFwdOp": (torch.maximum, ()),
    "MinimumFwdOp": (torch.minimum, ()),
    "EqFwdOp": (torch.eq, ()),
    "LtFwdOp": (torch.lt, ()),
    "NeFwdOp": (torch.ne, ()),
    "GtFwdOp": (torch.gt, ()),
    "GeFwdOp": (torch.ge, ()),
    "LeFwdOp": (torch.le, ()),
    "LogicalAndFwdOp": (torch.logical_and, ()),
    "LogicalOrFwdOp": (torch.logical_or, ()),
    "BitwiseAndFwdOp": (torch.bitwise_and, ()),
    "BitwiseOrFwdOp": (torch.bitwise_or, ()),
    "BitwiseXorFwdOp": (torch.bitwise_xor, ()),
    "RemainderFwdOp": (torch.remainder, ()),
    "FloorDivideFwdOp": (torch.floor_divide, ()),
    "PowFwdOp": (torch.pow, ()),
    "LerpFwdOp": (torch.lerp, ("weight",)),
    "LerpTensorFwdOp": (torch.lerp, ()),
    "NanToNumFwdOp": (torch.nan_to_num, ("nan", "posinf", "neginf")),
    "MaskedFillFwdOp": (torch.Tensor.masked_fill, ()),
    "MaskedFillScalarFwdOp": (torch.Tensor.masked_fill, ("value",)),
    "WhereFwdOp": (torch.where, ()),
    "DropoutFwdOp": (F.dropout, ("p", "training")),
}

# op → (activation, Liger module and function, FlashInfer function); the first half of the row is the gate
_GATED: dict[str, tuple[Callable[..., Any], tuple[str, str] | None, str]] = {
    "SiluAndMulFwdOp": (F.silu, ("liger_kernel.ops.swiglu", "LigerSiLUMulFunction"), "silu_and_mul"),
    "GeluAndMulFwdOp": (F.gelu, None, "gelu_and_mul"),
    "GeluTanhAndMulFwdOp": (
        partial(F.gelu, approximate="tanh"),
        ("liger_kernel.ops.geglu", "LigerGELUMulFunction"),
        "gelu_tanh_and_mul",
    ),
}


def _pick(params: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: params[name] for name in names}


def _torch(op: str) -> Make:
    function, names = _TORCH[op]

    def make(case: Case) -> Callable[..., Any]:
        return partial(function, **_pick(case.params, names))

    return make


def _round(case: Case) -> Callable[..., Any]:
    """Torch takes integers where `decimals` is left out alone."""
    decimals = case.params["decimals"]
    return partial(torch.round, decimals=decimals) if decimals else torch.round


def _alibi(case: Case) -> Callable[..., Any]:
    heads, length = case.params["num_heads"], case.params["seq_len"]
    dtype = case.dtype_param("dtype")
    slopes = torch.exp2(-8 * torch.arange(1, heads + 1, device=case.target) / heads)[:, None, None]

    def call() -> torch.Tensor:
        place = torch.arange(length, device=case.target)
        offset = place[:, None] - place
        return (offset.abs() * -slopes).to(dtype)

    return call


def _sinusoidal(case: Case) -> Callable[..., Any]:
    """Angles in float32, whose errors of 2e-4 a 16-bit table cannot show; for float32 in float64."""
    length, columns = case.params["seq_len"], case.params["d_model"]
    dtype = case.dtype_param("dtype")
    wide = torch.float64 if dtype is torch.float32 else torch.float32
    exponents = torch.arange(0, columns, 2, dtype=torch.float64, device=case.target) / columns
    frequencies = (10000.0**-exponents).to(wide)

    def call() -> torch.Tensor:
        angles = torch.arange(length, dtype=wide, device=case.target)[:, None] * frequencies
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(dtype)

    return call


def _gated(op: str) -> Make:
    activation = _GATED[op][0]

    def make(case: Case) -> Callable[..., Any]:
        def gated(x: torch.Tensor) -> torch.Tensor:
            gate, value = x.chunk(2, dim=-1)
            return activation(gate) * value

        return gated

    return make


def _liger(module: str, name: str) -> Make:
    def make(case: Case) -> Callable[..., Any]:
        import importlib

        function = getattr(importlib.import_module(module), name)
        return lambda x: function.apply(*x.chunk(2, dim=-1))

    return make


def _flashinfer(name: str) -> Make:
    def make(case: Case) -> Callable[..., Any]:
        import flashinfer

        return getattr(flashinfer, name)

    return make


EAGER: dict[str, Make] = {op: _torch(op) for op in _TORCH} | {"RoundFwdOp": _round}
LOCAL: dict[str, Make] = {op: _gated(op) for op in _GATED} | {
    "AlibiFwdOp": _alibi,
    "SinusoidalFwdOp": _sinusoidal,
}
OTHERS: tuple[Baseline, ...] = tuple(
    Baseline(op, "liger", _liger(*liger), "liger-kernel", "liger_kernel", ("cuda",))
    for op, (_, liger, _) in _GATED.items()
    if liger is not None
) + tuple(
    Baseline(op, "flashinfer", _flashinfer(name), "flashinfer-python", "flashinfer", ("cuda",))
    for op, (_, _, name) in _GATED.items()
)
