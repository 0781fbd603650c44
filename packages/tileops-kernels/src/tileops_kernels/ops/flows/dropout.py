"""Flow of dropout: one flat launch, or a copy where nothing can be dropped."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import dtype_name
from tileops_kernels.kernels.dropout import WORDS, DropoutKernel
from tileops_kernels.ops.flows._dense import dense_copy, reader
from tileops_kernels.ops.flows._launch import Part, bind
from tileops_kernels.ops.flows._layout import MAX_ELEMENTS
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Dropout"]

_WORD = 0xFFFFFFFF


class Dropout(Flow):
    """Elements are dropped by their place and the seed."""

    kernels = (DropoutKernel,)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        (x,) = inputs
        shape, dtype, device, numel = x.shape, x.dtype, x.device, x.numel()
        p, seed = float(binding.params["p"]), binding.params["seed"]
        if not binding.params["training"] or p == 0 or numel == 0:
            return dense_copy

        # Words from the threshold on are kept. A threshold of 2^32 keeps none, nor does a scale of 0.
        threshold = ceil(p * 2.0**32)
        scale = 0.0 if threshold > _WORD else 1 / (1 - p)
        numbers = (seed & _WORD, seed >> 32 & _WORD, min(threshold, _WORD), scale)
        parts = [
            Part(((start, min(MAX_ELEMENTS, numel - start)),) * 2, (start // WORDS, *numbers))
            for start in range(0, numel, MAX_ELEMENTS)
        ]
        read = reader(x, DropoutKernel)
        program = DropoutKernel.compiled(device, dtype=dtype_name(dtype))
        launch = bind(program, [dtype if read is dense_copy else x, dtype], device, parts)

        def run(x: torch.Tensor) -> torch.Tensor:
            output = torch.empty(shape, dtype=dtype, device=device)
            launch(read(x), output)
            return output

        return run


OPS: dict[str, Flow] = {"DropoutFwdOp": Dropout()}
