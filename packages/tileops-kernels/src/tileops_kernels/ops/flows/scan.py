"""Flow of the cumulative sums and products: rows in place, other axes by columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import dtype_name
from tileops_kernels.kernels.scan import ColumnScanKernel, ScanKernel
from tileops_kernels.ops.flows._axes import Stage, normalised_axes, stages
from tileops_kernels.ops.flows._launch import Part, bind
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows._rows import Rows, row_layout, row_pieces
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Scan"]


class Scan(Flow):
    """Cumulative sum or product along one axis.

    Args:
        op: "sum" or "prod".
    """

    kernels = (ScanKernel, ColumnScanKernel)

    def __init__(self, op: str) -> None:
        self._op = op

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        (x,) = inputs
        shape, dtype, device = x.shape, x.dtype, x.device
        if x.numel() == 0:
            return lambda x: torch.empty(shape, dtype=dtype, device=device)
        dim = binding.params["dim"]
        (stage,) = stages(tuple(shape), normalised_axes(dim, x.dim())) or [Stage(1, 1, 1)]
        return self._columns(x, stage) if stage.inner > 1 else self._rows(x, dim)

    def _rows(self, x: torch.Tensor, dim: int) -> Run:
        shape, dtype, device = x.shape, x.dtype, x.device
        # A row is everything from the axis on: what follows it has size 1.
        rows = row_layout(x, x.dim() - dim % x.dim()) if x.dim() else Rows(1, 1, 1)
        fresh = torch.empty(0, dtype=dtype, device=device)
        vec = vector_width([fresh if rows.step is None else x, fresh], rows.length, rows.pitch)
        config = ScanKernel.config_for(device, vectors=rows.length // vec)
        program = ScanKernel.compiled(device, config, op=self._op, dtype=dtype_name(dtype), vec=vec)
        parts = [
            Part(
                (rows.span(start, count), (start * rows.length, count * rows.length)),
                (count, rows.pitch // vec, rows.length // vec),
            )
            for start, count in row_pieces(rows.count, rows.pitch, rows.length)
        ]
        launch = bind(program, [dtype if rows.step is None else x, dtype], device, parts)

        def run(x: torch.Tensor) -> torch.Tensor:
            output = torch.empty(shape, dtype=dtype, device=device)
            launch(rows.source(x), output)
            return output

        return run

    def _columns(self, x: torch.Tensor, stage: Stage) -> Run:
        shape, dtype, device = x.shape, x.dtype, x.device
        fresh = torch.empty(0, dtype=dtype, device=device)
        vec = vector_width([x if x.is_contiguous() else fresh, fresh], stage.inner)
        program = ColumnScanKernel.compiled(device, op=self._op, dtype=dtype_name(dtype), vec=vec)
        pitch = stage.length * stage.inner
        parts = [
            Part(((start * pitch, outer * pitch),) * 2, (outer, stage.length, stage.inner // vec))
            for start, outer in row_pieces(stage.outer, pitch)
        ]
        launch = bind(program, [x if x.is_contiguous() else dtype, dtype], device, parts)

        def run(x: torch.Tensor) -> torch.Tensor:
            output = torch.empty(shape, dtype=dtype, device=device)
            launch(x.contiguous(), output)
            return output

        return run


OPS: dict[str, Flow] = {"CumsumFwdOp": Scan("sum"), "CumprodFwdOp": Scan("prod")}
