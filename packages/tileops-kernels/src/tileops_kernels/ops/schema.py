"""From an entry to a `torch.library` schema string."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

from tileops_kernels.errors import ConfigError

if TYPE_CHECKING:
    from tileops_kernels.ops.signature import CallSignature
    from tileops_manifest import Entry

__all__ = ["NAMESPACE", "from_text", "is_text", "param_schema_type", "schema_of", "to_text"]

NAMESPACE = "tileops"

# A param whose alternatives no schema type covers travels as the text of its value, if that can be read back.
_WRITABLE = frozenset({"bool", "int", "float", "str"})

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
        return {f"list[{' | '.join(sorted(_element_kinds(node)))}]"}
    return {ast.unparse(node)}


def _elements(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _element_kinds(node: ast.Subscript) -> set[str]:
    return set().union(*map(_alternatives, _elements(node))) - {"..."}


def _fixed_length(tree: ast.expr) -> int | None:
    """Return the length of the one tuple type of fixed length among the alternatives, or None."""
    tuples = [node for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    if len(tuples) != 1 or ast.unparse(tuples[0].value) != "tuple":
        return None
    elements = _elements(tuples[0])
    return None if any(ast.unparse(element) == "..." for element in elements) else len(elements)


def _is_writable(tree: ast.expr) -> bool:
    """True if every value of the type has a literal that Python reads back."""
    kinds = {
        kind
        for node in ast.walk(tree)
        for kind in (_element_kinds(node) if isinstance(node, ast.Subscript) else ())
    }
    plain = {kind for kind in _alternatives(tree) if not kind.startswith("list[")}
    return (kinds | plain) - {"None"} <= _WRITABLE


def is_text(declared: object) -> bool:
    """True if a param of this type travels as the text of its value."""
    tree = ast.parse(str(declared), mode="eval").body
    return frozenset(_alternatives(tree) - {"None"}) not in _SCHEMA_TYPES and _is_writable(tree)


def to_text(value: Any) -> str:
    """Return a param as text; a symbolic size becomes a constant.

    >>> to_text((1, None)), to_text("same")
    ('(1, None)', "'same'")
    """
    if isinstance(value, list | tuple):
        return repr(tuple(item if item is None else int(item) for item in value))
    return repr(value) if value is None or isinstance(value, str | bool | float) else repr(int(value))


def from_text(text: str) -> Any:
    """Return the param that `to_text` wrote."""
    return ast.literal_eval(text)


def param_schema_type(op: str, name: str, declared: str, *, symbolic: bool = False) -> str:
    """Return the schema type of a param declared as `declared`.

    A `symbolic` param may be a size that `torch.compile` does not know; any other is a constant to it. One
    int stands for all elements of a tuple of ints whose length is fixed, as torch schemas have it.

    Raises:
        ConfigError: torch schemas cannot say this type.

    >>> param_schema_type("SumFwdOp", "dim", "int | list[int] | tuple[int, ...] | None")
    'int[1]?'
    >>> param_schema_type("RMSNormFwdOp", "normalized_shape", "list[int]", symbolic=True)
    'SymInt[]'
    >>> param_schema_type("MaxPool2dFwdOp", "stride", "int | tuple[int, int] | None")
    'int[2]?'
    >>> param_schema_type("Conv2dFwdOp", "padding", "int | tuple[int, int] | str")
    'str'
    """
    tree = ast.parse(declared, mode="eval").body
    alternatives = _alternatives(tree)
    schema_type = _SCHEMA_TYPES.get(frozenset(alternatives - {"None"}))
    length = _fixed_length(tree)
    if schema_type == "int[1]" and length is not None:
        schema_type = f"int[{length}]"
    if is_text(declared):
        return "str"
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
    form carries every default in any case. An op without inputs is told its device, as torch's own makers of
    tensors are. With `in_place`, the inputs that the entry declares mutated are written, so functionalisation
    sees it, and the outputs that are those inputs are not returned: a torch operator may not return its own
    argument.

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
        literal = None if param.required or is_text(param.type) else _literal(param.default)
        arguments.append((f"{schema_type} {name}", literal))
    last_without = max((i for i, (_, default) in enumerate(arguments) if default is None), default=-1)
    written = [
        f"{text}={default}" if default is not None and i > last_without else text
        for i, (text, default) in enumerate(arguments)
    ]
    if not signature.inputs:
        written += ["*", "Device? device=None"]
    count = sum(1 for spec in entry.outputs.values() if not (in_place and spec.alias))
    returns = "Tensor" if count == 1 else "(" + ", ".join(["Tensor"] * count) + ")"
    return f"{entry.function_name}{'_' if in_place else ''}({', '.join(written)}) -> {returns}"
