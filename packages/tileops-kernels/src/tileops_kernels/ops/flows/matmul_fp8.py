"""Products of 8-bit matrices: `GemmFp8FwdOp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.kernels.gemm_fp8 import GemmFp8Kernel
from tileops_kernels.kernels.gemm_fp8_hopper import GemmFp8HopperKernel
from tileops_kernels.ops.flows._dense import reader
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "GemmFp8"]


class GemmFp8(Flow):
    """`d = (scale_a a) (scale_b b)^T + bias`, with one factor per matrix or per row and block of columns.

    Hopper has tensor cores for it, where its copy engine can fetch the rows.
    """

    kernels = (GemmFp8Kernel, GemmFp8HopperKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        a, b, scale_a, scale_b, bias = inputs
        (m, k), n = a.shape, b.shape[0]
        out_dtype = str(binding.params["out_dtype"]).removeprefix("torch.")
        result_dtype = torch_dtype(out_dtype)
        if m * n == 0:
            return lambda a, *rest: a.new_empty((m, n), dtype=result_dtype)

        per_block = (scale_a.shape[0], scale_b.shape[0], scale_a.shape[1]) != (1, 1, 1)
        static = {
            "n": n,
            "k": k,
            "out_dtype": out_dtype,
            "per_block": per_block,
            "biased": bias is not None,
        }
        on_hopper = GemmFp8HopperKernel.fits(a.device, n=n, k=k, per_block=per_block)
        kernel = GemmFp8HopperKernel if on_hopper else GemmFp8Kernel
        config = kernel.config_for(a.device, m=m, n=n, per_block=per_block)
        program = kernel.compiled(a.device, config, **static)
        operands = [t for t in inputs if t is not None]
        reads = [reader(t, kernel) for t in operands]

        def arguments(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
            present = (t for t in tensors if t is not None)
            return [read(t) for read, t in zip(reads, present, strict=True)]

        launch = program.bound(*arguments(operands), a.new_empty((m, n), dtype=result_dtype))

        def run(*tensors: torch.Tensor | None) -> torch.Tensor:
            d = tensors[0].new_empty((m, n), dtype=result_dtype)
            launch(*arguments(tensors), d)
            return d

        return run


OPS: dict[str, Flow] = {"GemmFp8FwdOp": GemmFp8()}
