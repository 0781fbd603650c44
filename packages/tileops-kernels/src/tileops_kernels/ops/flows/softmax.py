"""Flow of softmax, log-softmax and logsumexp: rows in registers, long rows in two launches, other axes by
columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, prod
from typing import TYPE_CHECKING

import torch

from tileops_kernels.dtypes import dtype_name, torch_dtype
from tileops_kernels.kernels.logsumexp import LogSumExpKernel
from tileops_kernels.kernels.softmax import SoftmaxApplyKernel, SoftmaxKernel
from tileops_kernels.kernels.softmax_columns import ColumnSoftmaxKernel
from tileops_kernels.ops.flows._axes import Joined, Stage, normalised_axes, stages
from tileops_kernels.ops.flows._launch import Launch, Part, bind
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows._rows import Rows, row_layout, row_pieces
from tileops_kernels.ops.flows._splits import (
    form_of,
    geometry_of,
    parts_of,
    size_hint,
    stage_width,
    with_joined,
)
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "LogSumExp", "Softmax"]


def _implicit_axis(rank: int) -> int:
    """The axis that softmax without a `dim` works on."""
    return 0 if rank in (0, 1, 3) else 1


class Softmax(Flow):
    """Softmax along one axis.

    Args:
        log: return the logarithm.
    """

    kernels = (SoftmaxKernel, LogSumExpKernel, SoftmaxApplyKernel, ColumnSoftmaxKernel)

    def __init__(self, *, log: bool) -> None:
        self._log = log

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        (x,) = inputs
        shape, dtype, device = x.shape, x.dtype, x.device
        if x.numel() == 0:
            return lambda x: torch.empty(shape, dtype=dtype, device=device)
        dim = binding.params["dim"]
        axis = _implicit_axis(x.dim()) if dim is None else dim
        (stage,) = stages(tuple(shape), normalised_axes(axis, x.dim())) or [Stage(1, 1, 1)]
        if stage.inner > 1:
            launch = _columns("log_softmax" if self._log else "softmax", x, stage, dtype)
            return _allocating(lambda x, y: launch(x.contiguous(), y), shape, dtype)

        # A row is everything from the axis on: what follows it has size 1.
        rows = row_layout(x, x.dim() - axis % x.dim()) if x.dim() else Rows(1, 1, 1)
        fresh = torch.empty(0, dtype=dtype, device=device)
        vec = vector_width([fresh if rows.step is None else x, fresh], rows.length, rows.pitch)
        vectors = rows.length // vec
        config = SoftmaxKernel.config_for(device, row_bytes=rows.length * x.element_size())
        steps = config.steps(vectors, vec)
        if steps is None:
            return _allocating(self._long_rows(x, rows, vec), shape, dtype)
        program = SoftmaxKernel.compiled(
            device, config, dtype=dtype_name(dtype), vec=vec, steps=steps, log=self._log
        )
        parts = [
            Part(
                (rows.span(start, count), (start * rows.length, count * rows.length)),
                (count, rows.pitch // vec, vectors),
            )
            for start, count in row_pieces(rows.count, rows.pitch, rows.length)
        ]
        launch = bind(program, [dtype if rows.step is None else x, dtype], device, parts)
        return _allocating(lambda x, y: launch(rows.source(x), y), shape, dtype)

    def _long_rows(self, x: torch.Tensor, rows: Rows, vec: int) -> Launch:
        device, dtype, name = x.device, x.dtype, dtype_name(x.dtype)
        stage = Stage(rows.count, rows.length, 1)
        config = LogSumExpKernel.config_for(device, **size_hint(stage, vec))
        _, _, vectors, splits, split_vectors = geometry_of(stage, vec, config).numbers
        statistics = LogSumExpKernel.compiled(device, config, dtype=name, out_dtype="state", vec=vec)
        apply = SoftmaxApplyKernel.compiled(device, dtype=name, vec=vec, log=self._log)
        statistics_parts, apply_parts = [], []
        for start, count in row_pieces(rows.count, rows.pitch, rows.length):
            source, target = rows.span(start, count), (start * rows.length, count * rows.length)
            state = (start * splits, count * splits)
            numbers = (count, rows.pitch // vec, vectors, splits, split_vectors)
            statistics_parts.append(Part((source, state, state), (*numbers, 0.0)))
            apply_parts.append(Part((source, target, state, state), numbers))
        example = dtype if rows.step is None else x
        gather = bind(statistics, [example, torch.float32, torch.float32], device, statistics_parts)
        write = bind(apply, [example, dtype, torch.float32, torch.float32], device, apply_parts)

        def launch(x: torch.Tensor, y: torch.Tensor) -> None:
            source = rows.source(x)
            maxima = torch.empty(rows.count * splits, dtype=torch.float32, device=device)
            totals = torch.empty_like(maxima)
            gather(source, maxima, totals)
            write(source, y, maxima, totals)

        return launch


class LogSumExp(Flow):
    """logsumexp over any axes; over several, that of the results of the first."""

    kernels = (LogSumExpKernel, ColumnSoftmaxKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        (x,) = inputs
        (output,) = binding.outputs.values()
        shape, dtype, device = tuple(output.shape), torch_dtype(output.dtype), x.device
        if prod(shape) == 0:
            return lambda x: torch.empty(shape, dtype=dtype, device=device)
        if x.numel() == 0:
            return lambda x: torch.full(shape, -inf, dtype=dtype, device=device)

        axes = normalised_axes(binding.params["dim"], x.dim())
        plan = stages(tuple(x.shape), axes) or [Stage(x.numel(), 1, 1)]
        plan = with_joined(_with_splits(plan, x), LogSumExpKernel, x)
        launches: list[tuple[int, Launch]] = []
        source = x
        for index, stage in enumerate(plan):
            out = dtype if index == len(plan) - 1 else torch.float32
            build = _rows if stage.inner == 1 else _columns
            launches.append((stage.outputs, build("logsumexp", source, stage, out)))
            source = torch.empty(0, dtype=torch.float32, device=device)

        def launch(x: torch.Tensor, y: torch.Tensor) -> None:
            x = x.contiguous()
            for elements, step in launches[:-1]:
                target = torch.empty(elements, dtype=torch.float32, device=device)
                step(x, target)
                x = target
            launches[-1][1](x, y)

        return _allocating(launch, shape, dtype)


def _with_splits(plan: Sequence[Stage], x: torch.Tensor) -> list[Stage]:
    """Cut a long last axis in equal parts, each a row of its own: the logsumexp of their results is the
    same."""
    first = plan[0]
    if first.inner > 1:
        return list(plan)
    vec = stage_width(x, first, x)
    config = LogSumExpKernel.config_for(x.device, **size_hint(first, vec))
    split = geometry_of(first, vec, config).split
    parts = next((n for n in range(split.count, 1, -1) if first.length % n == 0), 1)
    if parts == 1:
        return list(plan)
    return [Stage(first.outer * parts, first.length // parts, 1), Stage(first.outer, parts, 1), *plan[1:]]


def _rows(result: str, like: torch.Tensor, stage: Stage | Joined, dtype: torch.dtype) -> Launch:
    vec, device = stage_width(like, stage, like), like.device
    config = LogSumExpKernel.config_for(device, **size_hint(stage, vec))
    geometry = geometry_of(stage, vec, replace(config, target_blocks=1))
    program = LogSumExpKernel.compiled(
        device,
        config,
        dtype=dtype_name(like.dtype),
        out_dtype=dtype_name(dtype),
        vec=vec,
        **form_of(stage, geometry),
    )
    return bind(program, [_example(like), dtype], device, parts_of(stage, geometry, (0.0,)))


def _columns(result: str, like: torch.Tensor, stage: Stage, dtype: torch.dtype) -> Launch:
    device = like.device
    fresh = torch.empty(0, dtype=dtype, device=device)
    vec = stage_width(like if like.is_contiguous() else fresh, stage, fresh)
    config = ColumnSoftmaxKernel.config_for(device, **size_hint(stage, vec))
    geometry = geometry_of(stage, vec, replace(config, target_blocks=1))
    program = ColumnSoftmaxKernel.compiled(
        device,
        config,
        result=result,
        dtype=dtype_name(like.dtype),
        out_dtype=dtype_name(dtype),
        vec=vec,
        **form_of(stage, geometry),
    )
    pitch = stage.length * stage.inner
    out_pitch = stage.inner if result == "logsumexp" else pitch
    parts = [
        Part(
            ((start * pitch, outer * pitch), (start * out_pitch, outer * out_pitch)),
            (outer, *geometry.numbers[1:], 0.0),
        )
        for start, outer in row_pieces(stage.outer, pitch)
    ]
    return bind(program, [_example(like), dtype], device, parts)


def _example(tensor: torch.Tensor) -> torch.Tensor | torch.dtype:
    """A tensor that will be there at the call, or the dtype of one the plan makes: a copy, or a result of its
    own."""
    return tensor if tensor.numel() and tensor.is_contiguous() else tensor.dtype


def _allocating(launch: Launch, shape: Sequence[int], dtype: torch.dtype) -> Run:
    def run(x: torch.Tensor) -> torch.Tensor:
        output = torch.empty(shape, dtype=dtype, device=x.device)
        launch(x, output)
        return output

    return run


OPS: dict[str, Flow] = {
    "SoftmaxFwdOp": Softmax(log=False),
    "LogSoftmaxFwdOp": Softmax(log=True),
    "LogSumExpFwdOp": LogSumExp(),
}
