"""Products with 4-bit weights: `GemmW4A16FwdOp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.kernels.gemm import SplitKSumKernel
from tileops_kernels.kernels.gemm_w4a16 import GemmW4A16Kernel
from tileops_kernels.ops.flows._dense import reader
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "GemmW4A16"]


class GemmW4A16(Flow):
    """`d = activation @ weight^T`; parts of the sum over k, where there are any, are added in order."""

    kernels = (GemmW4A16Kernel, SplitKSumKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        activation = inputs[0]
        dtype = binding.inputs["activation"].dtype
        require_dtypes(binding.entry.name, GemmW4A16Kernel, activation=dtype)
        (m, k), n, device = activation.shape, binding.dims["N"], activation.device
        if m * n == 0:
            return lambda x, *rest: x.new_empty((m, n))
        if k == 0:
            return lambda x, *rest: x.new_zeros((m, n))

        config = GemmW4A16Kernel.config_for(device, m=m, n=n, k=k)
        static = {"n": n, "k": k, "group_size": binding.params["group_size"]}
        program = GemmW4A16Kernel.compiled(device, config, **static)
        reads = tuple(reader(t, GemmW4A16Kernel) for t in inputs)
        operands = [read(t) for read, t in zip(reads, inputs, strict=True)]
        result = activation.new_empty((m, n))
        if config.split_k == 1:
            launch = program.bound(*operands, result)

            def run(*inputs: torch.Tensor) -> torch.Tensor:
                d = inputs[0].new_empty((m, n))
                launch(*[read(t) for read, t in zip(reads, inputs, strict=True)], d)
                return d

            return run

        part_shape = (config.split_k, m, n)
        parts = activation.new_empty(part_shape, dtype=torch.float32)
        launch_parts = program.bound(*operands, parts)
        add_parts = SplitKSumKernel.compiled(device, n=n, split=config.split_k, dtype=dtype).bound(
            parts, result
        )

        def run_split(*inputs: torch.Tensor) -> torch.Tensor:
            partial = inputs[0].new_empty(part_shape, dtype=torch.float32)
            d = inputs[0].new_empty((m, n))
            launch_parts(*[read(t) for read, t in zip(reads, inputs, strict=True)], partial)
            add_parts(partial, d)
            return d

        return run_split


OPS: dict[str, Flow] = {"GemmW4A16FwdOp": GemmW4A16()}
