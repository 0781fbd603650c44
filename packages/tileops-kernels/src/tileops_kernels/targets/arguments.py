"""What a compiled program takes, read off the tile program, and the check of arguments against it."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch
from tvm import tirx

from ..dtypes import from_tilelang, torch_dtype
from .errors import LaunchError, TargetError

# What a Python number can become on its way to a C function.
SCALAR_DTYPES: Final = frozenset(
    {"bool", "float32", "float64", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}
)
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
    """Compares arguments with a signature: a fast answer first, and an explanation only where that is no."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.count = len(signature.parameters)
        self.limits = tuple((d, 1 << _INT_BITS[d.dtype]) for d in signature.dimensions)
        self.scalars = tuple(
            (i, p) for i, p in enumerate(signature.parameters) if isinstance(p, ScalarParameter)
        )
        self.tensors = tuple(
            (i, p, torch_dtype(p.dtype))
            for i, p in enumerate(signature.parameters)
            if isinstance(p, TensorParameter)
        )
        self.compiled = {
            size: compile(size, "<size>", "eval")
            for _, p, _ in self.tensors
            for size in (*p.shape, *(p.strides or ()))
            if isinstance(size, str)
        }
        self.fast = tuple(
            (
                i,
                dtype,
                torch.Size(p.shape) if not any(isinstance(n, str) for n in p.shape) else None,
                tuple(enumerate(p.shape)),
                len(p.shape),
                p.strides,
            )
            for i, p, dtype in self.tensors
        )

    def __call__(self, args: Sequence[object], device_type: str) -> None:
        try:
            if self._fits(args, device_type):
                return
        except (AttributeError, IndexError, TypeError):
            pass  # not tensors, or of another rank: explained below
        self._explain(args, device_type)

    def _fits(self, args: Sequence[object], device_type: str) -> bool:
        if len(args) != self.count:
            return False
        sizes: dict[str, int] = {}
        for i, p in self.scalars:
            kind = type(args[i])
            if kind is not int and (kind is not float or "int" in p.dtype):
                return False
            sizes[p.name] = args[i]
        for d, limit in self.limits:
            tensor = args[d.parameter]
            size = sizes[d.name] = tensor.stride(d.axis) if d.is_stride else tensor.shape[d.axis]
            if size >= limit:
                return False
        on_cpu = device_type == "cpu"
        for i, dtype, fixed, axes, rank, strides in self.fast:
            tensor = args[i]
            if tensor.dtype is not dtype or tensor.is_cpu is not on_cpu:
                return False
            shape = tensor.shape
            if fixed is not None:
                if shape != fixed:
                    return False
            else:
                if len(shape) != rank:
                    return False
                for axis, size in axes:
                    if shape[axis] != (size if type(size) is int else self._evaluate(size, sizes)):
                        return False
            if strides is not None:
                return False
            if not tensor.is_contiguous():
                return False
        return True

    def _evaluate(self, size: Size, sizes: Mapping[str, int]) -> int:
        if isinstance(size, int):
            return size
        known = sizes.get(size)
        return eval(self.compiled[size], {}, dict(sizes)) if known is None else known

    def _explain(self, args: Sequence[object], device_type: str) -> None:
        """Check everything again, in an order that gives the most useful message; raises `LaunchError`."""
        if len(args) != self.count:
            names = ", ".join(p.name for p in self.signature.parameters)
            raise self._error("the argument count", len(args), f"{self.count} ({names})")
        for i, p, dtype in self.tensors:
            tensor = args[i]
            if not isinstance(tensor, torch.Tensor):
                raise self._error(p.name, type(tensor).__name__, "a tensor")
            if tensor.dtype is not dtype:
                raise self._error(f"{p.name}.dtype", tensor.dtype, dtype)
            if tensor.device.type != device_type:
                raise self._error(f"{p.name}.device", tensor.device, device_type)
            if tensor.dim() != len(p.shape):
                raise self._error(f"{p.name}.shape", tuple(tensor.shape), f"{len(p.shape)} dimensions")
        for i, p in self.scalars:
            if not isinstance(args[i], numbers.Real):
                raise self._error(p.name, type(args[i]).__name__, f"a number ({p.dtype})")
            if "int" in p.dtype and not isinstance(args[i], numbers.Integral):
                raise self._error(p.name, args[i], f"an integer ({p.dtype})")
        sizes: dict[str, int] = {p.name: args[i] for i, p in self.scalars}
        for d, limit in self.limits:
            size = sizes[d.name] = d.read(args)
            if size >= limit:
                name = f"{self.signature.parameters[d.parameter].name}.shape[{d.axis}]"
                raise self._error(name, size, f"less than {limit}, the range of {d.dtype}")
        for i, p, _ in self.tensors:
            self._compare(f"{p.name}.shape", args[i].shape, p.shape, sizes)
            if p.strides is None:
                if not args[i].is_contiguous():
                    raise self._error(f"{p.name}.stride", args[i].stride(), "that of a contiguous tensor")
            elif args[i].numel():
                used = [
                    d for d, n in enumerate(args[i].shape) if n != 1
                ]  # of a dimension of one, none is used
                got, expected = [args[i].stride(d) for d in used], [p.strides[d] for d in used]
                self._compare(f"{p.name}.stride", got, expected, sizes)

    def _compare(
        self, what: str, got: Sequence[int], expected: Sequence[Size], sizes: Mapping[str, int]
    ) -> None:
        wanted = tuple(self._evaluate(size, sizes) for size in expected)
        if tuple(got) != wanted:
            named = ", ".join(map(str, expected))
            raise self._error(
                what,
                tuple(got),
                f"{wanted} = ({named})" if any(isinstance(n, str) for n in expected) else wanted,
            )

    def _error(self, parameter: str, got: object, expected: object) -> LaunchError:
        return LaunchError(self.signature.program, parameter, got, expected)
