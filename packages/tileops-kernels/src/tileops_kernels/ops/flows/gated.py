"""Flow of the gated activations: rows of two halves in, rows out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import dtype_name
from tileops_kernels.kernels.gated import GatedKernel
from tileops_kernels.ops.flows._launch import Part, bind
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows._rows import row_layout, row_pieces
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Gated"]


class Gated(Flow):
    """One gated activation, by its name in the kernel's table."""

    kernels = (GatedKernel,)

    def __init__(self, activation: str) -> None:
        self._activation = activation

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        (x,) = inputs
        (output,) = binding.outputs.values()
        shape, dtype, device = tuple(output.shape), x.dtype, x.device
        if x.numel() == 0:
            return lambda x: torch.empty(shape, dtype=dtype, device=device)
        rows, columns = row_layout(x, 1), x.shape[-1] // 2
        fresh = torch.empty(0, dtype=dtype, device=device)
        vec = vector_width([fresh if rows.step is None else x, fresh], columns, rows.pitch)
        program = GatedKernel.compiled(device, activation=self._activation, dtype=dtype_name(dtype), vec=vec)
        parts = [
            Part(
                (rows.span(start, count), (start * columns, count * columns)),
                (count, rows.pitch // vec, columns // vec),
            )
            for start, count in row_pieces(rows.count, rows.pitch)
        ]
        launch = bind(program, [dtype if rows.step is None else x, dtype], device, parts)

        def run(x: torch.Tensor) -> torch.Tensor:
            result = torch.empty(shape, dtype=dtype, device=device)
            launch(rows.source(x), result)
            return result

        return run


OPS: dict[str, Flow] = {
    "SiluAndMulFwdOp": Gated("silu"),
    "GeluAndMulFwdOp": Gated("gelu"),
    "GeluTanhAndMulFwdOp": Gated("gelu_tanh"),
}
