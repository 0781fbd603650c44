"""Rotary position embedding."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.kernels.rope import RopeKernel, pair_dtype
from tileops_kernels.ops.flows._dense import dense_copy, reader
from tileops_kernels.ops.flows._frequencies import LLAMA31, LONGROPE, PLAIN, YARN, Rule
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows.base import Flow, Run, require_dtypes

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Rope"]


class Rope(Flow):
    """Rotate the pairs of every head by its token's position: the row number, or the token's own.

    Args:
        interleaved: pairs are neighbours instead of lying half a head apart.
        rule: what makes the frequencies.
        divided: a second input divides the frequencies; otherwise it has the positions.
    """

    kernels = (RopeKernel,)

    def __init__(self, *, interleaved: bool, rule: Rule = PLAIN, divided: bool = False) -> None:
        self.interleaved, self.rule, self.divided = interleaved, rule, divided

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, *tables = [tensor for tensor in inputs if tensor is not None]
        positions, divisors = ([], tables) if self.divided else (tables, [])
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
            divided=bool(divisors),
            dtype=dtype,
            # What the program reads and writes is aligned: its output is new, its input read or copied so.
            vec=vector_width([torch.empty(0, dtype=stored, device=x.device)], rotary_dim // 2, pairs),
        )
        # A pair is read as one element, on a CPU too.
        split_pair = self.interleaved and x.data_ptr() % (2 * x.element_size())
        read = dense_copy if split_pair else reader(x, RopeKernel)
        example = x.new_empty(shape).view(stored)
        quarters = [f * 2 / pi for f in self.rule.frequencies(binding.params, rotary_dim)]
        frequencies = torch.tensor(quarters, dtype=torch.float64, device=x.device)
        read_positions = [reader(tensor, RopeKernel) for tensor in positions]
        read_divisors = [reader(tensor, RopeKernel) for tensor in divisors]
        numbers = (*(() if positions else (seq,)), self.rule.stretch(binding.params))

        def arguments(tables: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            """Return what lies between x and the output."""
            return [
                *(read(table) for read, table in zip(read_positions, tables, strict=False)),
                frequencies,
                *(read(table) for read, table in zip(read_divisors, tables, strict=False)),
            ]

        launch = program.bound(example, *arguments(tables), example, *numbers)
        full_shape = x.shape

        def run(x: torch.Tensor, *tables: torch.Tensor | None) -> torch.Tensor:
            out = x.new_empty(full_shape)
            launch(read(x), *arguments([t for t in tables if t is not None]), out, *numbers)
            return out

        return run


OPS: dict[str, Flow] = {
    "RopeNeoxFwdOp": Rope(interleaved=False),
    "RopeNonNeoxFwdOp": Rope(interleaved=True),
    "RopeNeoxPositionIdsFwdOp": Rope(interleaved=False),
    "RopeLlama31FwdOp": Rope(interleaved=False, rule=LLAMA31),
    "RopeYarnFwdOp": Rope(interleaved=False, rule=YARN),
    "RopeLongRopeFwdOp": Rope(interleaved=False, rule=LONGROPE, divided=True),
}
