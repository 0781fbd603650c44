"""Flow of the normalisations: rows in, rows out."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import dtype_name
from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.group_norm import GroupNormKernel
from tileops_kernels.kernels.layer_norm import LayerNormKernel
from tileops_kernels.kernels.rms_norm import RMSNormKernel
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows._rows import row_layout, row_pieces
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "GroupNorm", "RowNorm"]


class RowNorm(Flow):
    """RMSNorm or LayerNorm over the trailing dims, with or without a residual.

    Inputs: x, (residual,) and one tensor per row element: weight, and a bias if the kernel takes one.
    """

    def __init__(self, kernel: type[Kernel], *, residual: bool = False) -> None:
        self.kernels = (kernel,)
        self._kernel = kernel
        self._residual = residual

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, *_ = tensors = [t for t in inputs if t is not None]
        shape, dtype, device, residual = x.shape, x.dtype, x.device, self._residual
        eps = binding.params["eps"]
        eps = torch.finfo(x.dtype).eps if eps is None else float(eps)
        if x.numel() == 0:
            return _empty_like(shape, 2 if residual else 1)

        row_operands = 2 if residual else 1
        inner_dims = len(binding.packs["norm"])
        layouts = [row_layout(t, inner_dims) for t in tensors[:row_operands]]
        num_rows, hidden = layouts[0].count, layouts[0].length
        in_place = [t for t, rows in zip(tensors, layouts, strict=False) if rows.step is not None]
        fresh = torch.empty(0, dtype=dtype, device=device)
        affine = [t for t in tensors[row_operands:] if t.is_contiguous()]
        vec = vector_width([*in_place, *affine, fresh], hidden, *(rows.pitch for rows in layouts))
        launch = self._kernel.compiled(
            device, vectors=hidden // vec, vec=vec, dtype=dtype_name(x.dtype), residual=residual
        ).launcher
        steps = [rows.pitch // vec for rows in layouts]
        pieces = list(row_pieces(num_rows, hidden, *(rows.pitch for rows in layouts)))

        def run(*operands: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
            outputs = [torch.empty(shape, dtype=dtype, device=device) for _ in range(row_operands)]
            views = [rows.view(t) for rows, t in zip(layouts, operands, strict=False)]
            weights = [t.contiguous().view(-1) for t in operands[row_operands:]]
            out_views = [t.view(-1) for t in outputs]
            if len(pieces) == 1:
                launch(*views, *weights, *out_views, num_rows, *steps, eps)
            else:
                for start, count in pieces:
                    part = [
                        v[start * rows.pitch : (start + count - 1) * rows.pitch + hidden]
                        for v, rows in zip(views, layouts, strict=True)
                    ]
                    out_part = [v[start * hidden : (start + count) * hidden] for v in out_views]
                    launch(*part, *weights, *out_part, count, *steps, eps)
            return outputs[0] if row_operands == 1 else tuple(outputs)

        return run


class GroupNorm(Flow):
    """GroupNorm of (batch, channels, *spatial), weights optional."""

    kernels = (GroupNormKernel,)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, weight, _ = inputs
        shape, device, dtype = x.shape, x.device, x.dtype
        groups, eps = binding.params["num_groups"], float(binding.params["eps"])
        if x.numel() == 0:
            return _empty_like(shape, 1)

        channels, spatial = shape[1] // groups, prod(shape[2:])
        row = channels * spatial
        fresh = torch.empty(0, dtype=dtype, device=device)
        # A vector lies within one channel, so that its weight is one element.
        vec = vector_width([x, fresh] if x.is_contiguous() else [fresh], spatial)
        launch = GroupNormKernel.compiled(
            device,
            vectors=row // vec,
            vec=vec,
            dtype=dtype_name(dtype),
            groups=groups,
            channels=channels,
            affine=weight is not None,
        ).launcher
        pieces = [
            (start * row, count * row, count)
            for start, count in row_pieces(shape[0] * groups, row)
        ]

        def run(*operands: torch.Tensor | None) -> torch.Tensor:
            source = operands[0].contiguous().view(-1)
            output = torch.empty(shape, dtype=dtype, device=device)
            target = output.view(-1)
            weights = [t.contiguous() for t in operands[1:] if t is not None]
            for start, elements, rows in pieces:
                end = start + elements
                launch(source[start:end], *weights, target[start:end], rows, eps)
            return output

        return run


def _empty_like(shape: torch.Size, count: int) -> Run:
    def run(*operands: torch.Tensor | None) -> torch.Tensor | tuple[torch.Tensor, ...]:
        x = operands[0]
        outputs = tuple(torch.empty(shape, dtype=x.dtype, device=x.device) for _ in range(count))
        return outputs[0] if count == 1 else outputs

    return run


OPS: dict[str, Flow] = {
    "RMSNormFwdOp": RowNorm(RMSNormKernel),
    "LayerNormFwdOp": RowNorm(LayerNormKernel),
    "FusedAddRMSNormFwdOp": RowNorm(RMSNormKernel, residual=True),
    "FusedAddLayerNormFwdOp": RowNorm(LayerNormKernel, residual=True),
    "GroupNormFwdOp": GroupNorm(),
}
