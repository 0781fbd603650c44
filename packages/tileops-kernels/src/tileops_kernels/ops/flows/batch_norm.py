"""Flows of the normalisations per channel of (batch, channels, *spatial), with running statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.dtypes import dtype_name
from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.batch_norm import (
    BatchNormInferenceKernel,
    BatchNormStatisticsKernel,
    BatchNormTrainingKernel,
    ChannelConfig,
    RunningStatisticsKernel,
)
from tileops_kernels.kernels.batch_norm_rows import BatchNormRowsKernel
from tileops_kernels.kernels.instance_norm import InstanceNormKernel
from tileops_kernels.kernels.variance import VarianceMergeKernel
from tileops_kernels.ops.flows._launch import Launch, Part, bind
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows._rows import row_pieces
from tileops_kernels.ops.flows._scalars import as_epsilon
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "BatchNorm", "InstanceNorm"]

_SINGLE = torch.float32
# A CPU walks channels of so many elements one by one, else rows of whole samples of at least so many.
_LONG_CHANNEL, _ROW = 32, 1024
# Vectors of a tensor are numbered with 32 bits.
_MOST_VECTORS = (1 << 31) - 1


def _example(tensor: torch.Tensor) -> torch.Tensor | torch.dtype:
    return tensor if tensor.is_contiguous() else tensor.dtype


def _vector_width(x: torch.Tensor, space: int) -> int:
    """Return the width of a vector that lies within one channel."""
    fresh = torch.empty(0, dtype=x.dtype, device=x.device)
    return vector_width([x, fresh] if x.is_contiguous() else [fresh], space)


def _writing(
    update: Callable[[torch.Tensor, torch.Tensor], None], mean: torch.Tensor, variance: torch.Tensor
) -> None:
    """Run `update`, which writes contiguous vectors, on running statistics of any stride."""
    dense = [t.contiguous() for t in (mean, variance)]
    update(*dense)
    for target, written in zip((mean, variance), dense, strict=True):
        if written is not target:
            target.copy_(written)


def _bind_given(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> Launch:
    """Return a launch that normalises by given statistics: `(x, mean, variance, *affine, output)`."""
    channels, space, dtype, device = x.shape[1], prod(x.shape[2:]), x.dtype, x.device
    affine = [] if weight is None else [weight.dtype] * 2
    static = {
        "dtype": dtype_name(dtype),
        "affine_dtype": None if weight is None else dtype_name(weight.dtype),
    }
    sample = channels * space
    if device.type == "cpu":
        row = "channel" if space >= _LONG_CHANNEL else "samples"
        width = space if row == "channel" else sample * -(-_ROW // sample)
        program = BatchNormRowsKernel.compiled(device, row=row, **static)

        def numbers(count: int) -> tuple[float, ...]:
            return count * sample, width, space, eps
    else:
        vec = _vector_width(x, space)
        program = BatchNormInferenceKernel.compiled(device, vec=vec, **static)

        def numbers(count: int) -> tuple[float, ...]:
            return space // vec, count * sample // vec, eps

    parts = [
        Part(
            (
                (start * sample, count * sample),
                *[(0, channels)] * (2 + len(affine)),
                (start * sample, count * sample),
            ),
            numbers(count),
        )
        for start, count in row_pieces(x.shape[0], sample)
    ]
    return bind(program, [_example(x), _SINGLE, _SINGLE, *affine, dtype], device, parts)


def _by_given(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> Run:
    shape, dtype, device = x.shape, x.dtype, x.device
    launch = _bind_given(x, weight, eps)

    def run(x: torch.Tensor, *given: torch.Tensor | None) -> torch.Tensor:
        output = torch.empty(shape, dtype=dtype, device=device)
        launch(x.contiguous(), *[t.contiguous() for t in given if t is not None], output)
        return output

    return run


def _bind_running(device: torch.device, instances: int, channels: int, count: int, momentum: float) -> Launch:
    """Return a launch that enters statistics of `count` elements each into the running ones."""
    states, vectors = [(0, instances * channels)] * 2, [(0, channels)] * 2
    return bind(
        RunningStatisticsKernel.compiled(device),
        [_SINGLE] * 4,
        device,
        [Part((*states, *vectors), (instances, count / (count - 1), momentum))],
    )


def _empty(x: torch.Tensor) -> Run:
    shape, dtype, device = x.shape, x.dtype, x.device
    return lambda *inputs: torch.empty(shape, dtype=dtype, device=device)


class BatchNorm(Flow):
    """By the statistics of the batch in training, by the running ones else."""

    kernels = (
        BatchNormInferenceKernel,
        BatchNormRowsKernel,
        BatchNormTrainingKernel,
        BatchNormStatisticsKernel,
        VarianceMergeKernel,
        RunningStatisticsKernel,
    )

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, _, _, weight, _ = inputs
        eps, momentum = as_epsilon(binding.params["eps"]), float(binding.params["momentum"])
        if x.numel() == 0:
            return _empty(x)
        if not binding.params["training"]:
            return _by_given(x, weight, eps)

        vec = _vector_width(x, prod(x.shape[2:]))
        if x.numel() // vec > _MOST_VECTORS:
            raise NotImplementedOpError(
                binding.entry.name,
                argument="x.shape",
                got=tuple(x.shape),
                expected=f"at most {_MOST_VECTORS} vectors of {vec} elements",
                rule="vectors of a batch are numbered with 32 bits",
            )
        total = x.numel() // (x.shape[1] * vec)
        static = {"dtype": dtype_name(x.dtype), "vec": vec}
        config = BatchNormTrainingKernel.config_for(x.device, total=total)
        sharing = BatchNormStatisticsKernel.config_for(x.device, **static)
        if total < sharing.least or x.shape[1] >= sharing.target_blocks:
            return self._by_channels(x, eps, momentum, config, static)
        return self._shared(x, weight, eps, momentum, sharing, static)

    @staticmethod
    def _by_channels(
        x: torch.Tensor, eps: float, momentum: float, config: ChannelConfig, static: dict[str, Any]
    ) -> Run:
        """One block takes a channel."""
        shape, dtype, device, size = x.shape, x.dtype, x.device, x.numel()
        channels, space, vec = shape[1], prod(shape[2:]), static["vec"]
        launch = bind(
            BatchNormTrainingKernel.compiled(device, config, **static),
            [_example(x), *[_SINGLE] * 4, dtype],
            device,
            [
                Part(
                    ((0, size), *[(0, channels)] * 4, (0, size)),
                    (space // vec, size // (channels * vec), momentum, eps),
                )
            ],
        )

        def run(x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
            running_mean, running_var, weight, bias = given
            output = torch.empty(shape, dtype=dtype, device=device)
            x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
            _writing(
                lambda mean, variance: launch(x, mean, variance, weight, bias, output),
                running_mean,
                running_var,
            )
            return output

        return run

    @staticmethod
    def _shared(
        x: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        momentum: float,
        config: ChannelConfig,
        static: dict[str, Any],
    ) -> Run:
        """Blocks share a channel."""
        shape, dtype, device, size = x.shape, x.dtype, x.device, x.numel()
        channels, vec = shape[1], static["vec"]
        count = size // channels
        total, tile = count // vec, config.threads * config.unroll
        wanted = min(-(-config.target_blocks // channels), -(-total // tile))
        share = -(-total // (wanted * tile)) * tile
        parts = -(-total // share)

        states, per_channel = [(0, parts * channels)] * 2, [(0, channels)] * 2
        gather = bind(
            BatchNormStatisticsKernel.compiled(device, config, **static),
            [_example(x), _SINGLE, _SINGLE],
            device,
            [Part(((0, size), *states), (channels, prod(shape[2:]) // vec, total, share, parts))],
        )
        merge_config = VarianceMergeKernel.config_for(device, inner=channels)
        merge = bind(
            VarianceMergeKernel.compiled(device, merge_config, out_dtype="float32", root=False, mean=True),
            [_SINGLE] * 4,
            device,
            [Part((*states, *per_channel), (1, parts, channels, share * vec, count, float(count)))],
        )
        enter = _bind_running(device, 1, channels, count, momentum)
        write = _bind_given(x, weight, eps)

        def run(x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
            running_mean, running_var, weight, bias = given
            output = torch.empty(shape, dtype=dtype, device=device)
            partial = [torch.empty(parts * channels, dtype=_SINGLE, device=device) for _ in range(2)]
            variance, mean = (torch.empty(channels, dtype=_SINGLE, device=device) for _ in range(2))
            x = x.contiguous()
            gather(x, *partial)
            merge(*partial, variance, mean)
            _writing(lambda *running: enter(mean, variance, *running), running_mean, running_var)
            write(x, mean, variance, weight.contiguous(), bias.contiguous(), output)
            return output

        return run


class InstanceNorm(Flow):
    """By the statistics of each instance, or by the running ones."""

    kernels = (InstanceNormKernel, RunningStatisticsKernel, BatchNormInferenceKernel, BatchNormRowsKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, running_mean, _, weight, _ = inputs
        params = binding.params
        eps = as_epsilon(params["eps"])
        if x.numel() == 0:
            return _empty(x)
        if not params["use_input_stats"]:
            return _by_given(x, weight, eps)

        shape, dtype, device = x.shape, x.dtype, x.device
        channels, space = shape[1], prod(shape[2:])
        rows, vec, statistics = shape[0] * channels, _vector_width(x, space), running_mean is not None
        affine = [] if weight is None else [dtype] * 2
        program = InstanceNormKernel.compiled(
            device,
            vectors=space // vec,
            vec=vec,
            dtype=dtype_name(dtype),
            channels=channels,
            affine=weight is not None,
            statistics=statistics,
        )
        parts = [
            Part(
                (
                    (start * space, count * space),
                    *[(0, channels)] * len(affine),
                    (start * space, count * space),
                    *[(start, count)] * (2 if statistics else 0),
                ),
                (count, eps),
            )
            # Whole instances, so that a part starts at channel 0.
            for start, count in row_pieces(rows, space, multiple=channels)
        ]
        launch = bind(
            program, [_example(x), *affine, dtype, *[_SINGLE] * (2 if statistics else 0)], device, parts
        )
        if not statistics:

            def run(x: torch.Tensor, *given: torch.Tensor | None) -> torch.Tensor:
                output = torch.empty(shape, dtype=dtype, device=device)
                launch(x.contiguous(), *[t.contiguous() for t in given if t is not None], output)
                return output

            return run

        enter = _bind_running(device, shape[0], channels, space, float(params["momentum"]))

        def run_entering(x: torch.Tensor, *given: torch.Tensor | None) -> torch.Tensor:
            running_mean, running_var, *affine = given
            output = torch.empty(shape, dtype=dtype, device=device)
            own = [torch.empty(rows, dtype=_SINGLE, device=device) for _ in range(2)]
            launch(x.contiguous(), *[t.contiguous() for t in affine if t is not None], output, *own)
            _writing(lambda *running: enter(*own, *running), running_mean, running_var)
            return output

        return run_entering


OPS: dict[str, Flow] = {"BatchNormFwdOp": BatchNorm(), "InstanceNormFwdOp": InstanceNorm()}
