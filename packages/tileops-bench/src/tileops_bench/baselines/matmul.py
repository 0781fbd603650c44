"""Matrix products: cuBLAS (or the CPU's BLAS) through torch, and `torch._scaled_mm` for fp8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tileops_bench.baselines.base import CUDA, Baseline, Case, Make, UnsupportedCase

_BLOCK = 128  # columns that share a factor


def _gemm(case: Case) -> Callable[..., Any]:
    trans_a, trans_b = case.params["trans_a"], case.params["trans_b"]
    return lambda a, b: torch.matmul(a.T if trans_a else a, b.T if trans_b else b)


def _bmm(case: Case) -> Callable[..., Any]:
    return torch.bmm


def _scaled_mm(case: Case) -> Callable[..., Any]:
    """Per-tensor scales go in as scalars; `torch._scaled_mm` wants the second operand column-major, which b.T
    is."""
    if case.inputs["scale_a"].numel() != 1:
        raise UnsupportedCase("per-tensor scales only")
    out_dtype = getattr(torch, str(case.params["out_dtype"]).removeprefix("torch."))

    def scaled(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> torch.Tensor:
        return torch._scaled_mm(
            a, b.T, scale_a=scale_a.reshape(()), scale_b=scale_b.reshape(()), bias=bias, out_dtype=out_dtype
        )

    return scaled


def _widened_mm(case: Case) -> Callable[..., Any]:
    """Factors multiplied in, then a float32 product: no library on the CPU has blockwise ones."""
    out_dtype = getattr(torch, str(case.params["out_dtype"]).removeprefix("torch."))

    def widened(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if scale.shape[1] > 1:
            scale = scale.repeat_interleave(_BLOCK, dim=1)[:, : x.shape[1]]
        return x.float() * scale

    def call(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> torch.Tensor:
        product = widened(a, scale_a) @ widened(b, scale_b).T
        return (product if bias is None else product + bias.float()).to(out_dtype)

    return call


EAGER: dict[str, Make] = {"GemmFwdOp": _gemm, "BmmFwdOp": _bmm}
LOCAL: dict[str, Make] = {"GemmFp8FwdOp": _widened_mm}
OTHERS: tuple[Baseline, ...] = (Baseline("GemmFp8FwdOp", "torch-scaled-mm", _scaled_mm, targets=CUDA),)
