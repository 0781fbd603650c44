"""Types of params: parsed from the entry once, used to check and canonicalise values."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

from tileops_manifest.dtypes import DTYPES
from tileops_manifest.errors import ExpressionError, suggest

_INT64 = range(-(1 << 63), 1 << 63)


class Mismatch(Exception):
    """A value is not of the type; internal to this module and its caller. Its text says what else is expected
    of a value that looks right.
    """


Check = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ParamType:
    """A param type such as ``int | tuple[int, ...] | None``; sequences are canonicalised to tuples."""

    source: str
    checks: tuple[Check, ...]

    def canonical(self, value: Any) -> Any:
        """The canonical form of ``value``. Raises Mismatch when no alternative accepts it."""
        hint = ""
        for check in self.checks:
            try:
                return check(value)
            except Mismatch as mismatch:
                hint = hint or str(mismatch)
        raise Mismatch(hint)

    def __str__(self) -> str:
        return self.source


def _int(value: Any) -> Any:
    # An opaque integer (torch.SymInt) is kept as it is; tensors also have __index__ and are refused.
    if isinstance(value, bool):
        raise Mismatch
    if isinstance(value, Integral):
        if int(value) not in _INT64:
            raise Mismatch("an integer of 64 bits")
        return int(value)
    if hasattr(type(value), "__index__") and not hasattr(type(value), "shape"):
        return value
    raise Mismatch


def _float(value: Any) -> Any:
    if isinstance(value, bool):
        raise Mismatch
    if isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:
            raise Mismatch("a number that float64 can hold") from None
    if hasattr(type(value), "__float__") and not hasattr(type(value), "shape"):
        return value
    raise Mismatch


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Mismatch


def _str(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Mismatch


def _none(value: Any) -> None:
    if value is not None:
        raise Mismatch


def _dtype(value: Any) -> str:
    name = str(value).removeprefix("torch.")
    if name not in DTYPES:
        raise Mismatch
    return name


_SCALARS: dict[str, tuple[Check, ...]] = {
    "int": (_int,),
    "float": (_float,),
    "bool": (_bool,),
    "str": (_str,),
    "dtype": (_dtype,),
    "number": (_int, _float),
}


@lru_cache(maxsize=512)
def parse_type(source: str) -> ParamType:
    """Parse a param type. Raises ExpressionError with the offset of the offending part."""
    try:
        tree = ast.parse(source, mode="eval").body
    except SyntaxError as error:
        raise ExpressionError(f"type `{source}`: {error.msg}", max((error.offset or 1) - 1, 0)) from None
    checks = _alternatives(tree)
    # `int | float` keeps an int an int, whatever the order they are written in.
    return ParamType(source, tuple(sorted(checks, key=lambda check: check is _float)))


def _alternatives(node: ast.expr) -> tuple[Check, ...]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _alternatives(node.left) + _alternatives(node.right)
    if isinstance(node, ast.Constant) and node.value is None:
        return (_none,)
    if isinstance(node, ast.Name) and node.id in _SCALARS:
        return _SCALARS[node.id]
    if (
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("list", "tuple")
    ):
        return (_sequence(node),)
    name = ast.unparse(node)
    raise ExpressionError(
        f"unknown type {name!r}{suggest(name, (*_SCALARS, 'list', 'tuple'))}", node.col_offset
    )


def _sequence(node: ast.Subscript) -> Check:
    elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    is_list = node.value.id == "list"  # type: ignore[attr-defined]
    open_ended = is_list or (len(elements) == 2 and _is_ellipsis(elements[1]))
    if is_list and len(elements) != 1:
        raise ExpressionError("list takes one element type", node.col_offset)
    types = [ParamType("", _alternatives(element)) for element in elements if not _is_ellipsis(element)]
    if open_ended and len(types) != 1:
        raise ExpressionError("an open tuple is written tuple[int, ...]", node.col_offset)

    def check(value: Any) -> tuple[Any, ...]:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise Mismatch
        if open_ended:
            return tuple(types[0].canonical(item) for item in value)
        if len(value) != len(types):
            raise Mismatch
        return tuple(kind.canonical(item) for kind, item in zip(types, value, strict=True))

    return check


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
