"""Flow of the normalisations: rows in, rows out."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.dtypes import dtype_name
from tileops_kernels.kernels.ada_layer_norm import AdaLayerNormKernel
from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.group_norm import GroupNormKernel
from tileops_kernels.kernels.layer_norm import LayerNormKernel
from tileops_kernels.kernels.rms_norm import RMSNormKernel
from tileops_kernels.ops.flows._launch import Part, bind
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows._rows import row_layout, row_pieces
from tileops_kernels.ops.flows._scalars import as_epsilon
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "GroupNorm", "RowNorm"]


class RowNorm(Flow):
    """Normalisation of rows over the trailing dims.

    Inputs: x and what else has rows of its own (a residual; scale and shift), then one tensor per row
    element: weight, and a bias if the kernel takes one.

    Args:
        kernel: what normalises.
        row_operands: inputs that have rows.
        outputs: outputs, shaped like x.
        **static: the kernel's options.
    """

    def __init__(
        self, kernel: type[Kernel], *, row_operands: int = 1, outputs: int = 1, **static: Any
    ) -> None:
        self.kernels = (kernel,)
        self._kernel = kernel
        self._row_operands, self._outputs = row_operands, outputs
        self._static = static

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, *_ = tensors = [t for t in inputs if t is not None]
        shape, dtype, device = x.shape, x.dtype, x.device
        row_operands, outputs = self._row_operands, self._outputs
        eps = binding.params["eps"]
        eps = as_epsilon(torch.finfo(x.dtype).eps if eps is None else eps)
        if x.numel() == 0:
            return _empty_like(shape, outputs)

        inner_dims = len(binding.packs["norm"]) if "norm" in binding.packs else 1
        layouts = [row_layout(t, inner_dims) for t in tensors[:row_operands]]
        num_rows, hidden = layouts[0].count, layouts[0].length
        in_place = [t for t, rows in zip(tensors, layouts, strict=False) if rows.step is not None]
        fresh = torch.empty(0, dtype=dtype, device=device)
        affine = [t for t in tensors[row_operands:] if t.is_contiguous()]
        vec = vector_width([*in_place, *affine, fresh], hidden, *(rows.pitch for rows in layouts))
        program = self._kernel.compiled(
            device, vectors=hidden // vec, vec=vec, dtype=dtype_name(dtype), **self._static
        )
        steps = [rows.pitch // vec for rows in layouts]
        row = ((0, hidden),) * (len(tensors) - row_operands)
        parts = [
            Part(
                (*(rows.span(start, count) for rows in layouts), *row)
                + ((start * hidden, count * hidden),) * outputs,
                (count, *steps, eps),
            )
            for start, count in row_pieces(num_rows, hidden, *(rows.pitch for rows in layouts))
        ]
        examples = [
            t if usable else dtype
            for t, usable in zip(
                tensors,
                [rows.step is not None for rows in layouts]
                + [t.is_contiguous() for t in tensors[row_operands:]],
                strict=True,
            )
        ]
        launch = bind(program, [*examples, *[dtype] * outputs], device, parts)

        if row_operands == 1:
            (rows,) = layouts

            def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
                output = torch.empty(shape, dtype=dtype, device=device)
                launch(rows.source(x), *[w.contiguous() for w in weights], output)
                return output

            return run

        def run_with_rows(*operands: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
            results = [torch.empty(shape, dtype=dtype, device=device) for _ in range(outputs)]
            sources = [rows.source(t) for rows, t in zip(layouts, operands, strict=False)]
            launch(*sources, *[w.contiguous() for w in operands[row_operands:]], *results)
            return results[0] if outputs == 1 else tuple(results)

        return run_with_rows


class GroupNorm(Flow):
    """GroupNorm of (batch, channels, *spatial), weights optional."""

    kernels = (GroupNormKernel,)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, weight, _ = inputs
        shape, device, dtype = x.shape, x.device, x.dtype
        groups, eps = binding.params["num_groups"], as_epsilon(binding.params["eps"])
        if x.numel() == 0:
            return _empty_like(shape, 1)

        channels, spatial = shape[1] // groups, prod(shape[2:])
        row = channels * spatial
        fresh = torch.empty(0, dtype=dtype, device=device)
        # A vector lies within one channel, so that its weight is one element.
        vec = vector_width([x, fresh] if x.is_contiguous() else [fresh], spatial)
        program = GroupNormKernel.compiled(
            device,
            vectors=row // vec,
            vec=vec,
            dtype=dtype_name(dtype),
            groups=groups,
            channels=channels,
            affine=weight is not None,
        )
        weights = [] if weight is None else [dtype, dtype]
        parts = [
            Part(
                ((start * row, count * row), *[(0, shape[1])] * len(weights), (start * row, count * row)),
                (count, eps),
            )
            # Whole samples, so that a part starts at group 0.
            for start, count in row_pieces(shape[0] * groups, row, multiple=groups)
        ]
        launch = bind(program, [x if x.is_contiguous() else dtype, *weights, dtype], device, parts)

        def run(x: torch.Tensor, *weights: torch.Tensor | None) -> torch.Tensor:
            output = torch.empty(shape, dtype=dtype, device=device)
            launch(x.contiguous(), *[w.contiguous() for w in weights if w is not None], output)
            return output

        return run


def _empty_like(shape: torch.Size, count: int) -> Run:
    def run(*operands: torch.Tensor | None) -> torch.Tensor | tuple[torch.Tensor, ...]:
        x = operands[0]
        outputs = tuple(torch.empty(shape, dtype=x.dtype, device=x.device) for _ in range(count))
        return outputs[0] if count == 1 else outputs

    return run


OPS: dict[str, Flow] = {
    "RMSNormFwdOp": RowNorm(RMSNormKernel, residual=False),
    "LayerNormFwdOp": RowNorm(LayerNormKernel, residual=False),
    "FusedAddRMSNormFwdOp": RowNorm(RMSNormKernel, row_operands=2, outputs=2, residual=True),
    "FusedAddLayerNormFwdOp": RowNorm(LayerNormKernel, row_operands=2, outputs=2, residual=True),
    "AdaLayerNormFwdOp": RowNorm(AdaLayerNormKernel, row_operands=3, gated=False),
    "AdaLayerNormZeroFwdOp": RowNorm(AdaLayerNormKernel, row_operands=4, gated=True),
    "GroupNormFwdOp": GroupNorm(),
}
