"""Products of 8-bit matrices, `GemmFp8FwdOp`, and of batches of them, `BmmFp8KNFwdOp` and `BmmFp8NKFwdOp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.kernels.bmm_fp8 import BmmFp8HopperKernel, BmmFp8Kernel, TurnFp8Kernel
from tileops_kernels.kernels.gemm_fp8 import GemmFp8Kernel
from tileops_kernels.kernels.gemm_fp8_hopper import GemmFp8HopperKernel
from tileops_kernels.ops.flows._dense import bound_over_batch, reader
from tileops_kernels.ops.flows._operands import operand
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "BmmFp8", "GemmFp8"]


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


class BmmFp8(Flow):
    """`d[i] = scale_a scale_b a[i] @ op(b[i])` for every i of the batch.

    Hopper's 8-bit tensor cores read both operands along k: matrices that lie the other way are turned first.

    Args:
        trans_b: b is `[batch, n, k]`, else `[batch, k, n]`.
    """

    kernels = (BmmFp8Kernel, BmmFp8HopperKernel, TurnFp8Kernel)

    def __init__(self, trans_b: bool) -> None:
        self.trans_b = trans_b

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        a, b, scale_a, scale_b = inputs
        batch, m, k = a.shape
        n = b.shape[1 if self.trans_b else 2]
        out_dtype = str(binding.params["out_dtype"]).removeprefix("torch.")
        shape, result_dtype = (batch, m, n), torch_dtype(out_dtype)
        if batch * m * n == 0:
            return lambda a, *rest: a.new_empty(shape, dtype=result_dtype)

        read_a = reader(a, BmmFp8Kernel)
        trans_b, read_b = operand(b, self.trans_b, BmmFp8Kernel, any_rows=True)
        static = {"n": n, "k": k, "out_dtype": out_dtype}
        turn = None
        if BmmFp8HopperKernel.fits(a.device, n=n, k=k):
            config = BmmFp8HopperKernel.config_for(a.device, n=n, m=m, batch=batch)
            program = BmmFp8HopperKernel.compiled(a.device, config, **static)
            if not trans_b:
                turn = bound_over_batch(
                    TurnFp8Kernel.compiled(a.device, n=n, k=k), read_b(b), b.new_empty((batch, n, k))
                )
        else:
            program = BmmFp8Kernel.compiled(a.device, **static, trans_b=trans_b)
        d = a.new_empty(shape, dtype=result_dtype)
        factors = [scale.reshape(1, 1) for scale in (scale_a, scale_b)]
        example_b = read_b(b) if turn is None else b.new_empty((batch, n, k))
        launch = bound_over_batch(program, read_a(a), example_b, *factors, d, shared=(2, 3))

        def run(
            a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor
        ) -> torch.Tensor:
            d = a.new_empty(shape, dtype=result_dtype)
            b = read_b(b)
            if turn is not None:
                turned = b.new_empty((batch, n, k))
                turn(b, turned)
                b = turned
            launch(read_a(a), b, scale_a.reshape(1, 1), scale_b.reshape(1, 1), d)
            return d

        return run


OPS: dict[str, Flow] = {
    "GemmFp8FwdOp": GemmFp8(),
    "BmmFp8KNFwdOp": BmmFp8(trans_b=False),
    "BmmFp8NKFwdOp": BmmFp8(trans_b=True),
}
