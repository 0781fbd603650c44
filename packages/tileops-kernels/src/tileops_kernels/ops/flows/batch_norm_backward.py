"""Flow of the gradients of batch normalisation: sums per channel, merged if blocks share it, then grad_x."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import dtype_name
from tileops_kernels.kernels.batch_norm_backward import (
    BatchNormBackwardKernel,
    BatchNormSumsKernel,
    BatchNormSumsMergeKernel,
)
from tileops_kernels.ops.flows._launch import Part, bind
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "BatchNormBackward"]


class BatchNormBackward(Flow):
    """Gradients of x, weight and bias."""

    kernels = (BatchNormBackwardKernel, BatchNormSumsKernel, BatchNormSumsMergeKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        grad, x, *_ = inputs
        shape, dtype, device = x.shape, x.dtype, x.device
        channels, space, size = shape[1], prod(shape[2:]), x.numel()
        fresh = torch.empty(0, dtype=dtype, device=device)
        vec = vector_width([fresh, *(t for t in (grad, x) if t.is_contiguous())], space)
        static, single = {"dtype": dtype_name(dtype), "vec": vec}, torch.float32
        config = BatchNormSumsKernel.config_for(device, **static)
        total, tile = shape[0] * space // vec, config.threads * config.unroll
        parts = min(-(-config.target_blocks // channels), -(-total // tile))
        share = -(-total // (parts * tile)) * tile
        parts = -(-total // share)

        examples = [t if t.is_contiguous() else dtype for t in (grad, x)]
        whole, per_channel = [(0, size)] * 2, [(0, channels)]
        sums = bind(
            BatchNormSumsKernel.compiled(device, config, **static),
            [*examples, *[single] * 4],
            device,
            [
                Part(
                    (*whole, *per_channel * 2, *[(0, parts * channels)] * 2),
                    (space // vec, total, share, parts),
                )
            ],
        )
        merge = bind(
            BatchNormSumsMergeKernel.compiled(device),
            [single] * 4,
            device,
            [Part((*[(0, parts * channels)] * 2, *per_channel * 2), (parts,))],
        )
        write = bind(
            BatchNormBackwardKernel.compiled(device, **static),
            [*examples, *[single] * 5, dtype],
            device,
            [Part((*whole, *per_channel * 5, (0, size)), (space // vec, size // vec, channels / size))],
        )

        def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            grad, x, weight, mean, rstd = (t.contiguous() for t in inputs)
            grad_x = torch.empty(shape, dtype=dtype, device=device)
            grad_bias, grad_weight = (torch.empty(channels, dtype=single, device=device) for _ in range(2))
            if parts == 1:
                sums(grad, x, mean, rstd, grad_bias, grad_weight)
            else:
                shares = [torch.empty(parts * channels, dtype=single, device=device) for _ in range(2)]
                sums(grad, x, mean, rstd, *shares)
                merge(*shares, grad_bias, grad_weight)
            write(grad, x, weight, mean, rstd, grad_bias, grad_weight, grad_x)
            return grad_x, grad_weight, grad_bias

        return run


OPS: dict[str, Flow] = {"BatchNormBwdOp": BatchNormBackward()}
