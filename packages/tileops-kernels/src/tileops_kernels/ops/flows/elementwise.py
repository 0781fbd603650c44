"""Flow of the elementwise ops: flat where every operand is contiguous and of one shape, through strides elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.dtypes import dtype_name, torch_dtype
from tileops_kernels.kernels.elementwise import ElementwiseKernel, scalar_dtype
from tileops_kernels.kernels.elementwise_strided import MAX_DIMS, StridedElementwiseKernel
from tileops_kernels.ops.flows._layout import (
    MAX_ELEMENTS,
    flat,
    is_dense,
    merge_dims,
    span,
    storage_view,
    vector_width,
)
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Elementwise"]

Params = Mapping[str, Any]


@dataclass(frozen=True)
class _Piece:
    """One launch over part of the output: the operands' offsets and the program's size and stride arguments."""

    offsets: tuple[int, ...]
    spans: tuple[int, ...]
    output_offset: int
    elements: int
    geometry: tuple[int, ...]


class Elementwise(Flow):
    """One op of the expression table.

    Args:
        expression: name in the table, or a function of the params that returns it.
        scalars: the op's run-time scalars, from its params.
    """

    kernels = (ElementwiseKernel, StridedElementwiseKernel)

    def __init__(
        self,
        expression: str | Callable[[Params], str],
        scalars: Callable[[Params], Sequence[float]] = lambda params: (),
    ) -> None:
        self._expression = expression
        self._scalars = scalars

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        tensors = [t for t in inputs if t is not None]
        params = binding.params
        (output,) = binding.outputs.values()
        shape, dtype = tuple(output.shape), torch_dtype(output.dtype)
        static = {
            "expression": self._expression if isinstance(self._expression, str) else self._expression(params),
            "dtypes": tuple(dtype_name(t.dtype) for t in tensors),
            "out_dtype": output.dtype,
        }
        scalars = self._scalar_arguments(params, static["dtypes"])
        inplace = bool(params.get("inplace", False))

        if prod(shape) == 0:
            return (lambda x: x) if inplace else (lambda *t: torch.empty(shape, dtype=dtype, device=t[0].device))
        flat_out = torch.empty(0, dtype=dtype, device=tensors[0].device)
        if inplace and is_dense(tensors[0]):
            return self._flat(static, scalars, tensors, prod(shape), lambda x: x, flat_out)

        def allocate(*t: torch.Tensor) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=t[0].device)

        if all(t.shape == shape and t.is_contiguous() for t in tensors):
            return self._flat(static, scalars, tensors, prod(shape), allocate, flat_out)
        run = self._strided(static, scalars, tensors, shape, allocate, flat_out)
        # An in-place result over memory with gaps or overlaps is computed first and copied second.
        return (lambda x: x.copy_(run(x))) if inplace else run

    def _scalar_arguments(self, params: Params, dtypes: tuple[str, ...]) -> tuple[float, float]:
        kind = float if scalar_dtype(dtypes) == "float32" else int
        p, q, *_ = (*self._scalars(params), 0, 0)
        return kind(p), kind(q)

    @staticmethod
    def _flat(
        static: Mapping[str, Any],
        scalars: tuple[float, float],
        tensors: Sequence[torch.Tensor],
        numel: int,
        allocate: Callable[..., torch.Tensor],
        like_output: torch.Tensor,
    ) -> Run:
        device = tensors[0].device
        vec = vector_width([*tensors, like_output])
        config = ElementwiseKernel.config_for(device, numel=numel, **static)
        launch = ElementwiseKernel.compiled(device, config, vec=vec, **static).launcher

        def run(*operands: torch.Tensor) -> torch.Tensor:
            output = allocate(*operands)
            launch(*[storage_view(flat(t, numel)) for t in (*operands, output)], *scalars)
            return output

        def run_in_pieces(*operands: torch.Tensor) -> torch.Tensor:
            output = allocate(*operands)
            views = [storage_view(flat(t, numel)) for t in (*operands, output)]
            for start in range(0, numel, MAX_ELEMENTS):
                launch(*[view[start : start + MAX_ELEMENTS] for view in views], *scalars)
            return output

        return run if numel <= MAX_ELEMENTS else run_in_pieces

    @staticmethod
    def _strided(
        static: Mapping[str, Any],
        scalars: tuple[float, float],
        tensors: Sequence[torch.Tensor],
        shape: tuple[int, ...],
        allocate: Callable[..., torch.Tensor],
        like_output: torch.Tensor,
    ) -> Run:
        strides = [_broadcast_strides(t, shape) for t in tensors]
        sizes, merged = merge_dims(shape, strides)
        if len(sizes) > MAX_DIMS:
            # More independent dims than the kernel walks: one declared copy of every operand that is not contiguous.
            run = Elementwise._flat(static, scalars, [like_output], prod(shape), allocate, like_output)
            return lambda *operands: run(*[t.expand(shape).contiguous() for t in operands])

        device = tensors[0].device
        plan = _plan(tensors, like_output, sizes, merged)
        config = StridedElementwiseKernel.config_for(device, numel=prod(sizes), **static)
        launch = StridedElementwiseKernel.compiled(
            device, config, vec=plan.vec, kinds=plan.kinds, dims=len(sizes), **static
        ).launcher

        def run(*operands: torch.Tensor) -> torch.Tensor:
            output = allocate(*operands)
            for piece in plan.pieces:
                views = [
                    storage_view(t.as_strided((length,), (1,), t.storage_offset() + offset))
                    for t, length, offset in zip(operands, piece.spans, piece.offsets, strict=True)
                ]
                views.append(
                    storage_view(output.as_strided((piece.elements,), (1,), piece.output_offset))
                )
                launch(*views, *scalars, *piece.geometry)
            return output

        return run


@dataclass(frozen=True)
class _Plan:
    vec: int
    kinds: tuple[str, ...]
    pieces: tuple[_Piece, ...]


def _broadcast_strides(tensor: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """Return one stride per dim of `shape`; 0 along the dims the tensor is broadcast over."""
    leading = len(shape) - tensor.dim()
    own = zip(tensor.shape, tensor.stride(), shape[leading:], strict=True)
    return [0] * leading + [0 if size == 1 and full != 1 else stride for size, stride, full in own]


def _plan(
    tensors: Sequence[torch.Tensor], like_output: torch.Tensor, sizes: list[int], strides: list[list[int]]
) -> _Plan:
    kinds = tuple("vector" if s[-1] == 1 else "scalar" if s[-1] == 0 else "strided" for s in strides)
    wide = [(t, s) for t, s, kind in zip(tensors, strides, kinds, strict=True) if kind == "vector"]
    vec = 1
    if "strided" not in kinds:
        steps = [stride for _, s in wide for stride in s[:-1]]
        vec = vector_width([*(t for t, _ in wide), like_output], sizes[-1], *steps)
    pieces = []
    for offsets, output_offset, piece in _pieces(sizes, strides):
        padding = [1] * (MAX_DIMS - len(piece))
        geometry = [*padding, *piece[:-1], piece[-1] // vec][1:]
        for kind, s in zip(kinds, strides, strict=True):
            unit = vec if kind == "vector" else 1
            geometry += [*(0 for _ in padding), *(stride // unit for stride in s[:-1]), s[-1]]
        spans = tuple(span(piece, s) for s in strides)
        pieces.append(_Piece(offsets, spans, output_offset, prod(piece), tuple(geometry)))
    return _Plan(vec, kinds, tuple(pieces))


def _pieces(
    sizes: list[int], strides: list[list[int]]
) -> Iterator[tuple[tuple[int, ...], int, list[int]]]:
    """Cut the output into boxes whose every operand reaches over at most `MAX_ELEMENTS` elements.

    Dims are cut from the first on, so that each box of the (contiguous) output is contiguous itself.
    """

    def reach(box: list[int]) -> int:
        return max(prod(box), *(span(box, s) for s in strides))

    box = list(sizes)
    for dim in range(len(sizes)):
        while box[dim] > 1 and reach(box) > MAX_ELEMENTS:
            box[dim] = (box[dim] + 1) // 2
        if reach(box) <= MAX_ELEMENTS:
            break
    steps = [range(0, size, step) for size, step in zip(sizes, box, strict=True)]
    for start in product(*steps):
        piece = [min(step, size - at) for at, step, size in zip(start, box, sizes, strict=True)]
        offsets = tuple(sum(at * stride for at, stride in zip(start, s, strict=True)) for s in strides)
        output_offset = 0
        for at, size in zip(start, sizes, strict=True):
            output_offset = output_offset * size + at
        yield offsets, output_offset, piece


def _bounds(params: Params) -> tuple[float, float]:
    low, high = params["min"], params["max"]
    return (-inf if low is None else low, inf if high is None else high)


_SAME_NAME = """
    relu silu exp log sqrt rsqrt abs neg reciprocal sigmoid tanh erf floor sin cos isnan logical_not bitwise_not
    mul maximum minimum eq lt bitwise_and where
""".split()


def _op_name(expression: str) -> str:
    return "".join(part.capitalize() for part in expression.split("_")) + "FwdOp"


OPS: dict[str, Flow] = {
    **{_op_name(name): Elementwise(name) for name in _SAME_NAME},
    "GeluFwdOp": Elementwise(lambda params: "gelu" if params["approximate"] == "none" else "gelu_tanh"),
    "LeakyReluFwdOp": Elementwise("leaky_relu", lambda params: (params["negative_slope"],)),
    "ClampScalarFwdOp": Elementwise("clamp_scalar", _bounds),
    "AddFwdOp": Elementwise("add", lambda params: (params["alpha"],)),
    "SubFwdOp": Elementwise("sub", lambda params: (params["alpha"],)),
    "DivFwdOp": Elementwise(
        lambda params: "div" if params["rounding_mode"] is None else f"div_{params['rounding_mode']}"
    ),
}
