"""Two nested parallel loops as one, where memory does not tell them apart.

Tile programs for a GPU walk a row as lanes of few elements: ``for t in 64: for v in 4: y[t * 4 + v] = ...``.
A compiler that vectorises the inner loop gets four elements; the loop over all 256 is the one to vectorise.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from .ranges import children, key, mentions


def flatten(loop: tirx.For) -> tirx.For:
    """Merge the innermost loops of a parallel nest while every access moves in step; else the nest as it is.

    In the merged nest the outer variable is zero and the inner one runs over both: an index may exceed its
    dimension, while the element that it names is the right one. Bounds of dimensions mean nothing there.
    """
    inner = loop.body
    if not isinstance(inner, tirx.For):
        return loop
    inner = flatten(inner)
    if not _is_mergeable(loop, inner):
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, inner, step=loop.step)
    zero = tirx.const(0, loop.loop_var.dtype)
    body = tirx.stmt_functor.substitute(inner.body, {loop.loop_var: zero})
    return tirx.For(inner.loop_var, inner.min, loop.extent * inner.extent, inner.kind, body)


def _is_mergeable(outer: tirx.For, inner: tirx.For) -> bool:
    same_kind = int(outer.kind) == int(inner.kind) == int(tirx.ForKind.PARALLEL)
    from_zero = all(
        isinstance(loop.min, tirx.IntImm) and loop.min.value == 0 and loop.step is None
        for loop in (outer, inner)
    )
    if not (same_kind and from_zero and isinstance(inner.extent, tirx.IntImm)):
        return False
    return _all_accesses(inner.body, _Steps(outer.loop_var, inner.loop_var, inner.extent.value))


class _Steps:
    """Whether an access moves V times as far with the outer variable as with the inner one, of extent V."""

    def __init__(self, outer: tirx.Var, inner: tirx.Var, width: int) -> None:
        self.outer, self.inner, self.width = outer, inner, width
        self.both = {key(outer), key(inner)}

    def fits(self, buffer: tirx.Buffer, indices: list[object]) -> bool:
        outer, inner = (step_of(buffer, indices, v) for v in (self.outer, self.inner))
        return outer is not None and inner is not None and outer == self.width * inner


def step_of(buffer: tirx.Buffer, indices: list[object], variable: tirx.Var) -> int | None:
    """How many elements an access moves when the variable does by one; None where that is no constant."""
    total = 0
    for index, stride in zip(indices, list(buffer.strides) or _row_major(buffer.shape), strict=True):
        step = coefficient(index, variable)
        if step is None or (step and not isinstance(stride, tirx.IntImm)):
            return None
        total += step * stride.value if step else 0
    return total


def _row_major(shape: list[object]) -> list[object]:
    strides: list[object] = [tirx.IntImm("int64", 1)]
    for extent in list(shape)[:0:-1]:
        last = strides[0]
        both = isinstance(extent, tirx.IntImm) and isinstance(last, tirx.IntImm)
        strides.insert(0, tirx.IntImm("int64", extent.value * last.value) if both else None)
    return strides


def _all_accesses(stmt: object, steps: _Steps) -> bool:
    """Whether the statements use the two variables in memory accesses alone, and every access fits."""
    if isinstance(stmt, tirx.SeqStmt):
        return all(_all_accesses(child, steps) for child in stmt.seq)
    if isinstance(stmt, tirx.BufferStore):
        return steps.fits(stmt.buffer, list(stmt.indices)) and _value_fits(stmt.value, steps)
    if isinstance(stmt, tirx.Bind):
        return _value_fits(stmt.value, steps)
    if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        return _value_fits(stmt.condition, steps) and _all_accesses(stmt.then_case, steps)
    return False


def _value_fits(expr: object, steps: _Steps) -> bool:
    if isinstance(expr, tirx.Var):
        return key(expr) not in steps.both
    if isinstance(expr, tirx.BufferLoad):
        return steps.fits(expr.buffer, list(expr.indices))
    if isinstance(expr, tirx.Call) and "atomic" in getattr(expr.op, "name", ""):
        return False
    return all(_value_fits(child, steps) for child in children(expr))


def coefficient(expr: object, variable: tirx.Var) -> int | None:
    """How far the expression moves when the variable does by one; None where that is not a constant."""
    own = {key(variable)}
    if not mentions(expr, own):
        return 0
    if isinstance(expr, tirx.Var):
        return 1
    if isinstance(expr, (tirx.Add, tirx.Sub)):
        return _combined(
            coefficient(expr.a, variable), coefficient(expr.b, variable), _SUMS[type(expr).__name__]
        )
    if isinstance(expr, tirx.Mul):
        for factor, other in ((expr.a, expr.b), (expr.b, expr.a)):
            if isinstance(factor, tirx.IntImm):
                step = coefficient(other, variable)
                return None if step is None else step * factor.value
    if isinstance(expr, tirx.Cast):
        return coefficient(expr.value, variable)
    return None


_SUMS: dict[str, Callable[[int, int], int]] = {"Add": lambda a, b: a + b, "Sub": lambda a, b: a - b}


def _combined(a: int | None, b: int | None, operator: Callable[[int, int], int]) -> int | None:
    return None if a is None or b is None else operator(a, b)
