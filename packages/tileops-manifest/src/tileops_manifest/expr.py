"""The expression language: a closed subset of Python's expressions, parsed once and compiled to code objects.

Every name is bound by the entry (dims, packs, params, dtype variables, lets) and every function is in
``functions.FUNCTIONS``. There are no attributes, no comprehensions, no keywords and no builtins.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType
from typing import Any

from tileops_manifest.dtypes import DTYPES
from tileops_manifest.errors import ExpressionError, suggest
from tileops_manifest.functions import FUNCTIONS

# Functions live under a prefix, so that an entry may have a param named `max`.
_FUNCTION = "_fn_"
_GLOBALS: dict[str, Any] = {
    "__builtins__": {},
    **{_FUNCTION + name: fn.call for name, fn in FUNCTIONS.items()},
}
DATA = "_data"

_ALLOWED = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult, ast.FloorDiv, ast.Mod, ast.BitAnd, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt,
    ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot, ast.IfExp, ast.Call, ast.Name, ast.Load, ast.Constant,
    ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.Starred,
)  # fmt: skip
_NO_VALUE = (
    TypeError, ValueError, LookupError, ArithmeticError, AttributeError, MemoryError, RecursionError,
)  # fmt: skip
_HINTS = {
    ast.Attribute: "attributes are not part of the language; use shape_of, rank, numel or dtype_of",
    ast.Div: "true division is not part of the language; use // or ceil_div",
    ast.Pow: "powers are not part of the language",
    ast.BitOr: "'|' joins dtypes only",
}


@dataclass(frozen=True, slots=True)
class Scope:
    """The names an expression may use: ``values`` anywhere, ``tensors`` as arguments of tensor functions.

    ``data`` allows the functions that read the values of integer inputs.
    """

    values: frozenset[str]
    tensors: frozenset[str] = frozenset()
    data: bool = False


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression. ``names`` are the values it reads, ``tensors`` the inputs and outputs."""

    source: str
    names: frozenset[str]
    tensors: frozenset[str]
    code: CodeType = field(repr=False, compare=False)

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """The value under these bindings. Raises ExpressionError when it has none."""
        try:
            return eval(self.code, _GLOBALS, env)
        except ExpressionError:
            raise
        except NameError as error:
            raise ExpressionError(f"`{self.source}`: {error.name} has no value here") from None
        except _NO_VALUE as error:
            raise ExpressionError(f"`{self.source}` cannot be evaluated: {error}") from None

    def __str__(self) -> str:
        return self.source


@dataclass(frozen=True, slots=True)
class _Use:
    name: str
    offset: int
    tensor: bool | None  # None: either, as in `x is None`
    data: bool = False


@dataclass(frozen=True, slots=True)
class _Compiled:
    code: CodeType
    uses: tuple[_Use, ...]


@lru_cache(maxsize=8192)
def compile_expression(source: str, scope: Scope) -> Expression:
    """Parse, check and compile. Raises ExpressionError with the offset of the offending part."""
    return _bind_names(source, _compile(source, dtype_mode=False, tensors=frozenset()), scope)


@lru_cache(maxsize=4096)
def compile_dtype(source: str, scope: Scope) -> Expression:
    """Compile a dtype expression: dtype names, ``a | b``, dtype variables, same_as, promote, ternaries.

    Evaluates to a dtype name, or to a (nested) tuple of names for a union.
    """
    return _bind_names(source, _compile(source, dtype_mode=True, tensors=scope.tensors), scope)


def _bind_names(source: str, compiled: _Compiled, scope: Scope) -> Expression:
    names, tensors = set(), set()
    for use in compiled.uses:
        if use.data and not scope.data:
            raise ExpressionError("values of inputs are known to the roofline only", use.offset)
        is_tensor = use.name in scope.tensors if use.tensor is None else use.tensor
        if use.name not in (scope.tensors if is_tensor else scope.values):
            raise ExpressionError(_unbound(use, scope), use.offset)
        (tensors if is_tensor else names).add(use.name)
    return Expression(source, frozenset(names), frozenset(tensors), compiled.code)


def _unbound(use: _Use, scope: Scope) -> str:
    if use.tensor:
        return f"{use.name!r} is not an input or output{suggest(use.name, scope.tensors)}"
    if use.name in scope.tensors:
        return f"{use.name!r} is a tensor; use shape_of, rank, numel, dtype_of or present"
    return f"name {use.name!r} is not bound{suggest(use.name, scope.values)}"


def parse(source: str) -> ast.expr:
    """The syntax tree of an expression, checked to lie inside the language."""
    try:
        tree = ast.parse(source, mode="eval")
    except SyntaxError as error:
        # Python reports an expression that ends too early at offset 0.
        offset = error.offset - 1 if error.offset else len(source)
        raise ExpressionError(f"`{source}`: {error.msg}", offset) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"`{source}` cannot be parsed: {error}") from None
    return tree.body


@lru_cache(maxsize=8192)
def _compile(source: str, *, dtype_mode: bool, tensors: frozenset[str]) -> _Compiled:
    checker = _Checker(tensors if dtype_mode else None)
    try:
        tree = ast.fix_missing_locations(ast.Expression(checker.visit(parse(source))))
        return _Compiled(compile(tree, "<manifest>", "eval"), tuple(checker.uses))
    except RecursionError:
        raise ExpressionError("the expression is nested too deeply") from None


class _Checker(ast.NodeTransformer):
    """Rejects what is outside the language, collects names, and lowers the notation to plain Python."""

    def __init__(self, dtype_tensors: frozenset[str] | None) -> None:
        self.dtype_tensors = dtype_tensors
        self.uses: list[_Use] = []

    def visit(self, node: ast.AST) -> Any:
        union = isinstance(node, ast.BitOr) and self.dtype_tensors is not None
        if not isinstance(node, _ALLOWED) and not union:
            hint = _HINTS.get(type(node), f"{type(node).__name__} is not part of the language")
            raise ExpressionError(hint, getattr(node, "col_offset", 0))
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if self.dtype_tensors is not None and node.id in DTYPES:
            return ast.copy_location(ast.Constant(node.id), node)
        self.uses.append(_Use(node.id, node.col_offset, tensor=False))
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, int | float | str | bool | None):
            raise ExpressionError(f"constant {node.value!r} is not part of the language", node.col_offset)
        return node

    def visit_List(self, node: ast.List) -> ast.expr:
        elements = [self.visit(element) for element in node.elts]
        return ast.copy_location(ast.Tuple(elements, ast.Load()), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        if isinstance(node.op, ast.BitOr) and self.dtype_tensors is not None:
            return ast.copy_location(
                ast.Tuple([self.visit(node.left), self.visit(node.right)], ast.Load()), node
            )
        if type(node.op) in _HINTS:
            raise ExpressionError(_HINTS[type(node.op)], node.left.end_col_offset or 0)
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        tests_none = all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)
        if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            if not (tests_none and len(node.ops) == 1 and _is_none(node.comparators[0])):
                raise ExpressionError("'is' compares with None only", node.col_offset)
            if isinstance(node.left, ast.Name):
                self.uses.append(_Use(node.left.id, node.left.col_offset, tensor=None))
                return node
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
            raise ExpressionError(f"unknown function {name!r}{suggest(name, FUNCTIONS)}", node.col_offset)
        if node.keywords:
            raise ExpressionError("keyword arguments are not part of the language", node.col_offset)
        function = FUNCTIONS[node.func.id]
        starred = any(isinstance(argument, ast.Starred) for argument in node.args)
        if not starred and not function.least <= len(node.args) <= (function.most or len(node.args)):
            raise ExpressionError(
                f"{node.func.id} takes {_arity(function)}, got {len(node.args)}", node.col_offset
            )
        if function.tensors:
            node.args = self._tensor_arguments(node.func.id, node.args[0])
        else:
            dtype_call = self.dtype_tensors is not None and node.func.id in ("promote", "int_to_float")
            node.args = [self._dtype_argument(arg) if dtype_call else self.visit(arg) for arg in node.args]
        node.func.id = _FUNCTION + node.func.id
        return node

    def _dtype_argument(self, argument: ast.expr) -> ast.expr:
        """In a dtype expression ``promote(x, y)`` speaks of the dtypes of x and y."""
        if isinstance(argument, ast.Name) and argument.id in (self.dtype_tensors or ()):
            self.uses.append(_Use(argument.id, argument.col_offset, tensor=True))
            return ast.copy_location(
                ast.Call(ast.Name(_FUNCTION + "dtype_of", ast.Load()), [argument], []), argument
            )
        return self.visit(argument)

    def _tensor_arguments(self, function: str, argument: ast.expr) -> list[ast.expr]:
        if not isinstance(argument, ast.Name):
            raise ExpressionError(f"{function} takes the name of an input or output", argument.col_offset)
        self.uses.append(_Use(argument.id, argument.col_offset, tensor=True, data=FUNCTIONS[function].data))
        if FUNCTIONS[function].data:
            return [ast.copy_location(ast.Constant(argument.id), argument), ast.Name(DATA, ast.Load())]
        return [argument]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _arity(function: Any) -> str:
    if function.most is None:
        return f"at least {function.least} arguments"
    if function.least == function.most:
        return f"{function.least} argument{'s' * (function.least != 1)}"
    return f"{function.least} to {function.most} arguments"
