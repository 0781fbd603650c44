"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tileops_kernels.kernels.rope import RopeKernel
from tileops_kernels.ops.flows._dense import reader
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
        # Rows of the program are tokens: the positions of one sequence after the other.
        seq, tokens = x.shape[0 if x.dim() < 4 else 1], x.numel() // (heads * head_dim)
        shape = (tokens, heads, head_dim)
        program = RopeKernel.compiled(
            x.device,
            heads=heads,
            head_dim=head_dim,
            rotary_dim=binding.params.get("rotary_dim") or head_dim,
            interleaved=self.interleaved,
            position_dtype=binding.inputs["position_ids"].dtype if positions else None,
            base=float(binding.params["base"]),
            dtype=dtype,
        )
        read = reader(x, RopeKernel)
        if positions:
            read_positions = reader(positions[0], RopeKernel)
            launch_at = program.bound(read(x), read_positions(positions[0]), x.new_empty(shape))

            def run_at(x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
                out = x.new_empty(shape)
                launch_at(read(x), read_positions(position_ids), out)
                return out

            return run_at

        full_shape = x.shape
        launch = program.bound(read(x).view(shape), x.new_empty(shape), seq)

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
