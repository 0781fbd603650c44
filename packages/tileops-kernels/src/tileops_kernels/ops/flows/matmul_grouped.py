"""Matrix products of groups of rows: `GroupedGemmFwdOp`, `MoeGroupedGemmNopadFwdOp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.kernels.grouped_gemm import GroupedGemmKernel, GroupedGemmRowsKernel
from tileops_kernels.kernels.grouped_gemm_hopper import GroupedGemmHopperKernel
from tileops_kernels.ops.flows._dense import reader
from tileops_kernels.ops.flows._operands import operand
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "GroupedGemm", "MoeGroupedGemm"]


class GroupedGemm(Flow):
    """One product for each group of rows of `a`; where the groups lie is read by the program alone.

    On Hopper the products of rows have a schedule of their own, where its copy engine can fetch the rows.
    """

    kernels = (GroupedGemmKernel, GroupedGemmRowsKernel, GroupedGemmHopperKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        a, b, sizes, offsets = inputs
        params = binding.params
        trans_b = params.get("transpose_b", True)
        sums_rows = params.get("transpose_a", False)
        dtype = binding.inputs["a"].dtype
        kernel = GroupedGemmRowsKernel if sums_rows else GroupedGemmKernel
        require_dtypes(binding.entry.name, kernel, a=dtype)
        (result,) = binding.outputs.values()
        shape, n = result.shape, result.shape[-1]
        if n == 0:
            return lambda a, *rest: a.new_empty(shape)

        rows, k = a.shape
        # Only as columns of a matrix with symbolic rows can b lie out of reach.
        trans_b, read_b = operand(b, trans_b, kernel, any_rows=not sums_rows)
        if sums_rows:
            static, hints = {"m": k, "n": n}, {}
        else:
            static, hints = {"n": n, "k": k}, {"group_rows": -(-rows // sizes.numel())}
            if GroupedGemmHopperKernel.fits(a.device, **static):
                kernel = GroupedGemmHopperKernel
        static |= {"dtype": dtype, "trans_b": trans_b}
        program = kernel.compiled(a.device, kernel.config_for(a.device, **static, **hints), **static)
        read_a, read_sizes, read_offsets = (reader(t, kernel) for t in (a, sizes, offsets))
        launch = program.bound(
            read_a(a), read_b(b), read_sizes(sizes), read_offsets(offsets), a.new_empty(shape)
        )

        def run(a: torch.Tensor, b: torch.Tensor, sizes: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
            d = a.new_empty(shape)
            launch(read_a(a), read_b(b), read_sizes(sizes), read_offsets(offsets), d)
            return d

        return run


class MoeGroupedGemm(GroupedGemm):
    """The products of routed experts: every row with the transpose of its expert's matrix."""

    kernels = (GroupedGemmKernel, GroupedGemmHopperKernel)


OPS: dict[str, Flow] = {"GroupedGemmFwdOp": GroupedGemm(), "MoeGroupedGemmNopadFwdOp": MoeGroupedGemm()}
