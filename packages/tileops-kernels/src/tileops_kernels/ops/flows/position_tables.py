"""Flow of tables of positions: ops without inputs, made on torch's default device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import torch_dtype
from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.position_tables import AlibiKernel, SinusoidalKernel
from tileops_kernels.ops.flows._launch import Part, bind
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows._rows import row_pieces
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "PositionTable"]

_SINUSOIDAL_BASE = 10000.0


def _slopes(heads: int) -> torch.Tensor:
    return torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)], dtype=torch.float32)


def _quarters(columns: int) -> torch.Tensor:
    """Quarter turns per position of each pair of columns."""
    turns = [2 / pi * _SINUSOIDAL_BASE ** (-2 * k / columns) for k in range(columns // 2)]
    return torch.tensor(turns, dtype=torch.float64)


class PositionTable(Flow):
    """A table whose rows are made from their number and a few constants.

    Args:
        kernel: what makes it.
        constants: `(shape of the output) -> tensor`, made on the host once per plan.
        parts: `(shape, vec)` -> launches.
    """

    def __init__(
        self,
        kernel: type[Kernel],
        constants: Callable[[Sequence[int]], torch.Tensor],
        parts: Callable[[Sequence[int], int], list[Part]],
    ) -> None:
        self.kernels = (kernel,)
        self._kernel, self._constants, self._parts = kernel, constants, parts

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        (output,) = binding.outputs.values()
        device, dtype, shape = torch.get_default_device(), torch_dtype(output.dtype), tuple(output.shape)
        vec = vector_width([torch.empty(0, dtype=dtype, device=device)], shape[-1])
        config = self._kernel.config_for(device, vectors=shape[-1] // vec)
        program = self._kernel.compiled(device, config, dtype=output.dtype, vec=vec)
        constants = self._constants(shape).to(device)
        launch = bind(program, [constants, dtype], device, self._parts(shape, vec))

        def run() -> torch.Tensor:
            table = torch.empty(shape, dtype=dtype, device=device)
            launch(constants, table)
            return table

        return run


def _by_heads(shape: Sequence[int], vec: int) -> list[Part]:
    heads, size, _ = shape
    return [
        Part(((first, count), (first * size * size, count * size * size)), (size, size // vec))
        for first, count in row_pieces(heads, size * size)
    ]


def _at_once(shape: Sequence[int], vec: int) -> list[Part]:
    positions, columns = shape
    return [Part(((0, columns // 2), (0, positions * columns)), (positions, columns // vec))]


OPS: dict[str, Flow] = {
    "AlibiFwdOp": PositionTable(AlibiKernel, lambda shape: _slopes(shape[0]), _by_heads),
    "SinusoidalFwdOp": PositionTable(SinusoidalKernel, lambda shape: _quarters(shape[-1]), _at_once),
}
