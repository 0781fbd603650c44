"""Matrix products: `GemmFwdOp`, `BmmFwdOp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.kernels.bmm import BmmKernel
from tileops_kernels.kernels.gemm import GemmKernel, SplitKSumKernel
from tileops_kernels.kernels.gemm_hopper import BmmHopperKernel, GemmHopperKernel
from tileops_kernels.kernels.gemm_small import BmmSmallKernel, GemmSmallKernel
from tileops_kernels.ops.flows._dense import Read, bound_over_batch, dense_copy, is_aligned, same
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Bmm", "Gemm"]


def _flipped(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.mT


def _flipped_copy(tensor: torch.Tensor) -> torch.Tensor:
    return dense_copy(tensor.mT)


def _storage(tensor: torch.Tensor, transposed: bool) -> tuple[bool, bool]:
    """Return whether the operand is stored transposed, and whether the tensor is a view that flips it."""
    flip = not tensor.is_contiguous() and tensor.mT.is_contiguous()
    return transposed ^ flip, flip


def _is_out_of_reach(tensor: torch.Tensor, transposed: bool, kernel: type) -> bool:
    """True if a GPU's copy engine cannot address the rows of a transposed operand.

    A program knows the length of the other operands' rows, and reads them without the engine if it must.
    """
    stored_transposed, flip = _storage(tensor, transposed)
    row_bytes = tensor.shape[-2 if flip else -1] * tensor.element_size()
    return tensor.device.type == "cuda" and stored_transposed and row_bytes % kernel.ALIGNMENT != 0


def _operand(tensor: torch.Tensor, transposed: bool, kernel: type, any_rows: bool) -> tuple[bool, Read]:
    """Decide how a kernel reads one operand: whether as the transpose, and what is done to the tensor first.

    A row-major operand is read as it is, a column-major one (a `.mT` view) as the transpose of its storage.
    Anything else is copied once, and so is what the copy engine of a GPU cannot address: a start that is not
    aligned, or, unless the program takes `any_rows`, rows out of its reach.
    """
    if not any_rows and _is_out_of_reach(tensor, transposed, kernel):
        return False, (_flipped_copy if transposed else dense_copy)
    stored_transposed, flip = _storage(tensor, transposed)
    if is_aligned(tensor, kernel) and (flip or tensor.is_contiguous()):
        return stored_transposed, (_flipped if flip else same)
    return stored_transposed, (_flipped_copy if flip else dense_copy)


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

        out_of_reach = _is_out_of_reach(a, trans_a, GemmKernel)
        small = out_of_reach and GemmSmallKernel.suits(a.device, m=m, n=n, k=k, dtype=dtype)
        general = GemmSmallKernel if small else GemmKernel
        trans_a, read_a = _operand(a, trans_a, general, any_rows=small)
        trans_b, read_b = _operand(b, trans_b, general, any_rows=True)
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

        trans_a, read_a = _operand(a, False, BmmKernel, any_rows=False)
        trans_b, read_b = _operand(b, False, BmmKernel, any_rows=True)
        static = {"n": n, "k": k, "dtype": dtype, "trans_a": trans_a, "trans_b": trans_b}
        config = BmmKernel.config_for(a.device, n=n, k=k, dtype=dtype)
        sizes = {"m": m, "n": n, "k": k, "batch": batch}
        if BmmSmallKernel.suits(a.device, dtype=dtype, **sizes):
            kernel, config = BmmSmallKernel, BmmSmallKernel.config_for(a.device)
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
