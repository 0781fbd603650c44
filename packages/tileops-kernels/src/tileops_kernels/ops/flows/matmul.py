"""Matrix products: `GemmFwdOp`, `BmmFwdOp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.kernels.bmm import BmmKernel
from tileops_kernels.kernels.gemm import GemmKernel, SplitKSumKernel
from tileops_kernels.kernels.gemm_hopper import BmmHopperKernel, GemmHopperKernel
from tileops_kernels.kernels.gemm_small import BmmSmallKernel, GemmSmallKernel
from tileops_kernels.ops.flows._dense import bound_over_batch
from tileops_kernels.ops.flows._operands import is_out_of_reach, operand
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Bmm", "Gemm"]


class Gemm(Flow):
    """`d = op(a) @ op(b)`; a skinny product is split over k and summed by a second kernel, in order.

    On Hopper a product of many rows has a schedule of its own, and a small one takes `a` where it lies.
    """

    kernels = (GemmKernel, SplitKSumKernel, GemmHopperKernel, GemmSmallKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        a, b = inputs
        dtype = binding.inputs["a"].dtype
        require_dtypes(binding.entry.name, GemmKernel, a=dtype)
        trans_a, trans_b = binding.params["trans_a"], binding.params["trans_b"]
        (m, k) = a.shape[::-1] if trans_a else a.shape
        n = b.shape[0] if trans_b else b.shape[1]
        if m * n == 0:
            return lambda a, b: a.new_empty((m, n))
        if k == 0:
            return lambda a, b: a.new_zeros((m, n))

        out_of_reach = is_out_of_reach(a, trans_a, GemmKernel)
        small = out_of_reach and GemmSmallKernel.suits(a.device, m=m, n=n, k=k, dtype=dtype)
        general = GemmSmallKernel if small else GemmKernel
        trans_a, read_a = operand(a, trans_a, general, any_rows=small)
        trans_b, read_b = operand(b, trans_b, general, any_rows=True)
        static = {"n": n, "k": k, "dtype": dtype, "trans_a": trans_a, "trans_b": trans_b}
        config = general.config_for(a.device, m=m, n=n, k=k, dtype=dtype)
        many = not small and m >= GemmKernel.WIDE_FROM_M and config.split_k == 1
        if many and GemmHopperKernel.beats(config, a.device, m=m, n=n, k=k, dtype=dtype, trans_b=trans_b):
            hopper = GemmHopperKernel.config_for(a.device, m=m, n=n, trans_b=trans_b)
            program = GemmHopperKernel.compiled(a.device, hopper, **static)
        else:
            program = general.compiled(a.device, config, **static)
        result = a.new_empty((m, n))
        if config.split_k == 1:
            launch = program.bound(read_a(a), read_b(b), result)

            def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
                d = a.new_empty((m, n))
                launch(read_a(a), read_b(b), d)
                return d

            return run

        part_shape = (config.split_k, m, n)
        parts = a.new_empty(part_shape, dtype=torch.float32)
        launch_parts = program.bound(read_a(a), read_b(b), parts)
        add_parts = SplitKSumKernel.compiled(a.device, n=n, split=config.split_k, dtype=dtype).bound(
            parts, result
        )

        def run_split(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            partial = a.new_empty(part_shape, dtype=torch.float32)
            d = a.new_empty((m, n))
            launch_parts(read_a(a), read_b(b), partial)
            add_parts(partial, d)
            return d

        return run_split


class Bmm(Flow):
    """`d[i] = a[i] @ b[i]` for every i of the batch."""

    kernels = (BmmKernel, BmmHopperKernel, BmmSmallKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        a, b = inputs
        dtype = binding.inputs["a"].dtype
        require_dtypes(binding.entry.name, BmmKernel, a=dtype)
        batch, m, k = a.shape
        n = b.shape[2]
        shape = (batch, m, n)
        if batch * m * n == 0:
            return lambda a, b: a.new_empty(shape)
        if k == 0:
            return lambda a, b: a.new_zeros(shape)

        trans_a, read_a = operand(a, False, BmmKernel, any_rows=False)
        trans_b, read_b = operand(b, False, BmmKernel, any_rows=True)
        static = {"n": n, "k": k, "dtype": dtype, "trans_a": trans_a, "trans_b": trans_b}
        config = BmmKernel.config_for(a.device, n=n, k=k, dtype=dtype)
        sizes = {"m": m, "n": n, "k": k, "batch": batch}
        if BmmSmallKernel.suits(a.device, dtype=dtype, **sizes):
            kernel, config = BmmSmallKernel, BmmSmallKernel.config_for(a.device, **sizes)
        elif BmmHopperKernel.beats(config, a.device, dtype=dtype, trans_b=trans_b, **sizes):
            kernel, config = BmmHopperKernel, BmmHopperKernel.config_for(a.device, trans_b=trans_b, **sizes)
        else:
            kernel = BmmKernel
        program = kernel.compiled(a.device, config, **static)
        launch = bound_over_batch(program, read_a(a), read_b(b), a.new_empty(shape))

        def run(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            d = a.new_empty(shape)
            launch(read_a(a), read_b(b), d)
            return d

        return run


OPS: dict[str, Flow] = {"GemmFwdOp": Gemm(), "BmmFwdOp": Bmm()}
