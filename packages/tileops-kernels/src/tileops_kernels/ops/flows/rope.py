"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.kernels.rope import RopeKernel, pair_dtype
from tileops_kernels.ops.flows._dense import dense_copy, reader
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Rope"]


class Rope(Flow):
    """Rotate the pairs of every head by its token's position: the row number, or the token's own.

    Args:
        interleaved: pairs are neighbours instead of lying half a head apart.
    """

    kernels = (RopeKernel,)

    def __init__(self, *, interleaved: bool) -> None:
        self.interleaved = interleaved

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, *positions = inputs
        dtype = binding.inputs["x"].dtype
        require_dtypes(binding.entry.name, RopeKernel, x=dtype)
        if x.numel() == 0:
            return lambda x, *positions: x.new_empty(x.shape)

        heads, head_dim = (1 if x.dim() == 2 else x.shape[-2]), x.shape[-1]
        rotary_dim = binding.params.get("rotary_dim") or head_dim
        # Rows of the program are tokens: the positions of one sequence after the other.
        seq, tokens = x.shape[0 if x.dim() < 4 else 1], x.numel() // (heads * head_dim)
        shape = (tokens, heads * head_dim)
        stored = torch_dtype(pair_dtype(dtype)) if self.interleaved else x.dtype
        pairs = head_dim // 2 if self.interleaved else head_dim
        program = RopeKernel.compiled(
            x.device,
            heads=heads,
            head_dim=head_dim,
            rotary_dim=rotary_dim,
            interleaved=self.interleaved,
            position_dtype=binding.inputs["position_ids"].dtype if positions else None,
            base=float(binding.params["base"]),
            dtype=dtype,
            # What the program reads and writes is aligned: its output is new, its input read or copied so.
            vec=vector_width([torch.empty(0, dtype=stored, device=x.device)], rotary_dim // 2, pairs),
        )
        # A pair is read as one element, on a CPU too.
        split_pair = self.interleaved and x.data_ptr() % (2 * x.element_size())
        read = dense_copy if split_pair else reader(x, RopeKernel)
        example = x.new_empty(shape).view(stored)
        if positions:
            read_positions = reader(positions[0], RopeKernel)
            launch_at = program.bound(example, read_positions(positions[0]), example)

            def run_at(x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
                out = x.new_empty(x.shape)
                launch_at(read(x), read_positions(position_ids), out)
                return out

            return run_at

        full_shape = x.shape
        launch = program.bound(example, example, seq)

        def run(x: torch.Tensor) -> torch.Tensor:
            out = x.new_empty(full_shape)
            launch(read(x), out, seq)
            return out

        return run


OPS: dict[str, Flow] = {
    "RopeNeoxFwdOp": Rope(interleaved=False),
    "RopeNonNeoxFwdOp": Rope(interleaved=True),
    "RopeNeoxPositionIdsFwdOp": Rope(interleaved=False),
}
