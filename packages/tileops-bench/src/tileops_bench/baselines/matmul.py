"""Matrix products: cuBLAS (or the CPU's BLAS) through torch, `torch._scaled_mm` for fp8, `torch._grouped_mm`.

Products of groups of rows are also one call a group, whose sizes the host must read first.
"""

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
    out_dtype = case.dtype_param("out_dtype")

    def scaled(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> torch.Tensor:
        return torch._scaled_mm(
            a, b.T, scale_a=scale_a.reshape(()), scale_b=scale_b.reshape(()), bias=bias, out_dtype=out_dtype
        )

    return scaled


def _widened_mm(case: Case) -> Callable[..., Any]:
    """Factors multiplied in, then a float32 product: no library on the CPU has blockwise ones."""
    out_dtype = case.dtype_param("out_dtype")

    def widened(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if scale.shape[1] > 1:
            scale = scale.repeat_interleave(_BLOCK, dim=1)[:, : x.shape[1]]
        return x.float() * scale

    def call(a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None) -> torch.Tensor:
        product = widened(a, scale_a) @ widened(b, scale_b).T
        return (product if bias is None else product + bias.float()).to(out_dtype)

    return call


def _widened_bmm(case: Case) -> Callable[..., Any]:
    """A product in the output's dtype, which holds every e4m3 number."""
    out_dtype = case.dtype_param("out_dtype")

    def call(a: Any, b: Any, scale_a: Any, scale_b: Any) -> torch.Tensor:
        b = b.mT if case.op == "BmmFp8NKFwdOp" else b
        return (torch.bmm(a.to(out_dtype), b.to(out_dtype)) * (scale_a * scale_b)).to(out_dtype)

    return call


def _scaled_mm_of_each(case: Case) -> Callable[..., Any]:
    """`torch._scaled_mm` wants every second operand column-major: `[k, n]` is copied, as its user must."""
    if case.inputs["a"].shape[2] % 16 or any(size % 16 for size in case.inputs["b"].shape[1:]):
        raise UnsupportedCase("columns in multiples of 16 only")
    out_dtype, lies_along_k = case.dtype_param("out_dtype"), case.op == "BmmFp8NKFwdOp"

    def call(a: Any, b: Any, scale_a: Any, scale_b: Any) -> torch.Tensor:
        b = b.mT if lies_along_k else b.mT.contiguous().mT
        products = [
            torch._scaled_mm(x, y, scale_a=scale_a, scale_b=scale_b, out_dtype=out_dtype)
            for x, y in zip(a, b, strict=True)
        ]
        return torch.stack(products)

    return call


def _grouped_mm(case: Case) -> Callable[..., Any]:
    """What torch takes; rows past the last group, which it does not write, are in no such row."""
    a, b = case.inputs["a"], case.inputs["b"]
    if any(size * t.element_size() % 16 for t in (a, b) for size in t.shape[-2:]):
        raise UnsupportedCase("rows and columns of a multiple of 16 bytes only")
    flip_a, flip_b = case.params.get("transpose_a", False), case.params.get("transpose_b", True)

    def call(a: Any, b: Any, sizes: Any, offsets: Any) -> torch.Tensor:
        ends = (sizes + offsets).to(torch.int32)
        return torch._grouped_mm(a.T if flip_a else a, b.mT if flip_b else b, offs=ends)

    return call


def _product_of_each_group(case: Case) -> Callable[..., Any]:
    flip_a, flip_b = case.params.get("transpose_a", False), case.params.get("transpose_b", True)

    def of_rows(a: Any, b: Any, sizes: Any, offsets: Any) -> torch.Tensor:
        b = b.mT if flip_b else b
        out = a.new_zeros(a.shape[0], b.shape[-1])
        for matrix, size, start in zip(b, sizes.tolist(), offsets.tolist(), strict=True):
            torch.mm(a[start : start + size], matrix, out=out[start : start + size])
        return out

    def over_rows(a: Any, b: Any, sizes: Any, offsets: Any) -> torch.Tensor:
        b = b.mT if flip_b else b
        out = a.new_empty(sizes.numel(), a.shape[1], b.shape[1])
        for product, size, start in zip(out, sizes.tolist(), offsets.tolist(), strict=True):
            torch.mm(a[start : start + size].T, b[start : start + size], out=product)
        return out

    return over_rows if flip_a else of_rows


def _unpacked_mm(case: Case) -> Callable[..., Any]:
    """No library takes weights in this layout: unpack, scale to float16, multiply."""
    group_size = case.params["group_size"]

    def call(activation: Any, packed_weight: Any, weight_scale: Any, weight_zero: Any) -> torch.Tensor:
        nibbles = torch.stack((packed_weight & 15, packed_weight >> 4), dim=-1)
        steps = nibbles.view(*weight_scale.shape, group_size).to(activation.dtype) - weight_zero[..., None]
        weights = (steps * weight_scale[..., None]).to(activation.dtype)
        return activation @ weights.view(packed_weight.shape[0], -1).T

    return call


EAGER: dict[str, Make] = {"GemmFwdOp": _gemm, "BmmFwdOp": _bmm}
LOCAL: dict[str, Make] = {
    "GemmFp8FwdOp": _widened_mm,
    "GemmW4A16FwdOp": _unpacked_mm,
    "BmmFp8KNFwdOp": _widened_bmm,
    "BmmFp8NKFwdOp": _widened_bmm,
}
OTHERS: tuple[Baseline, ...] = (
    Baseline("GemmFp8FwdOp", "torch-scaled-mm", _scaled_mm, targets=CUDA),
    *(
        Baseline(op, "torch-scaled-mm-of-each", _scaled_mm_of_each, targets=CUDA)
        for op in ("BmmFp8KNFwdOp", "BmmFp8NKFwdOp")
    ),
    *(
        baseline
        for op in ("GroupedGemmFwdOp", "MoeGroupedGemmNopadFwdOp")
        for baseline in (
            Baseline(op, "torch-grouped-mm", _grouped_mm),
            Baseline(op, "product-of-each-group", _product_of_each_group, local=True),
        )
    ),
)
