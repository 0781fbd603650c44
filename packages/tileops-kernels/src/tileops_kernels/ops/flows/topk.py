"""Flow of the selection of the greatest scores of ranges: one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.topk import TopkKernel
from tileops_kernels.ops.flows._launch import Part, bind
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows._rows import row_layout, row_pieces
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Topk"]


class Topk(Flow):
    """Indices of the greatest scores per query and group."""

    kernels = (TopkKernel,)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        scores, starts, ends = inputs
        device, k = scores.device, binding.params["topk"]
        (output,) = binding.outputs.values()
        shape, groups = tuple(output.shape), scores.shape[3]
        if k > TopkKernel.MAX_K:
            raise NotImplementedOpError(
                binding.entry.name, argument="topk", got=k, expected=f"at most {TopkKernel.MAX_K}"
            )
        if 0 in shape:
            return lambda scores, starts, ends: torch.empty(shape, dtype=torch.int32, device=device)

        rows = row_layout(scores, 2)
        dtype, index = torch.float32, torch.int32
        example = torch.empty(0, dtype=dtype, device=device) if rows.step is None else scores
        vec = vector_width([example], scores.shape[2], rows.pitch) if groups == 1 else 1
        program = TopkKernel.compiled(device, k=k, vec=vec, grouped=groups > 1)
        parts = [
            Part(
                (
                    rows.span(first, count),
                    (first, count),
                    (first, count),
                    (first * groups * k, count * groups * k),
                ),
                (rows.pitch // vec, groups),
            )
            for first, count in row_pieces(rows.count, rows.pitch, groups * k)
        ]
        operands = [
            dtype if rows.step is None else scores,
            starts if starts.is_contiguous() else index,
            ends if ends.is_contiguous() else index,
            index,
        ]
        launch = bind(program, operands, device, parts)

        def run(scores: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            indexes = torch.empty(shape, dtype=index, device=device)
            launch(rows.source(scores), starts.contiguous(), ends.contiguous(), indexes)
            return indexes

        return run


OPS: dict[str, Flow] = {"TopkSelectorFwdOp": Topk()}
