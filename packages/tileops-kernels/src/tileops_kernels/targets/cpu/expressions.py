"""Expressions of a tile program, printed as C++."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Final

import torch
from tvm import tirx

from ...dtypes import torch_dtype
from .calls import CALLS
from .context import Context, Storage
from .numeric import INTEGER_RANGE, CType, ctype
from .ranges import key, mentions

_ARITHMETIC: Final = {"Add": "+", "Sub": "-", "Mul": "*"}
_COMPARISON: Final = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}


class ExpressionPrinter:
    """Prints an expression as a value, as a 64-bit index, or as the bits that a store writes."""

    def __init__(self, context: Context) -> None:
        self.ctx = context

    # ---- values ----

    def value(self, expr: object) -> str:
        """The value; of a narrow float, already rounded to its dtype."""
        kind = type(expr).__name__
        if kind in _ROUNDED and ctype(expr.dtype).narrow:
            return f"tl_round_{ctype(expr.dtype).name}({self.unrounded(expr)})"
        handler = _VALUES.get(kind)
        if handler is None:
            raise self.ctx.unsupported(f"the expression {kind}", str(expr))
        return handler(self, expr)

    def unrounded(self, expr: object) -> str:
        """Of a narrow float expression: a float whose rounding to the expression's dtype is its value."""
        kind = type(expr).__name__
        if kind in _ROUNDED:
            return _ROUNDED[kind](self, expr)
        if kind == "Call" and expr.op.name in CALLS:
            return CALLS[expr.op.name](self, expr)
        return self.value(expr)

    def stored(self, expr: object, target: CType) -> str:
        """The bits that a store to memory of dtype `target` writes."""
        if not target.narrow:
            value = self.value(expr)
            return f"(uint8_t)({value})" if target.name == "bool" else value
        if isinstance(expr, tirx.BufferLoad) and ctype(expr.dtype) == target:
            return self.raw_load(expr)
        if isinstance(expr, tirx.Call) and expr.op.name == "tirx.if_then_else":
            condition, then, other = expr.args
            return f"({self.value(condition)} ? {self.stored(then, target)} : {self.stored(other, target)})"
        return f"tl_store_{target.name}({self.unrounded(expr)})"

    def as_type(self, expr: object, target: CType) -> str:
        """The value converted to the C++ value type of `target`, without rounding to a narrow dtype."""
        return self._convert(self.value(expr), ctype(expr.dtype), target.value)

    # ---- conversions ----

    def _convert(self, code: str, source: CType, target: str) -> str:
        if source.value == target:
            return code
        if target == "bool":
            return f"({code} != 0)"
        if source.is_float and target.endswith("_t"):
            return self._float_to_integer(code, source, target)
        return f"({target})({code})"

    def _float_to_integer(self, code: str, source: CType, target: str) -> str:
        if (
            source.value,
            target,
        ) not in INTEGER_RANGE:  # 8 and 16 bits: through 32, then truncated, as C does
            return f"({target})({self._float_to_integer(code, source, 'int32_t')})"
        return f"tl_to_integer<{target}>({code}, {', '.join(INTEGER_RANGE[source.value, target])})"

    def _cast(self, expr: tirx.Cast) -> str:
        source, target = ctype(expr.value.dtype), ctype(expr.dtype)
        if not target.narrow:
            return self._convert(self.value(expr.value), source, target.value)
        inner = self.value(expr.value)
        if source.value == "double":
            return f"tl_to_odd({inner})"
        if source.is_integer and source.bytes >= 4:
            return f"tl_to_odd((double)({inner}))"
        return self._convert(inner, source, "float")

    # ---- operators ----

    def _arithmetic(self, expr: object) -> str:
        t = ctype(expr.dtype)
        code = f"({self.value(expr.a)} {_ARITHMETIC[type(expr).__name__]} {self.value(expr.b)})"
        return f"({t.value}){code}" if t.is_integer and t.bytes < 4 else code

    def _div(self, expr: tirx.Div) -> str:
        if ctype(expr.dtype).is_float:
            return f"({self.value(expr.a)} / {self.value(expr.b)})"
        return self._integer_division(expr, "/", "tl_div", exact=True)

    def _mod(self, expr: tirx.Mod) -> str:
        return self._integer_division(expr, "%", "tl_mod", exact=True)

    def _floor_div(self, expr: tirx.FloorDiv) -> str:
        if ctype(expr.dtype).is_float:
            return f"tl_floor({self.value(expr.a)} / {self.value(expr.b)})"
        return self._integer_division(expr, "/", "tl_floor_div", exact=False)

    def _floor_mod(self, expr: tirx.FloorMod) -> str:
        return self._integer_division(expr, "%", "tl_floor_mod", exact=False)

    def _integer_division(self, expr: object, operator: str, function: str, *, exact: bool) -> str:
        t = ctype(expr.dtype).value
        dividend, divisor = self.ctx.ranges.interval(expr.a), self.ctx.ranges.interval(expr.b)
        plain = (
            divisor[0] is not None
            and divisor[0] > 0
            and (exact or (dividend[0] is not None and dividend[0] >= 0))
        )
        a, b = self.value(expr.a), self.value(expr.b)
        code = f"({t})({a} {operator} {b})" if plain else f"{function}<{t}>({a}, {b})"
        return code if isinstance(expr.b, tirx.IntImm) else self.ctx.once_per_block(expr, code)

    def _extremum(self, expr: object) -> str:
        name, t = type(expr).__name__.lower(), ctype(expr.dtype).value
        return f"tl_{name}<{t}>({self.value(expr.a)}, {self.value(expr.b)})"

    def _comparison(self, expr: object) -> str:
        if isinstance(expr, tirx.EQ) and self._is_leader_test(expr):
            return "true"
        return f"({self.value(expr.a)} {_COMPARISON[type(expr).__name__]} {self.value(expr.b)})"

    def _is_leader_test(self, expr: tirx.EQ) -> bool:
        # One thread runs a whole block here, so `tx == 0`, which picks the leader, holds. Other uses of an
        # index are refused.
        return (
            isinstance(expr.a, tirx.Var)
            and key(expr.a) in self.ctx.thread_variables
            and isinstance(expr.b, tirx.IntImm)
            and expr.b.value == 0
        )

    def _logic(self, expr: object) -> str:
        operator = {"And": "&&", "Or": "||"}[type(expr).__name__]
        return f"({self.value(expr.a)} {operator} {self.value(expr.b)})"

    def _not(self, expr: tirx.Not) -> str:
        return f"(!{self.value(expr.a)})"

    def _select(self, expr: tirx.Select) -> str:
        return (
            f"({self.value(expr.condition)} ? {self.value(expr.true_value)} : {self.value(expr.false_value)})"
        )

    def _let(self, expr: tirx.Let) -> str:
        t = ctype(expr.var.dtype).value
        definition = f"const {t} {self.ctx.name(expr.var)} = {self.value(expr.value)};"
        return f"({{ {definition} {self.value(expr.body)}; }})"

    # ---- leaves ----

    def _variable(self, expr: tirx.Var) -> str:
        if key(expr) in self.ctx.thread_variables:
            raise self.ctx.unsupported(
                f"the thread index {expr.name}", "a block runs as one thread; write the tile with T.Parallel"
            )
        inlined = self.ctx.inlined.get(key(expr))
        return self.ctx.name(expr) if inlined is None else self.value(inlined)

    def _integer(self, expr: tirx.IntImm) -> str:
        return integer_literal(expr.value, ctype(expr.dtype))

    def _float(self, expr: tirx.FloatImm) -> str:
        return float_literal(expr.value, ctype(expr.dtype))

    def _load(self, expr: tirx.BufferLoad) -> str:
        t = ctype(expr.dtype)
        raw = self.raw_load(expr)
        if t.narrow:
            return self.ctx.converted.get(raw) or f"tl_load_{t.name}({raw})"
        return f"({raw} != 0)" if t.name == "bool" else raw

    def _call(self, expr: tirx.Call) -> str:
        name = getattr(expr.op, "name", str(expr.op))
        printer = CALLS.get(name)
        if printer is None:
            raise self.ctx.unsupported(name)
        code = printer(self, expr)
        t = ctype(expr.dtype)
        return f"tl_round_{t.name}({code})" if t.narrow and name not in _EXACT_CALLS else code

    # ---- memory ----

    def raw_load(self, expr: tirx.BufferLoad) -> str:
        """The stored bits of an element; zero outside a global tensor."""
        if expr.predicate is not None:
            raise self.ctx.unsupported("a predicated load", str(expr))
        storage = self.ctx.storage_of(expr.buffer)
        element, guard = self.access(storage, list(expr.indices))
        return f"({guard} ? {element} : ({storage.ctype.storage})0)" if guard else element

    def access(self, storage: Storage, indices: Sequence[object]) -> tuple[str, str]:
        """An element as an lvalue, and the condition under which it exists (empty where that is certain)."""
        indices = [self._non_negative(i, extent) for i, extent in zip(indices, storage.shape, strict=True)]
        guards = (
            [g for i, extent in zip(indices, storage.shape, strict=True) for g in self._guards(i, extent)]
            if storage.is_global
            else []
        )
        guard = " && ".join(guards)
        if guard and self.ctx.options.strict and not self.ctx.bounds_its_own:
            guard = f"(({guard}) || ({self._outside(storage, indices)}, false))"
        return f"{storage.name}[{self.offset(storage, indices)}]", guard

    def _outside(self, storage: Storage, indices: Sequence[object]) -> str:
        """What an access outside a tensor does where nothing would keep a GPU from it: the launch fails."""
        where = self.ctx.location()
        place = ", ".join(map(str, indices))
        return self.ctx.failure(f"{where or 'the program'}: {storage.name}[{place}] lies outside the tensor")

    def offset(self, storage: Storage, indices: Sequence[object]) -> str:
        terms = [] if storage.offset is None else [self.index(storage.offset)]
        for d, i in enumerate(indices):
            if isinstance(i, tirx.IntImm) and i.value == 0:
                continue
            strides = storage.strides
            factors = [self.index(strides[d])] if strides else [self.index(n) for n in storage.shape[d + 1 :]]
            terms.append(" * ".join([self.index(i), *(f for f in factors if f != "1")]))
        return " + ".join(terms) or "0"

    @staticmethod
    def _non_negative(index: object, extent: object) -> object:
        # A negative constant counts from the end, as in Python.
        return extent + index if isinstance(index, tirx.IntImm) and index.value < 0 else index

    def _guards(self, index: object, extent: object) -> list[str]:
        low = self.ctx.ranges.interval(index)[0]
        conditions = []
        if low is None or low < 0:
            conditions.append(self._guard(index, extent, upper=False))
        if not self.ctx.ranges.below(index, extent):
            conditions.append(self._guard(index, extent, upper=True))
        return [c for c in conditions if c]

    def _guard(self, index: object, extent: object, *, upper: bool) -> str:
        condition = f"{self.index(index)} < {self.index(extent)}" if upper else f"{self.index(index)} >= 0"
        nest = self.ctx.nest
        if nest is None:
            return condition
        if nest.unguarded:
            return ""
        nest.guards += 1
        shared = self._shared_condition(index, extent, upper)
        if shared is None:
            return condition
        if nest.assume_shared:
            return ""
        nest.shared_guards += 1
        if shared not in nest.shared:
            nest.shared.append(shared)
        return condition

    def _shared_condition(self, index: object, extent: object, upper: bool) -> str | None:
        nest = self.ctx.nest
        if mentions(extent, nest.variables):
            return None
        split = self.ctx.ranges.affine(index, nest.variables, self._is_stable)
        if split is None or not split.free:
            return None  # without a free term the condition is a constant that fails for some element
        terms = [self.index(e) if c == 1 else f"{c} * {self.index(e)}" for c, e in split.free]
        terms.append(str(split.high if upper else split.low))
        return f"{' + '.join(terms)} < {self.index(extent)}" if upper else f"{' + '.join(terms)} >= 0"

    def _is_stable(self, expr: object) -> bool:
        """Whether no store inside the nest can change the expression."""
        if isinstance(expr, tirx.BufferLoad):
            return key(expr.buffer.data) not in self.ctx.nest.written and all(
                map(self._is_stable, expr.indices)
            )
        if isinstance(expr, tirx.Call):
            return False
        return (
            all(map(self._is_stable, (expr.a, expr.b))) if hasattr(expr, "a") and hasattr(expr, "b") else True
        )

    def index(self, expr: object) -> str:
        """The expression in 64 bits throughout, so that a product of 32-bit sizes cannot wrap."""
        if isinstance(expr, int):
            return str(expr)
        if isinstance(expr, tirx.IntImm):
            return str(expr.value)
        kind = type(expr).__name__
        if kind in _ARITHMETIC:
            return f"({self.index(expr.a)} {_ARITHMETIC[kind]} {self.index(expr.b)})"
        if kind in ("FloorDiv", "FloorMod"):
            low, divisor = self.ctx.ranges.interval(expr.a)[0], expr.b
            if low is not None and low >= 0 and isinstance(divisor, tirx.IntImm) and divisor.value > 0:
                return f"({self.index(expr.a)} {'/' if kind == 'FloorDiv' else '%'} {divisor.value})"
        if (
            isinstance(expr, tirx.Cast)
            and ctype(expr.dtype).bytes == 8
            and ctype(expr.value.dtype).is_integer
        ):
            return self.index(expr.value)
        return f"(int64_t){self.value(expr)}"


def integer_literal(value: int, t: CType) -> str:
    if t.name == "bool":
        return "true" if value else "false"
    if t.name == "int64":
        return "INT64_MIN" if value == -(2**63) else f"(int64_t){value}"
    if t.name == "int32":
        return "INT32_MIN" if value == -(2**31) else str(value)
    suffix = "u" if t.name == "uint32" else "ull" if t.name == "uint64" else ""
    return f"({t.value}){value % 2 ** (8 * t.bytes) if not t.is_signed else value}{suffix}"


def float_literal(value: float, t: CType) -> str:
    """An exact literal: hexadecimal, rounded to the dtype first."""
    if t.narrow:
        value = (
            torch.tensor(value, dtype=torch.float64)
            .to(torch.float32)
            .to(torch_dtype(t.name))
            .to(torch.float64)
            .item()
        )
    if math.isnan(value):
        return f"({t.value})NAN"
    if not math.isinf(value) and t.value == "float":
        value = _to_float32(value)
    if math.isinf(value):
        return f"({'-' if value < 0 else ''}({t.value})INFINITY)"
    return f"{value.hex()}{'f' if t.value == 'float' else ''}"


def _to_float32(value: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


_Printer = Callable[[ExpressionPrinter, object], str]
_EXACT_CALLS: Final = frozenset({"tirx.if_then_else", "tirx.likely", "tirx.reinterpret", "tl.__ldg"})
# Kinds whose result is rounded when their dtype is a narrow float.
_ROUNDED: Final[dict[str, _Printer]] = {
    **dict.fromkeys(_ARITHMETIC, ExpressionPrinter._arithmetic),
    "Div": ExpressionPrinter._div,
    "Cast": ExpressionPrinter._cast,
}
_VALUES: Final[dict[str, _Printer]] = {
    **_ROUNDED,
    **dict.fromkeys(_COMPARISON, ExpressionPrinter._comparison),
    **dict.fromkeys(("And", "Or"), ExpressionPrinter._logic),
    **dict.fromkeys(("Min", "Max"), ExpressionPrinter._extremum),
    "Mod": ExpressionPrinter._mod,
    "FloorDiv": ExpressionPrinter._floor_div,
    "FloorMod": ExpressionPrinter._floor_mod,
    "Not": ExpressionPrinter._not,
    "Select": ExpressionPrinter._select,
    "Let": ExpressionPrinter._let,
    "Var": ExpressionPrinter._variable,
    "IntImm": ExpressionPrinter._integer,
    "FloatImm": ExpressionPrinter._float,
    "BufferLoad": ExpressionPrinter._load,
    "Call": ExpressionPrinter._call,
}
