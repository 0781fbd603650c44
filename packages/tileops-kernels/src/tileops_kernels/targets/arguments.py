"""What a compiled program takes: read from the tile program's signature, checked at every launch that asks for it."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from tvm import tirx

from ..dtypes import from_tilelang, torch_dtype
from .errors import LaunchError, TargetError

Size = int | str  # a constant, or a Python expression over dimension names
_INT_BITS = {
    "int32": 31,
    "int64": 63,
    "uint32": 32,
    "uint64": 64,
    "int8": 7,
    "uint8": 8,
    "int16": 15,
    "uint16": 16,
}


@dataclass(frozen=True)
class TensorParameter:
    """A tensor: dtype, shape, and strides where they are not those of a contiguous tensor."""

    name: str
    dtype: str
    shape: tuple[Size, ...]
    strides: tuple[Size, ...] | None


@dataclass(frozen=True)
class ScalarParameter:
    """A Python number."""

    name: str
    dtype: str


@dataclass(frozen=True)
class Dimension:
    """A symbolic size: where it is read from, at launch."""

    name: str
    dtype: str
    parameter: int
    axis: int
    is_stride: bool = False

    def read(self, args: Sequence[object]) -> int:
        tensor = args[self.parameter]
        return tensor.stride(self.axis) if self.is_stride else tensor.shape[self.axis]


@dataclass(frozen=True)
class Signature:
    """The parameters of a tile program, in order, and its symbolic dimensions."""

    program: str
    parameters: tuple[TensorParameter | ScalarParameter, ...]
    dimensions: tuple[Dimension, ...] = field(default=())

    @classmethod
    def of(cls, func: tirx.PrimFunc) -> Signature:
        """Read a `PrimFunc`; raises `TargetError` for a symbolic size that no tensor tells."""
        buffers = {i: func.buffer_map[p] for i, p in enumerate(func.params) if p in func.buffer_map}
        parameters = tuple(
            _tensor(buffers[i]) if i in buffers else ScalarParameter(p.name, from_tilelang(p.dtype))
            for i, p in enumerate(func.params)
        )
        program = (
            str(func.attrs["global_symbol"])
            if func.attrs and "global_symbol" in func.attrs
            else "tile program"
        )
        scalars = {p.name for p in parameters if isinstance(p, ScalarParameter)}
        dimensions: dict[str, Dimension] = {}
        for is_stride in (False, True):
            for i, buffer in buffers.items():
                for axis, size in enumerate(buffer.strides if is_stride else buffer.shape):
                    if isinstance(size, tirx.Var) and size.name not in scalars:
                        dimensions.setdefault(
                            size.name, Dimension(size.name, str(size.dtype), i, axis, is_stride)
                        )
        signature = cls(program, parameters, tuple(dimensions.values()))
        known = scalars | dimensions.keys()
        for p in parameters:
            for size in (*p.shape, *(p.strides or ())) if isinstance(p, TensorParameter) else ():
                unknown = _names(size) - known
                if unknown:
                    raise TargetError(
                        f"{program}: no argument tells the size {', '.join(sorted(unknown))} in {p.name}"
                    )
        return signature

    def dimension_variables(self, func: tirx.PrimFunc) -> Iterator[tirx.Var]:
        """The TVM variables of `dimensions`, in order."""
        for dimension in self.dimensions:
            buffer = func.buffer_map[func.params[dimension.parameter]]
            yield (buffer.strides if dimension.is_stride else buffer.shape)[dimension.axis]

    @cached_property
    def checker(self) -> Callable[[Sequence[object], str], None]:
        return _Checker(self)


def _tensor(buffer: tirx.Buffer) -> TensorParameter:
    shape = tuple(_size(n) for n in buffer.shape)
    strides = tuple(_size(n) for n in buffer.strides)
    return TensorParameter(
        buffer.name, from_tilelang(buffer.dtype), shape, None if _is_contiguous(shape, strides) else strides
    )


def _is_contiguous(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    if not strides:
        return True
    expected: Size = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != expected:
            return False
        expected = (
            expected * size
            if isinstance(size, int) and isinstance(expected, int)
            else _product(size, expected)
        )
    return True


def _product(a: Size, b: Size) -> Size:
    return a if b == 1 else b if a == 1 else f"({a} * {b})"


_OPERATORS = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "FloorMod": "%"}


def _size(expr: object) -> Size:
    """A size as an int or as a Python expression."""
    if isinstance(expr, (int, tirx.IntImm)):
        return int(expr)
    if isinstance(expr, tirx.Var):
        return str(expr.name)
    if isinstance(expr, tirx.Cast):
        return _size(expr.value)
    operator = _OPERATORS.get(type(expr).__name__)
    if operator is None:
        raise TargetError(f"a size of the form {expr} is not supported")
    return f"({_size(expr.a)} {operator} {_size(expr.b)})"


def _names(size: Size) -> set[str]:
    return set() if isinstance(size, int) else set(compile(size, "<size>", "eval").co_names)


class _Checker:
    """Compares arguments with a signature. What is constant is compared first and whole; only symbolic sizes are evaluated one by one."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.count = len(signature.parameters)
        self.limits = tuple((d, 1 << _INT_BITS[d.dtype]) for d in signature.dimensions)
        self.tensors = tuple(
            (
                i,
                p,
                torch_dtype(p.dtype),
                len(p.shape),
                None if any(isinstance(n, str) for n in p.shape) else torch.Size(p.shape),
            )
            for i, p in enumerate(signature.parameters)
            if isinstance(p, TensorParameter)
        )
        self.scalars = tuple(
            (i, p) for i, p in enumerate(signature.parameters) if isinstance(p, ScalarParameter)
        )
        self.compiled = {
            size: compile(size, "<size>", "eval")
            for _, p, *_ in self.tensors
            for size in (*p.shape, *(p.strides or ()))
            if isinstance(size, str)
        }

    def __call__(self, args: Sequence[object], device_type: str) -> None:
        if len(args) != self.count:
            names = ", ".join(p.name for p in self.signature.parameters)
            raise self._error("the argument count", len(args), f"{self.count} ({names})")
        for i, p, dtype, rank, shape in self.tensors:
            tensor = args[i]
            if not isinstance(tensor, torch.Tensor):
                raise self._error(p.name, type(tensor).__name__, "a tensor")
            if tensor.dtype is not dtype:
                raise self._error(f"{p.name}.dtype", tensor.dtype, dtype)
            if tensor.device.type != device_type:
                raise self._error(f"{p.name}.device", tensor.device, device_type)
            if shape is not None:
                if tensor.shape != shape:
                    raise self._error(f"{p.name}.shape", tuple(tensor.shape), tuple(shape))
            elif tensor.dim() != rank:
                raise self._error(f"{p.name}.shape", tuple(tensor.shape), f"{rank} dimensions")
            if p.strides is None and not tensor.is_contiguous():
                raise self._error(f"{p.name}.stride", tensor.stride(), "that of a contiguous tensor")
        for i, p in self.scalars:
            if not isinstance(args[i], numbers.Number):
                raise self._error(p.name, type(args[i]).__name__, f"a number ({p.dtype})")
            if p.dtype.startswith(("int", "uint")) and not isinstance(args[i], numbers.Integral):
                raise self._error(p.name, args[i], f"an integer ({p.dtype})")
        if self.compiled:
            self._check_symbolic(args)

    def _check_symbolic(self, args: Sequence[object]) -> None:
        sizes: dict[str, int] = {p.name: args[i] for i, p in self.scalars}
        for dimension, limit in self.limits:
            value = sizes[dimension.name] = dimension.read(args)
            if value >= limit:
                p = self.signature.parameters[dimension.parameter]
                raise self._error(
                    f"{p.name}.shape[{dimension.axis}]",
                    value,
                    f"less than {limit}, the range of {dimension.dtype}",
                )
        for i, p, _, _, shape in self.tensors:
            if shape is None:
                self._compare(f"{p.name}.shape", args[i].shape, p.shape, sizes)
            if p.strides is not None and args[i].numel():
                # The stride of a dimension of length one is never used.
                used = [d for d, n in enumerate(args[i].shape) if n != 1]
                self._compare(
                    f"{p.name}.stride", [args[i].stride(d) for d in used], [p.strides[d] for d in used], sizes
                )

    def _compare(
        self, what: str, got: Sequence[int], expected: Sequence[Size], sizes: Mapping[str, int]
    ) -> None:
        for axis, size in enumerate(expected):
            value = (
                size
                if isinstance(size, int)
                else sizes[size]
                if size in sizes
                else eval(self.compiled[size], {}, sizes)
            )
            if got[axis] != value:
                wanted = tuple(
                    n if isinstance(n, int) else eval(self.compiled[n], {}, sizes) for n in expected
                )
                raise self._error(what, tuple(got), f"{wanted} = ({', '.join(map(str, expected))})")

    def _error(self, parameter: str, got: object, expected: object) -> LaunchError:
        return LaunchError(self.signature.program, parameter, got, expected)
