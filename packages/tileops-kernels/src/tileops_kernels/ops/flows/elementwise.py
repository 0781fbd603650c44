"""Flow of the elementwise ops: flat where every operand is contiguous and of one shape, through strides
elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import inf, prod
from typing import TYPE_CHECKING, Any

import torch

from tileops_kernels.dtypes import dtype_name, torch_dtype
from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.elementwise import (
    ElementwiseKernel,
    ReadOnceElementwiseKernel,
    scalar_dtype,
)
from tileops_kernels.kernels.elementwise_strided import MAX_DIMS, StridedElementwiseKernel
from tileops_kernels.ops.flows._launch import Launch, Part, bind
from tileops_kernels.ops.flows._layout import (
    MAX_ELEMENTS,
    is_dense,
    merge_dims,
    run_length,
    span,
    vector_width,
)
from tileops_kernels.ops.flows.base import Flow, Run

if TYPE_CHECKING:
    from tileops_manifest import Binding

__all__ = ["OPS", "Elementwise"]

Params = Mapping[str, Any]


class Elementwise(Flow):
    """One op of the expression table.

    Args:
        expression: name in the table, or a function of the params that returns it.
        scalars: the op's run-time scalars, from its params.
    """

    kernels = (ElementwiseKernel, ReadOnceElementwiseKernel, StridedElementwiseKernel)

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
            return (
                (lambda x: x) if inplace else (lambda *t: torch.empty(shape, dtype=dtype, device=t[0].device))
            )
        if inplace and is_dense(tensors[0]):
            launch = _flat(static, scalars, tensors, prod(shape), dtype)

            def run_inplace(x: torch.Tensor) -> torch.Tensor:
                launch(x, x)
                return x

            return run_inplace

        flat = all(t.shape == shape and t.is_contiguous() for t in tensors)
        build = _flat if flat else _strided
        launch = build(static, scalars, tensors, prod(shape) if flat else shape, dtype)

        def run(*operands: torch.Tensor) -> torch.Tensor:
            result = torch.empty(shape, dtype=dtype, device=operands[0].device)
            launch(*operands, result)
            return result

        # An in-place result over memory with gaps or overlaps is computed first and copied second.
        return (lambda x: x.copy_(run(x))) if inplace else run

    def _scalar_arguments(self, params: Params, dtypes: tuple[str, ...]) -> tuple[float, float]:
        kind = float if scalar_dtype(dtypes) == "float32" else int
        p, q, *_ = (*self._scalars(params), 0, 0)
        return kind(p), kind(q)


# Operands and result that an L2 cache of 50 MB can nearly hold.
_READ_ONCE_BYTES = 64 << 20


def _flat_kernel(tensors: Sequence[torch.Tensor], size: int) -> type[ElementwiseKernel]:
    """Return the kernel for `size` bytes in all. Several operands push a result out of a GPU's cache that it
    could keep; a result that it cannot keep is written faster in the order of its addresses."""
    several = len(tensors) > 1 and tensors[0].device.type == "cuda"
    return ReadOnceElementwiseKernel if several and size <= _READ_ONCE_BYTES else ElementwiseKernel


def _flat(
    static: Mapping[str, Any],
    scalars: tuple[float, float],
    tensors: Sequence[torch.Tensor],
    numel: int,
    dtype: torch.dtype,
) -> Launch:
    """Return a launch over contiguous tensors of one shape."""
    device, like = tensors[0].device, torch.empty(0, dtype=dtype, device=tensors[0].device)
    kernel = _flat_kernel(tensors, numel * sum(t.element_size() for t in (*tensors, like)))
    program = kernel.compiled(device, vec=vector_width([*tensors, like]), **static)
    parts = [
        Part(((start, min(MAX_ELEMENTS, numel - start)),) * (len(tensors) + 1), scalars)
        for start in range(0, numel, MAX_ELEMENTS)
    ]
    return bind(program, [*tensors, dtype], device, parts)


def _strided(
    static: Mapping[str, Any],
    scalars: tuple[float, float],
    tensors: Sequence[torch.Tensor],
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> Launch:
    """Return a launch over tensors that broadcast to `shape`, read through their strides."""
    device = tensors[0].device
    sizes, strides = merge_dims(shape, [_broadcast_strides(t, shape) for t in tensors])
    if len(sizes) > MAX_DIMS:
        # More independent dims than the kernel walks: one declared copy of every operand.
        full = [torch.empty(shape, dtype=t.dtype, device=device) for t in tensors]
        launch = _flat(static, scalars, full, prod(shape), dtype)
        return lambda *t: launch(*[operand.expand(shape).contiguous() for operand in t[:-1]], t[-1])

    kinds = tuple(_kind(sizes, s) for s in strides)
    vec = _strided_width(tensors, torch.empty(0, dtype=dtype, device=device), kinds, sizes, strides)
    program = StridedElementwiseKernel.compiled(device, vec=vec, kinds=kinds, dims=len(sizes), **static)
    parts = list(_parts(sizes, strides, kinds, vec, scalars))
    return bind(program, [*tensors, dtype], device, parts)


def _broadcast_strides(tensor: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """Return one stride per dim of `shape`; 0 along the dims the tensor is broadcast over."""
    leading = len(shape) - tensor.dim()
    own = zip(tensor.shape, tensor.stride(), shape[leading:], strict=True)
    return [0] * leading + [0 if size == 1 and full != 1 else stride for size, stride, full in own]


# Kinds of operands that are read by whole vectors.
_WIDE = ("flat", "vector")


def _kind(sizes: Sequence[int], strides: Sequence[int]) -> str:
    """Return how an operand is walked, as the kernel names it."""
    if all(stride == prod(sizes[dim + 1 :]) for dim, stride in enumerate(strides)):
        return "flat"
    return {1: "vector", 0: "scalar"}.get(strides[-1], "strided")


def _strided_width(
    tensors: Sequence[torch.Tensor],
    like_output: torch.Tensor,
    kinds: Sequence[str],
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
) -> int:
    if "strided" in kinds:
        return 1
    wide = [(t, s) for t, s, kind in zip(tensors, strides, kinds, strict=True) if kind in _WIDE]
    steps = [stride for _, s in wide for stride in s[:-1]]
    widest = run_length if like_output.device.type == "cpu" else vector_width
    return widest([*(t for t, _ in wide), like_output], sizes[-1], *steps)


def _parts(
    sizes: Sequence[int],
    strides: Sequence[Sequence[int]],
    kinds: Sequence[str],
    vec: int,
    scalars: tuple[float, float],
) -> Iterator[Part]:
    """Yield the launches: one, or boxes of the output that 32-bit indexing can reach in every operand."""
    for start, box in _boxes(sizes, strides):
        padding = [1] * (MAX_DIMS - len(box))
        geometry = [*padding, *box[:-1], box[-1] // vec][1:]
        for kind, s in zip(kinds, strides, strict=True):
            unit = vec if kind in _WIDE else 1
            geometry += [*(0 for _ in padding), *(stride // unit for stride in s[:-1]), s[-1]]
        spans = [(sum(at * step for at, step in zip(start, s, strict=True)), span(box, s)) for s in strides]
        output_offset = 0
        for at, size in zip(start, sizes, strict=True):
            output_offset = output_offset * size + at
        yield Part((*spans, (output_offset, prod(box))), (*scalars, *geometry))


def _boxes(
    sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    """Yield (start, size) of boxes whose every operand reaches over at most `MAX_ELEMENTS` elements.

    Dims are cut from the first on, so that each box of the (contiguous) output is contiguous itself.
    """

    def reach(box: Sequence[int]) -> int:
        return max(prod(box), *(span(box, s) for s in strides))

    box = list(sizes)
    for dim in range(len(sizes)):
        while box[dim] > 1 and reach(box) > MAX_ELEMENTS:
            box[dim] = (box[dim] + 1) // 2
        if reach(box) <= MAX_ELEMENTS:
            break
    steps = [range(0, size, step) for size, step in zip(sizes, box, strict=True)]
    for start in product(*steps):
        yield start, [min(step, size - at) for at, step, size in zip(start, box, sizes, strict=True)]


def _bounds(params: Params) -> tuple[float, float]:
    low, high = params["min"], params["max"]
    return (-inf if low is None else low, inf if high is None else high)


class _Prelu(Elementwise):
    """The weight stands along axis 1 of the input, or is one value."""

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, weight = inputs
        shape = (-1, *(1,) * (x.dim() - 2)) if weight.dim() and weight.numel() > 1 else ()
        run = super().prepare(binding, (x, weight.reshape(shape) if weight.numel() else weight))
        return lambda x, weight: run(x, weight.reshape(shape) if weight.numel() else weight)


class _Clamp(Elementwise):
    """One bound is a maximum or a minimum."""

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        _, low, high = inputs
        expression = "clamp" if None not in (low, high) else "maximum" if high is None else "minimum"
        run = Elementwise(expression).prepare(binding, inputs)
        return lambda *given: run(*(tensor for tensor in given if tensor is not None))


class _MaskedFillScalar(Elementwise):
    """The value is a tensor of the input's dtype, made once."""

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        x, mask = inputs
        value = torch.full((), binding.params["value"], dtype=x.dtype, device=x.device)
        run = super().prepare(binding, (x, mask, value))
        return lambda x, mask: run(x, mask, value)


class _NanToNum(Elementwise):
    """A program takes two scalars: they are the numbers for the infinities, the one for NaN is a tensor, made
    once."""

    def prepare(self, binding: Binding, inputs: Sequence[torch.Tensor | None]) -> Run:
        (x,) = inputs
        params, most = binding.params, torch.finfo(x.dtype).max
        infinities = [
            limit if params[name] is None else params[name]
            for name, limit in (("posinf", most), ("neginf", -most))
        ]
        # Through float64: a number beyond the dtype is infinite, not an error.
        value = torch.full((), params["nan"], dtype=torch.float64, device=x.device).to(x.dtype)
        run = Elementwise("nan_to_num", lambda params: infinities).prepare(binding, (x, value))
        return lambda x: run(x, value)


# Powers of ten that float32 holds.
_MOST_DECIMALS = 10


def _rounding(params: Params) -> str:
    decimals = params["decimals"]
    if abs(decimals) > _MOST_DECIMALS:
        raise NotImplementedOpError(
            "RoundFwdOp",
            argument="decimals",
            got=decimals,
            expected=f"at most {_MOST_DECIMALS} in magnitude",
            rule="10 to the power decimals is a float32",
        )
    return "round" if decimals == 0 else "round_up_scaled" if decimals > 0 else "round_down_scaled"


_SAME_NAME = [
    "relu",
    "silu",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "abs",
    "neg",
    "reciprocal",
    "sigmoid",
    "tanh",
    "erf",
    "hardswish",
    "hardsigmoid",
    "mish",
    "selu",
    "expm1",
    "log1p",
    "floor",
    "ceil",
    "trunc",
    "sign",
    "sin",
    "cos",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "bitwise_not",
    "mul",
    "maximum",
    "minimum",
    "eq",
    "ne",
    "lt",
    "gt",
    "ge",
    "le",
    "logical_and",
    "logical_or",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "remainder",
    "pow",
    "lerp_tensor",
    "masked_fill",
    "where",
]


def _op_name(expression: str) -> str:
    return "".join(part.capitalize() for part in expression.split("_")) + "FwdOp"


OPS: dict[str, Flow] = {
    **{_op_name(name): Elementwise(name) for name in _SAME_NAME},
    "GeluFwdOp": Elementwise(lambda params: "gelu" if params["approximate"] == "none" else "gelu_tanh"),
    "LeakyReluFwdOp": Elementwise("leaky_relu", lambda params: (params["negative_slope"],)),
    "EluFwdOp": Elementwise("elu", lambda params: (params["alpha"],)),
    "SoftplusFwdOp": Elementwise("softplus", lambda params: (params["beta"], params["threshold"])),
    "HardtanhFwdOp": Elementwise("clamp_scalar", lambda params: (params["min_val"], params["max_val"])),
    "PreluFwdOp": _Prelu("prelu"),
    "RoundFwdOp": Elementwise(_rounding, lambda params: (10 ** abs(params["decimals"]),)),
    "ClampFwdOp": _Clamp("clamp"),
    "MaskedFillScalarFwdOp": _MaskedFillScalar("masked_fill"),
    "NanToNumFwdOp": _NanToNum("nan_to_num"),
    "LerpFwdOp": Elementwise("lerp", lambda params: (params["weight"],)),
    "FloorDivideFwdOp": Elementwise("div_floor"),
    "ClampScalarFwdOp": Elementwise("clamp_scalar", _bounds),
    "AddFwdOp": Elementwise("add", lambda params: (params["alpha"],)),
    "SubFwdOp": Elementwise("sub", lambda params: (params["alpha"],)),
    "DivFwdOp": Elementwise(
        lambda params: "div" if params["rounding_mode"] is None else f"div_{params['rounding_mode']}"
    ),
}
