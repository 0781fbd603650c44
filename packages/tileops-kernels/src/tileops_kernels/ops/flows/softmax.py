"""Flow of softmax, log-softmax and logsumexp: rows in registers, long rows in two launches, other axes by columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.dtypes import dtype_name, torch_dtype
from tileops_kernels.kernels.logsumexp import LogSumExpKernel
from tileops_kernels.kernels.softmax import SoftmaxApplyKernel, SoftmaxKernel
from tileops_kernels.kernels.softmax_columns import ColumnSoftmaxKernel
from tileops_kernels.ops.flows._axes import Stage, normalised_axes, stages
from tileops_kernels.ops.flows._layout import vector_width
from tileops_kernels.ops.flows._rows import Rows, row_layout, row_pieces
from tileops_kernels.ops.flows._splits import geometry_of, size_hint, stage_width
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "LogSumExp", "Softmax"]

_Launch = Callable[[torch.Tensor, torch.Tensor], None]


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
        ).launcher
        pieces = list(row_pieces(rows.count, rows.pitch, rows.length))

        def launch_rows(x: torch.Tensor, y: torch.Tensor) -> None:
            source, output = rows.view(x), y.view(-1)
            if len(pieces) == 1:
                program(source, output, rows.count, rows.pitch // vec, vectors)
                return
            for start, count in pieces:
                part = source[start * rows.pitch : (start + count - 1) * rows.pitch + rows.length]
                out_part = output[start * rows.length : (start + count) * rows.length]
                program(part, out_part, count, rows.pitch // vec, vectors)

        return _allocating(launch_rows, shape, dtype)

    def _long_rows(self, x: torch.Tensor, rows: Rows, vec: int) -> _Launch:
        device, dtype = x.device, dtype_name(x.dtype)
        stage = Stage(rows.count, rows.length, 1)
        config = LogSumExpKernel.config_for(device, vectors=rows.length // vec)
        split, (_, _, vectors, splits, split_vectors) = geometry_of(stage, vec, config)
        statistics = LogSumExpKernel.compiled(device, config, dtype=dtype, out_dtype="state", vec=vec).launcher
        apply = SoftmaxApplyKernel.compiled(device, dtype=dtype, vec=vec, log=self._log).launcher
        pieces = list(row_pieces(rows.count, rows.pitch, rows.length))

        def launch(x: torch.Tensor, y: torch.Tensor) -> None:
            source, output = rows.view(x), y.view(-1)
            for start, count in pieces:
                part = source[start * rows.pitch : (start + count - 1) * rows.pitch + rows.length]
                out_part = output[start * rows.length : (start + count) * rows.length]
                state = torch.empty((2, count * splits), dtype=torch.float32, device=device)
                arguments = (count, rows.pitch // vec, vectors, splits, split_vectors)
                statistics(part, state[0], state[1], *arguments)
                apply(part, out_part, state[0], state[1], *arguments)

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

        plan = stages(tuple(x.shape), normalised_axes(binding.params["dim"], x.dim()))
        steps: list[tuple[int, _Launch]] = []
        source = x
        for stage in _with_splits(plan or [Stage(x.numel(), 1, 1)], x):
            steps.append((stage.outer * stage.inner, stage))
        launches = []
        for index, (elements, stage) in enumerate(steps):
            kind = dtype if index == len(steps) - 1 else torch.float32
            build = _rows_logsumexp if stage.inner == 1 else _columns_logsumexp
            launches.append((elements, build(source, stage, kind)))
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
    """Cut a long last axis in equal parts, each a row of its own: the logsumexp of their results is the same."""
    first = plan[0]
    if first.inner > 1:
        return list(plan)
    vec = stage_width(x, first, x)
    config = LogSumExpKernel.config_for(x.device, **size_hint(first, vec))
    split, _ = geometry_of(first, vec, config)
    parts = next((n for n in range(split.count, 1, -1) if first.length % n == 0), 1)
    if parts == 1:
        return list(plan)
    return [Stage(first.outer * parts, first.length // parts, 1), Stage(first.outer, parts, 1), *plan[1:]]


def _rows_logsumexp(like: torch.Tensor, stage: Stage, dtype: torch.dtype) -> _Launch:
    vec = stage_width(like, stage, like)
    config = LogSumExpKernel.config_for(like.device, **size_hint(stage, vec))
    vectors = stage.length // vec
    program = LogSumExpKernel.compiled(
        like.device, config, dtype=dtype_name(like.dtype), out_dtype=dtype_name(dtype), vec=vec
    ).launcher
    pieces, device = list(row_pieces(stage.outer, stage.length)), like.device

    def launch(x: torch.Tensor, y: torch.Tensor) -> None:
        source, output = x.view(-1), y.view(-1)
        unused = torch.empty(1, dtype=torch.float32, device=device)
        for start, count in pieces:
            part = source[start * stage.length : (start + count) * stage.length]
            program(part, output[start : start + count], unused, count, vectors, vectors, 1, vectors)

    return launch


def _columns_logsumexp(like: torch.Tensor, stage: Stage, dtype: torch.dtype) -> _Launch:
    return _columns("logsumexp", like, stage, dtype)


def _columns(result: str, like: torch.Tensor, stage: Stage, dtype: torch.dtype) -> _Launch:
    fresh = torch.empty(0, dtype=dtype, device=like.device)
    vec = stage_width(like if like.is_contiguous() else fresh, stage, fresh)
    config = ColumnSoftmaxKernel.config_for(like.device, **size_hint(stage, vec))
    program: Any = ColumnSoftmaxKernel.compiled(
        like.device, config, result=result, dtype=dtype_name(like.dtype), out_dtype=dtype_name(dtype), vec=vec
    ).launcher
    pitch = stage.length * stage.inner
    out_pitch = stage.inner if result == "logsumexp" else pitch
    pieces = list(row_pieces(stage.outer, pitch))

    def launch(x: torch.Tensor, y: torch.Tensor) -> None:
        source, output = x.view(-1), y.view(-1)
        for start, outer in pieces:
            end = start + outer
            program(
                source[start * pitch : end * pitch],
                output[start * out_pitch : end * out_pitch],
                outer,
                stage.length,
                stage.inner // vec,
            )

    return launch


def _allocating(launch: _Launch, shape: Sequence[int], dtype: torch.dtype) -> Run:
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
