"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.kernels.rope import RopeKernel, pair_dtype
from tileops_kernels.ops.flows._dense import dense_copy, reader, same
from tileops_kernels.ops.flows._frequencies import LLAMA31, LONGROPE, YARN, Rule
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Rope"]


class Rope(Flow):
    """Rotate the pairs of every head by its token's position: the row number, or the token's own.

    Args:
        interleaved: pairs are neighbours instead of lying half a head apart.
        rule: what makes the frequencies, if it is more than their base; a second input divides them.
    """

    kernels = (RopeKernel,)

    def __init__(self, *, interleaved: bool, rule: Rule | None = None) -> None:
        self.interleaved, self.rule = interleaved, rule

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, *tables = [tensor for tensor in inputs if tensor is not None]
        positions, divisors = ([], tables) if self.rule else (tables, [])
        dtype = binding.inputs["x"].dtype
        require_dtypes(binding.entry.name, RopeKernel, x=dtype)
        if x.numel() == 0:
            return lambda x, *tables: x.new_empty(x.shape)

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
            base=None if self.rule else float(binding.params["base"]),
            divided=bool(divisors),
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
        if self.rule:
            quarters = [f * 2 / pi for f in self.rule.frequencies(binding.params, head_dim)]
            frequencies = torch.tensor(quarters, dtype=torch.float64, device=x.device)
            read_divisors = reader(divisors[0], RopeKernel) if divisors else same
            numbers = (seq, self.rule.stretch(binding.params))
            launch_by_table = program.bound(
                example, frequencies, *map(read_divisors, divisors), example, *numbers
            )

            def run_by_table(x: torch.Tensor, *divisors: torch.Tensor | None) -> torch.Tensor:
                out = x.new_empty(full_shape)
                given = [read_divisors(tensor) for tensor in divisors if tensor is not None]
                launch_by_table(read(x), frequencies, *given, out, *numbers)
                return out

            return run_by_table

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
    "RopeLlama31FwdOp": Rope(interleaved=False, rule=LLAMA31),
    "RopeYarnFwdOp": Rope(interleaved=False, rule=YARN),
    "RopeLongRopeFwdOp": Rope(interleaved=False, rule=LONGROPE),
}
