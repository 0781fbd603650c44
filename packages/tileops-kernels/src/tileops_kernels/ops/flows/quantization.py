"""Flow of the quantisation of rows: one launch, two outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import dtype_name
from tileops_kernels.kernels.fp8_quant import Fp8QuantKernel
from tileops_kernels.ops.flows._launch import Part, bind
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows._rows import row_layout, row_pieces
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Quantize"]


class Quantize(Flow):
    """Rows to 8-bit floats and one scale each."""

    kernels = (Fp8QuantKernel,)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        (x,) = inputs
        shape, dtype, device = x.shape, x.dtype, x.device

        def outputs() -> tuple[torch.Tensor, torch.Tensor]:
            return (
                torch.empty(shape[:-1], dtype=torch.float32, device=device),
                torch.empty(shape, dtype=torch.float8_e4m3fn, device=device),
            )

        if x.numel() == 0:
            return lambda x: outputs()
        rows = row_layout(x, 1)
        fresh = torch.empty(0, dtype=dtype, device=device)
        vec = vector_width([fresh if rows.step is None else x, fresh], rows.length, rows.pitch)
        program = Fp8QuantKernel.compiled(
            device, vectors=rows.length // vec, vec=vec, dtype=dtype_name(dtype)
        )
        parts = [
            Part(
                (rows.span(start, count), (start, count), (start * rows.length, count * rows.length)),
                (count, rows.pitch // vec),
            )
            for start, count in row_pieces(rows.count, rows.pitch)
        ]
        operands = [dtype if rows.step is None else x, torch.float32, torch.float8_e4m3fn]
        launch = bind(program, operands, device, parts)

        def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            scale, output = outputs()
            launch(rows.source(x), scale, output)
            return scale, output

        return run


OPS: dict[str, Flow] = {"FP8QuantFwdOp": Quantize()}
