"""Value ranges of index expressions: which accesses need a bounds guard, and which guards a whole loop nest
can share.

TileLang promises that a global access outside a tensor reads zero or writes nothing. A guard per element
keeps the promise but stops vectorisation, so it is left out where the range proves it, and hoisted out of a
loop nest where it is affine in the nest's variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tvm import tirx

Interval = tuple[int | None, int | None]
UNKNOWN: Interval = (None, None)


def key(node: object) -> int:
    """Identity of a TVM node: its handle, which lives as long as the program that is being compiled."""
    return hash(node)


@dataclass
class VariableRange:
    """What is known of a variable; `extent` is its bound from above, where it starts at zero."""

    interval: Interval
    extent: object | None = None


@dataclass(frozen=True)
class Affine:
    """free terms (coefficient, expression) + something in [low, high]"""

    free: tuple[tuple[int, object], ...]
    low: int
    high: int


def _add(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _corners(a: Interval, b: Interval, combine: Callable[[int, int], int]) -> Interval:
    if None in a or None in b:
        return UNKNOWN
    values = [combine(x, y) for x in a for y in b]
    return min(values), max(values)


@dataclass
class Ranges:
    """Known ranges of the variables in scope, and the interval arithmetic over them."""

    variables: dict[int, VariableRange] = field(default_factory=dict)

    def set_loop(self, loop_var: tirx.Var, start: tirx.PrimExpr, extent: tirx.PrimExpr) -> None:
        low, last = self.interval(start), self.interval(extent)
        high = _add(_add(low[1], last[1]), -1)
        starts_at_zero = isinstance(start, tirx.IntImm) and start.value == 0
        self.variables[key(loop_var)] = VariableRange((low[0], high), extent if starts_at_zero else None)

    def set_interval(self, variable: tirx.Var, interval: Interval) -> None:
        self.variables[key(variable)] = VariableRange(interval)

    def interval(self, expr: object) -> Interval:
        """Least and greatest value, None where unbounded or unknown."""
        if isinstance(expr, tirx.IntImm):
            return expr.value, expr.value
        if isinstance(expr, tirx.Var):
            known = self.variables.get(key(expr))
            return known.interval if known else UNKNOWN
        handler = _INTERVALS.get(type(expr).__name__)
        return handler(self, expr) if handler else UNKNOWN

    def below(self, expr: object, bound: object) -> bool:
        """Whether `expr` < `bound` is certain."""
        high, least = self.interval(expr)[1], self.interval(bound)[0]
        if high is not None and least is not None and high < least:
            return True
        if isinstance(expr, tirx.Var):
            known = self.variables.get(key(expr))
            return known is not None and known.extent is not None and same_expr(known.extent, bound)
        return False

    def affine(self, expr: object, inside: set[int], is_stable: Callable[[object], bool]) -> Affine | None:
        """Split `expr` into terms free of the variables `inside` a nest and a constant range.

        None where that is impossible.
        """
        if not mentions(expr, inside):
            if isinstance(expr, tirx.IntImm):
                return Affine((), expr.value, expr.value)
            return Affine(((1, expr),), 0, 0) if is_stable(expr) else None
        if isinstance(expr, (tirx.Add, tirx.Sub)):
            a, b = self.affine(expr.a, inside, is_stable), self.affine(expr.b, inside, is_stable)
            if a is None or b is None:
                return None
            return _sum(a, b if isinstance(expr, tirx.Add) else _scale(b, -1))
        if isinstance(expr, tirx.Mul):
            for factor, other in ((expr.a, expr.b), (expr.b, expr.a)):
                if isinstance(factor, tirx.IntImm):
                    scaled = self.affine(other, inside, is_stable)
                    return None if scaled is None else _scale(scaled, factor.value)
        low, high = self.interval(expr)
        return None if low is None or high is None else Affine((), low, high)


def _scale(a: Affine, factor: int) -> Affine:
    low, high = sorted((a.low * factor, a.high * factor))
    return Affine(tuple((c * factor, e) for c, e in a.free), low, high)


def _sum(a: Affine, b: Affine) -> Affine:
    return Affine(a.free + b.free, a.low + b.low, a.high + b.high)


def _interval_add(ranges: Ranges, e: tirx.Add) -> Interval:
    a, b = ranges.interval(e.a), ranges.interval(e.b)
    return _add(a[0], b[0]), _add(a[1], b[1])


def _interval_sub(ranges: Ranges, e: tirx.Sub) -> Interval:
    a, b = ranges.interval(e.a), ranges.interval(e.b)
    return (
        None if a[0] is None or b[1] is None else a[0] - b[1],
        None if a[1] is None or b[0] is None else a[1] - b[0],
    )


def _interval_mul(ranges: Ranges, e: tirx.Mul) -> Interval:
    a, b = ranges.interval(e.a), ranges.interval(e.b)
    whole = _corners(a, b, lambda x, y: x * y)
    if whole != UNKNOWN:
        return whole
    for one, factor in ((a, b), (b, a)):
        if factor[0] is not None and factor[0] == factor[1] and factor[0] >= 0:
            low, high = (None if bound is None else bound * factor[0] for bound in one)
            return low, high
    non_negative = (a[0] or -1) >= 0 or a[0] == 0, (b[0] or -1) >= 0 or b[0] == 0
    return (a[0] * b[0], None) if all(non_negative) else UNKNOWN


def _interval_floordiv(ranges: Ranges, e: tirx.FloorDiv) -> Interval:
    a, b = ranges.interval(e.a), ranges.interval(e.b)
    if b[0] is None or b[0] <= 0 or b[0] != b[1]:
        return (0, a[1]) if a[0] is not None and a[0] >= 0 and b[0] is not None and b[0] > 0 else UNKNOWN
    return (None if a[0] is None else a[0] // b[0]), (None if a[1] is None else a[1] // b[0])


def _interval_floormod(ranges: Ranges, e: tirx.FloorMod) -> Interval:
    a, b = ranges.interval(e.a), ranges.interval(e.b)
    if b[0] is None or b[0] <= 0 or b[1] is None:
        return UNKNOWN
    if a[0] is not None and a[0] >= 0 and a[1] is not None and a[1] < b[0]:
        return a
    return 0, b[1] - 1


def _interval_min(ranges: Ranges, e: tirx.Min) -> Interval:
    a, b = ranges.interval(e.a), ranges.interval(e.b)
    highs = [h for h in (a[1], b[1]) if h is not None]
    return (None if a[0] is None or b[0] is None else min(a[0], b[0])), (min(highs) if highs else None)


def _interval_max(ranges: Ranges, e: tirx.Max) -> Interval:
    a, b = ranges.interval(e.a), ranges.interval(e.b)
    lows = [low for low in (a[0], b[0]) if low is not None]
    return (max(lows) if lows else None), (None if a[1] is None or b[1] is None else max(a[1], b[1]))


def _interval_cast(ranges: Ranges, e: tirx.Cast) -> Interval:
    return ranges.interval(e.value) if "int" in str(e.dtype) and "int" in str(e.value.dtype) else UNKNOWN


_INTERVALS = {
    "Add": _interval_add,
    "Sub": _interval_sub,
    "Mul": _interval_mul,
    "FloorDiv": _interval_floordiv,
    "FloorMod": _interval_floormod,
    "Min": _interval_min,
    "Max": _interval_max,
    "Cast": _interval_cast,
}


def children(expr: object) -> Iterable[object]:
    """The operands of an expression."""
    if isinstance(expr, (tirx.IntImm, tirx.FloatImm, tirx.Var, tirx.StringImm)):
        return ()
    if isinstance(expr, (tirx.Cast, tirx.Not)):
        return (expr.value if isinstance(expr, tirx.Cast) else expr.a,)
    if isinstance(expr, tirx.BufferLoad):
        return tuple(expr.indices)
    if isinstance(expr, tirx.Call):
        return tuple(expr.args)
    if isinstance(expr, tirx.Select):
        return expr.condition, expr.true_value, expr.false_value
    if isinstance(expr, tirx.Let):
        return expr.value, expr.body
    return (expr.a, expr.b) if hasattr(expr, "a") else ()


def is_arithmetic(expr: object) -> bool:
    """Whether the value depends on variables alone: no memory is read, nothing is called."""
    return not isinstance(expr, (tirx.BufferLoad, tirx.Call, tirx.Let)) and all(
        map(is_arithmetic, children(expr))
    )


def mentions(expr: object, variables: set[int]) -> bool:
    """Whether any of the variables occurs in the expression."""
    if isinstance(expr, tirx.Var):
        return key(expr) in variables
    return any(mentions(child, variables) for child in children(expr))


def same_expr(a: object, b: object) -> bool:
    """Structural equality of two integer expressions; variables by identity."""
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return a.value == b.value
    if type(a) is not type(b):
        return False
    if isinstance(a, tirx.Var):
        return key(a) == key(b)
    left, right = tuple(children(a)), tuple(children(b))
    if not left or isinstance(a, (tirx.BufferLoad, tirx.Call)):
        return False
    return len(left) == len(right) and all(map(same_expr, left, right))
