"""From an entry to a `torch.library` schema string."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

from tileops_kernels.errors import ConfigError

if TYPE_CHECKING:
    from tileops_kernels.ops.signature import CallSignature
    from tileops_manifest import Entry

__all__ = ["NAMESPACE", "param_schema_type", "schema_of"]

NAMESPACE = "tileops"

# Alternatives of a param type (without None, tuples read as lists) -> how a torch schema says it.
_SCHEMA_TYPES: dict[frozenset[str], str] = {
    frozenset({"bool"}): "bool",
    frozenset({"int"}): "int",
    frozenset({"float"}): "float",
    frozenset({"str"}): "str",
    frozenset({"dtype"}): "ScalarType",
    frozenset({"number"}): "Scalar",
    frozenset({"int", "float"}): "Scalar",
    frozenset({"bool", "number"}): "Scalar",
    frozenset({"bool", "int", "float"}): "Scalar",
    frozenset({"list[int]"}): "int[]",
    frozenset({"list[float]"}): "float[]",
    frozenset({"int", "list[int]"}): "int[1]",
}


def _alternatives(node: ast.expr) -> set[str]:
    if isinstance(node, ast.BinOp):
        return _alternatives(node.left) | _alternatives(node.right)
    if isinstance(node, ast.Subscript):
        elements = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        kinds = {ast.unparse(element) for element in elements} - {"..."}
        return {f"list[{' | '.join(sorted(kinds))}]"}
    return {ast.unparse(node)}


def param_schema_type(op: str, name: str, declared: str, *, symbolic: bool = False) -> str:
    """Return the schema type of a param declared as `declared`.

    A `symbolic` param may be a size that `torch.compile` does not know; any other is a constant to it.

    Raises:
        ConfigError: torch schemas cannot say this type.

    >>> param_schema_type("SumFwdOp", "dim", "int | list[int] | tuple[int, ...] | None")
    'int[1]?'
    >>> param_schema_type("RMSNormFwdOp", "normalized_shape", "list[int]", symbolic=True)
    'SymInt[]'
    """
    alternatives = _alternatives(ast.parse(declared, mode="eval").body)
    schema_type = _SCHEMA_TYPES.get(frozenset(alternatives - {"None"}))
    if schema_type is None:
        raise ConfigError(f"{op}: a torch operator cannot take param {name!r} of type {declared}")
    if symbolic:
        schema_type = schema_type.replace("int", "SymInt")
    return schema_type + ("?" if "None" in alternatives else "")


def _literal(value: Any) -> str | None:
    """Return a default as schema text, or None where the schema language has no literal for it."""
    if value is None or isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str) and value.isidentifier():
        return f'"{value}"'
    if isinstance(value, list | tuple) and all(isinstance(item, int) for item in value):
        return "[" + ", ".join(map(str, value)) + "]"
    return None


def schema_of(entry: Entry, signature: CallSignature, *, in_place: bool = False) -> str:
    """Return the `torch.library` schema of an entry: inputs, then params, all of them positional.

    A default is written where the schema language has a literal for it and for all that follow; the Python
    form carries every default in any case. With `in_place`, the inputs that the entry declares mutated are
    written, so functionalisation sees it, and the outputs that are those inputs are not returned: a torch
    operator may not return its own argument.

    Raises:
        ConfigError: a param has a type that torch schemas cannot say.
    """
    arguments: list[tuple[str, str | None]] = []
    for index, name in enumerate(signature.inputs):
        spec = entry.inputs[name]
        alias = f"({chr(ord('a') + index)}!)" if in_place and spec.mutated else ""
        optional = "?" if spec.optional else ""
        arguments.append((f"Tensor{alias}{optional} {name}", "None" if spec.optional else None))
    for name in signature.params:
        param = entry.params[name]
        # A param that equals dims of an input is as dynamic as they are.
        schema_type = param_schema_type(entry.name, name, str(param.type), symbolic=param.binds is not None)
        arguments.append((f"{schema_type} {name}", None if param.required else _literal(param.default)))
    last_without = max((i for i, (_, default) in enumerate(arguments) if default is None), default=-1)
    written = [
        f"{text}={default}" if default is not None and i > last_without else text
        for i, (text, default) in enumerate(arguments)
    ]
    count = sum(1 for spec in entry.outputs.values() if not (in_place and spec.alias))
    returns = "Tensor" if count == 1 else "(" + ", ".join(["Tensor"] * count) + ")"
    return f"{entry.function_name}{'_' if in_place else ''}({', '.join(written)}) -> {returns}"
