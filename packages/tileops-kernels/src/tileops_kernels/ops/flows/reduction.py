"""Flow of the reductions: any dims, in stages of rows or columns, long ones split between blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.dtypes import dtype_name, torch_dtype
from tileops_kernels.kernels.reduce import ArgReduceKernel, ColumnReduceKernel, ReduceKernel
from tileops_kernels.kernels.reduce_table import REDUCTIONS
from tileops_kernels.kernels.variance import ColumnVarianceKernel, VarianceKernel, VarianceMergeKernel
from tileops_kernels.ops.flows._axes import Joined, Stage, normalised_axes, stages
from tileops_kernels.ops.flows._launch import Launch, Part, bind
from tileops_kernels.ops.flows._splits import (
    Geometry,
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

__all__ = ["OPS", "Reduction", "Variance"]


class Reduction(Flow):
    """One reduction of the table.

    Args:
        op: name in the table.
        empty_is_all: an empty list of dims means all of them.
    """

    def __init__(self, op: str, *, empty_is_all: bool = True) -> None:
        self._op = op
        self._row_kernel = ArgReduceKernel if op.startswith("arg") else ReduceKernel
        self._empty_is_all = empty_is_all
        self.kernels = (self._row_kernel, ColumnReduceKernel)

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        (x,) = inputs
        (output,) = binding.outputs.values()
        shape, dtype, device = tuple(output.shape), torch_dtype(output.dtype), x.device
        axes = normalised_axes(binding.params["dim"], x.dim(), empty_is_all=self._empty_is_all)
        if prod(shape) == 0:
            return lambda x: torch.empty(shape, dtype=dtype, device=device)
        if x.numel() == 0:
            empty = REDUCTIONS[self._op].empty
            return lambda x: torch.full(shape, empty, dtype=dtype, device=device)

        source_shape = tuple(x.shape)
        plan = stages(source_shape, axes) or [Stage(x.numel(), 1, 1)]
        count = float(prod(stage.length for stage in plan))
        if x.is_complex():
            # An element is zero where both parts are: reduce the pair first, then as bytes.
            pair = Reduction("any")._chain(
                [Stage(x.numel(), 2, 1)],
                torch.view_as_real(torch.empty(0, dtype=x.dtype, device=device)),
                torch.bool,
                2.0,
            )
            rest = self._chain(plan, torch.empty(0, dtype=torch.bool, device=device), dtype, count)

            def run_complex(x: torch.Tensor) -> torch.Tensor:
                truth = torch.empty(source_shape, dtype=torch.bool, device=device)
                pair(torch.view_as_real(x.contiguous()), truth)
                result = torch.empty(shape, dtype=dtype, device=device)
                rest(truth, result)
                return result

            return run_complex

        launch = self._chain(plan, x, dtype, count)

        def run(x: torch.Tensor) -> torch.Tensor:
            result = torch.empty(shape, dtype=dtype, device=device)
            launch(x.contiguous(), result)
            return result

        return run

    def _chain(self, plan: Sequence[Stage], like: torch.Tensor, dtype: torch.dtype, count: float) -> Launch:
        """Return a launch of all stages; `like` has the input's dtype, device and alignment."""
        state = torch_dtype(REDUCTIONS[self._op].state)
        steps: list[tuple[int, Launch]] = []
        source, name = like, dtype_name(like.dtype)
        plan = with_joined(plan, self._row_kernel, like)
        for index, stage in enumerate(plan):
            last = index == len(plan) - 1
            for out_elements, launch in self._stage(source, name, stage, last, dtype, count):
                steps.append((out_elements, launch))
                source, name = torch.empty(0, dtype=state, device=like.device), "state"
        device = like.device

        def run(x: torch.Tensor, result: torch.Tensor) -> None:
            for elements, launch in steps[:-1]:
                target = torch.empty(elements, dtype=state, device=device)
                launch(x, target)
                x = target
            steps[-1][1](x, result)

        return run

    def _stage(
        self,
        like: torch.Tensor,
        name: str,
        stage: Stage | Joined,
        last: bool,
        dtype: torch.dtype,
        count: float,
    ) -> list[tuple[int, Launch]]:
        """Return one launch, or two where the reduction is split, each with the size of what it writes."""
        kernel = self._row_kernel if stage.inner == 1 else ColumnReduceKernel
        out_name = dtype_name(dtype) if last else "state"
        target = torch.empty(
            0, dtype=dtype if last else torch_dtype(REDUCTIONS[self._op].state), device=like.device
        )
        vec = stage_width(like, stage, target)
        config = kernel.config_for(like.device, **size_hint(stage, vec))
        geometry = geometry_of(stage, vec, config)
        split, outputs = geometry.split, stage.outputs
        if split.count == 1:
            program = kernel.compiled(
                like.device,
                config,
                op=self._op,
                dtype=name,
                out_dtype=out_name,
                vec=vec,
                **form_of(stage, geometry),
            )
            return [(outputs, _bound(program, like, target.dtype, stage, geometry, count))]
        to_states = kernel.compiled(like.device, config, op=self._op, dtype=name, out_dtype="state", vec=vec)
        states = torch.empty(0, dtype=torch_dtype(REDUCTIONS[self._op].state), device=like.device)
        rest = Stage(stage.outer, split.count, stage.inner)
        return [
            (outputs * split.count, _bound(to_states, like, states.dtype, stage, geometry, count)),
            *self._stage(states, "state", rest, last, dtype, count),
        ]


def _bound(
    program: Any,
    like: torch.Tensor,
    out: torch.dtype,
    stage: Stage | Joined,
    geometry: Geometry,
    *numbers: float,
    outputs: int = 1,
) -> Launch:
    """Return a launch over a stage, with `outputs` outputs of one dtype."""
    parts = parts_of(stage, geometry, numbers, outputs)
    return bind(program, [_example(like), *[out] * outputs], like.device, parts)


def _example(tensor: torch.Tensor) -> torch.Tensor | torch.dtype:
    """A tensor that will be there at the call, or the dtype of one the plan makes: a copy, or a state."""
    return tensor if tensor.numel() and tensor.is_contiguous() else tensor.dtype


class Variance(Flow):
    """Variance or standard deviation.

    Args:
        root: return the standard deviation.
        mean: return the mean too.
    """

    kernels = (VarianceKernel, ColumnVarianceKernel, VarianceMergeKernel)

    def __init__(self, *, root: bool = False, mean: bool = False) -> None:
        self._root, self._mean = root, mean

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        (x,) = inputs
        output = next(iter(binding.outputs.values()))
        shape, dtype, device = tuple(output.shape), torch_dtype(output.dtype), x.device
        alone = not self._mean

        def results(fill: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
            return tuple(fill(shape, dtype=dtype, device=device) for _ in binding.outputs)

        if x.numel() == 0:
            fill = partial(torch.full, fill_value=float("nan"))
            return lambda x: results(fill)[0] if alone else results(fill)

        axes = normalised_axes(binding.params["dim"], x.dim())
        plan = stages(tuple(x.shape), axes) or [Stage(x.numel(), 1, 1)]
        count = prod(stage.length for stage in plan)
        divisor = float(max(0, count - binding.params["correction"]))
        launch = self._chain(plan, x, dtype, divisor)

        def run(x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
            outputs = results(torch.empty)
            launch(x.contiguous(), *outputs)
            return outputs[0] if alone else outputs

        return run

    def _chain(self, plan: Sequence[Stage], x: torch.Tensor, dtype: torch.dtype, divisor: float) -> Launch:
        """Return a launch of the first stage on the data and of merges for its splits and the other
        stages."""
        plan = with_joined(plan, VarianceKernel, x)
        first, device, finished = plan[0], x.device, {"root": self._root, "mean": self._mean}
        kernel = VarianceKernel if first.inner == 1 else ColumnVarianceKernel
        fresh = torch.empty(0, dtype=torch.float32, device=device)
        vec = stage_width(x, first, fresh)
        config = kernel.config_for(device, **size_hint(first, vec))
        geometry = geometry_of(first, vec, config)
        split, unit = geometry.split, vec if first.inner == 1 else 1

        # What is merged after the first launch: (outer, states, inner, elements per state, elements in all).
        merges: list[tuple[int, int, int, int, int]] = []
        if split.count > 1:
            merges.append((first.outer, split.count, first.inner, split.length * unit, first.length))
        seen = first.length
        for stage in plan[1:]:
            merges.append((stage.outer, stage.length, stage.inner, seen, seen * stage.length))
            seen *= stage.length

        def out_name(index: int) -> str:
            return dtype_name(dtype) if index == len(merges) else "state"

        program = kernel.compiled(
            device,
            config,
            dtype=dtype_name(x.dtype),
            out_dtype=out_name(0),
            vec=vec,
            **finished,
            **form_of(first, geometry),
        )
        start = _bound(
            program,
            x,
            torch.float32 if merges else dtype,
            first,
            geometry,
            divisor,
            outputs=2 if merges or self._mean else 1,
        )
        merge_programs = []
        for index, merge in enumerate(merges):
            outer, length, inner, _, _ = merge
            last = index == len(merges) - 1
            spans = ((0, outer * length * inner),) * 2 + (
                (0, outer * inner),
                (0, 1 if last and not self._mean else outer * inner),
            )
            merge_programs.append(
                bind(
                    VarianceMergeKernel.compiled(
                        device,
                        VarianceMergeKernel.config_for(device, inner=inner),
                        out_dtype=out_name(index + 1),
                        **finished,
                    ),
                    [torch.float32] * 2 + [dtype if last else torch.float32] * 2,
                    device,
                    [Part(spans, (*merge, divisor))],
                )
            )
        sizes = [
            split.count * first.outputs,
            *(outer * inner for outer, _, inner, _, _ in merges),
        ]

        def state(size: int) -> torch.Tensor:
            return torch.empty(size, dtype=torch.float32, device=device)

        def run(x: torch.Tensor, *results: torch.Tensor) -> None:
            if not merges:
                start(x, *results)
                return
            states = state(sizes[0]), state(sizes[0])
            start(x, *states)
            for size, merge in zip(sizes[1:-1], merge_programs[:-1], strict=True):
                targets = state(size), state(size)
                merge(*states, *targets)
                states = targets
            # The program has a fourth tensor, whether or not it writes means.
            means = () if self._mean else (torch.empty(1, dtype=dtype, device=device),)
            merge_programs[-1](*states, *results, *means)

        return run


OPS: dict[str, Flow] = {
    "SumFwdOp": Reduction("sum"),
    "MeanFwdOp": Reduction("mean"),
    "AmaxFwdOp": Reduction("amax"),
    "AminFwdOp": Reduction("amin"),
    "ProdFwdOp": Reduction("prod"),
    "L1NormFwdOp": Reduction("l1_norm"),
    "L2NormFwdOp": Reduction("l2_norm"),
    "InfNormFwdOp": Reduction("inf_norm"),
    "AllFwdOp": Reduction("all", empty_is_all=False),
    "AnyFwdOp": Reduction("any", empty_is_all=False),
    "CountNonzeroFwdOp": Reduction("count_nonzero"),
    "ArgmaxFwdOp": Reduction("argmax"),
    "ArgminFwdOp": Reduction("argmin"),
    "VarFwdOp": Variance(),
    "VarMeanFwdOp": Variance(mean=True),
    "StdFwdOp": Variance(root=True),
}
