"""Conditions that a loop tests in every iteration, moved out of it or turned into its bound.

`for l < 64: if (row < rows && base + l < inner) ...` runs as
`if (row < rows) for l < min(64, inner - base): ...`, which the compiler vectorises without masks.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tvm import tirx

from .ranges import is_arithmetic, key, mentions


def hoist_guards(loop: tirx.For) -> object:
    """The same parallel nest with its conditions as far out as they go. Loops of one iteration disappear.

    Only bodies that are one `if` without `else` change otherwise.
    """
    if isinstance(loop.extent, tirx.IntImm) and loop.extent.value == 1:
        once = tirx.stmt_functor.substitute(loop.body, {loop.loop_var: loop.min})
        return hoist_guards(once) if isinstance(once, tirx.For) else once
    body = hoist_guards(loop.body) if isinstance(loop.body, tirx.For) else loop.body
    if not isinstance(body, tirx.IfThenElse) or body.else_case is not None:
        return _with(loop, loop.extent, body)
    split = _split(body.condition, loop.loop_var)
    extent = loop.extent
    for bound in split.bounds:
        extent = tirx.min(extent, bound - loop.min)
    inner = _with(loop, extent, _under(split.remaining, body.then_case))
    return _under(split.invariant, inner)


def _with(loop: tirx.For, extent: object, body: object) -> tirx.For:
    return tirx.For(loop.loop_var, loop.min, extent, loop.kind, body, step=loop.step)


def _under(conditions: tuple[object, ...], body: object) -> object:
    return tirx.IfThenElse(functools.reduce(tirx.And, conditions), body, None) if conditions else body


@dataclass(frozen=True)
class _Split:
    """A condition in parts: the same for all iterations; upper bounds of the loop variable; the rest."""

    invariant: tuple[object, ...]
    bounds: tuple[object, ...]
    remaining: tuple[object, ...]


def _split(condition: object, variable: tirx.Var) -> _Split:
    own = {key(variable)}
    invariant, bounds, remaining = [], [], []
    for part in _conjuncts(condition):
        offset = None
        if isinstance(part, tirx.LT) and is_arithmetic(part) and not mentions(part.b, own):
            offset = _without(part.a, variable)
        if is_arithmetic(part) and not mentions(part, own):
            invariant.append(part)
        elif offset is not None:
            bounds.append(part.b - offset)
        else:
            remaining.append(part)
    return _Split(tuple(invariant), tuple(bounds), tuple(remaining))


def _conjuncts(condition: object) -> list[object]:
    if isinstance(condition, tirx.And):
        return _conjuncts(condition.a) + _conjuncts(condition.b)
    return [condition]


def _without(expr: object, variable: tirx.Var) -> object | None:
    """`expr` - `variable`, where that no longer depends on the variable; else None."""
    if isinstance(expr, tirx.Var):
        return tirx.const(0, expr.dtype) if key(expr) == key(variable) else None
    if isinstance(expr, tirx.Add):
        for inner, outer in ((expr.a, expr.b), (expr.b, expr.a)):
            if mentions(inner, {key(variable)}) and not mentions(outer, {key(variable)}):
                rest = _without(inner, variable)
                return None if rest is None else rest + outer
    if isinstance(expr, tirx.Sub) and not mentions(expr.b, {key(variable)}):
        rest = _without(expr.a, variable)
        return None if rest is None else rest - expr.b
    return None
