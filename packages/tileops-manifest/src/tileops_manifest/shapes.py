"""Shape patterns of inputs: compiled once, matched against real shapes or realised from dims."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tileops_manifest.errors import ExpressionError
from tileops_manifest.expr import Expression, Scope, compile_expression, parse


class Unsolved(Exception):
    """The pattern cannot be matched yet: two packs of unknown length. Internal to binding."""


class Conflict(Exception):
    """The shape contradicts the pattern at ``axis`` (None: in its rank). Internal to binding."""

    def __init__(self, axis: int | None, detail: str) -> None:
        self.axis = axis
        self.detail = detail
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class Item:
    """One element of a pattern.

    ``name`` alone is a dim (or, with ``pack``, any number of dims). With ``solve`` the element is linear in
    the dim ``name`` and gives its value; otherwise it is an expression over known names that is checked.
    """

    text: str
    name: str | None = None
    pack: bool = False
    expression: Expression | None = None
    solve: Callable[[Any, Mapping[str, Any]], Any] | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """The items of one bracketed list, used when ``condition`` holds (None: always)."""

    condition: Expression | None
    items: tuple[Item, ...]

    @property
    def text(self) -> str:
        return f"[{', '.join(item.text for item in self.items)}]"


@dataclass(frozen=True, slots=True)
class ShapePattern:
    """An input's declared shape."""

    source: str
    alternatives: tuple[Alternative, ...]
    dims: frozenset[str]
    packs: frozenset[str]

    def select(self, env: Mapping[str, Any]) -> Alternative:
        """The alternative whose condition holds; conditions read params only."""
        return next(alt for alt in self.alternatives if alt.condition is None or alt.condition.evaluate(env))

    def realise(self, env: Mapping[str, Any]) -> tuple[Any, ...]:
        """The shape that these dims give."""
        shape: list[Any] = []
        for item in self.select(env).items:
            if item.pack:
                shape.extend(env[item.name])
            elif item.expression is not None:
                shape.append(item.expression.evaluate(env))
            else:
                shape.append(env[item.name])
        return tuple(shape)

    def __str__(self) -> str:
        return self.source


def compile_pattern(source: str, known: frozenset[str]) -> ShapePattern:
    """Compile an input's shape. ``known`` are the param names; every other bare name becomes a dim."""
    dims: set[str] = set()
    packs: set[str] = set()
    alternatives: list[Alternative] = []
    node = parse(source)
    conditions: list[str] = []
    while isinstance(node, ast.IfExp):
        condition = ast.unparse(node.test)
        guard = " and ".join([*(f"not ({previous})" for previous in conditions), f"({condition})"])
        alternatives.append(_alternative(node.body, _condition(guard, known, node.test), known, dims, packs))
        conditions.append(condition)
        node = node.orelse
    alternatives.append(_alternative(node, None, known, dims, packs))
    return ShapePattern(source, tuple(alternatives), frozenset(dims), frozenset(packs))


def _condition(source: str, params: frozenset[str], node: ast.expr) -> Expression:
    try:
        return compile_expression(source, Scope(params))
    except ExpressionError as error:
        message = f"the condition of a shape reads params only: {error}"
        raise ExpressionError(message, node.col_offset) from None


def _alternative(
    node: ast.expr, condition: Expression | None, known: frozenset[str], dims: set[str], packs: set[str]
) -> Alternative:
    if not isinstance(node, ast.List):
        raise ExpressionError("an input's shape is a list of dims such as [*batch, M, K]", node.col_offset)
    items = []
    for element in node.elts:
        if isinstance(element, ast.Starred):
            items.append(_pack(element, packs))
        else:
            items.append(_item(element, known, dims))
    return Alternative(condition, tuple(items))


def _pack(node: ast.Starred, packs: set[str]) -> Item:
    if not isinstance(node.value, ast.Name):
        raise ExpressionError("a pack is written *name", node.col_offset)
    packs.add(node.value.id)
    return Item(f"*{node.value.id}", name=node.value.id, pack=True)


def _item(node: ast.expr, known: frozenset[str], dims: set[str]) -> Item:
    text = ast.unparse(node)
    if isinstance(node, ast.Name):
        if node.id in known:
            return Item(text, expression=compile_expression(text, Scope(known)))
        dims.add(node.id)
        return Item(text, name=node.id)
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - _called(node)
    try:
        expression = compile_expression(text, Scope(frozenset(names) | known))
    except ExpressionError as error:
        raise ExpressionError(str(error), node.col_offset + error.offset) from None
    unknown = names - known
    dims |= unknown
    if len(unknown) == 1 and isinstance(node, ast.BinOp):
        name = next(iter(unknown))
        solver = _solver(node, name, known)
        if solver is not None:
            return Item(text, name=name, expression=expression, solve=solver)
    return Item(text, expression=expression)


def _called(node: ast.expr) -> set[str]:
    return {
        part.func.id
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
    }


def _solver(
    node: ast.BinOp, name: str, known: frozenset[str]
) -> Callable[[Any, Mapping[str, Any]], Any] | None:
    """Solve ``k * name``, ``name + k`` or ``name - k`` for the name; None where it is not of that form."""
    if not isinstance(node.op, ast.Mult | ast.Add | ast.Sub):
        return None
    left_is_name = isinstance(node.left, ast.Name) and node.left.id == name
    right_is_name = isinstance(node.right, ast.Name) and node.right.id == name
    if not (left_is_name or (right_is_name and not isinstance(node.op, ast.Sub))):
        return None
    other = compile_expression(ast.unparse(node.right if left_is_name else node.left), Scope(known))

    def solve(size: Any, env: Mapping[str, Any]) -> Any:
        k = other.evaluate(env)
        if isinstance(node.op, ast.Add):
            return size - k
        if isinstance(node.op, ast.Sub):
            return size + k
        if k == 0 or size % k != 0:
            raise Conflict(None, f"a multiple of {k}")
        return size // k

    return solve
