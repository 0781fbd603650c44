"""Docstrings of ops, derived from their entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tileops_manifest import Entry

__all__ = ["docstring_of"]


def docstring_of(entry: Entry, *, function: bool) -> str:
    """Return the docstring of an op's functional (or class) form."""
    return "\n".join(_lines(entry, function=function))


def _lines(entry: Entry, *, function: bool) -> Iterator[str]:
    yield entry.summary
    yield ""
    mirrored = f"Mirrors `{entry.ref_api}`. " if entry.ref_api != "none" else ""
    other = entry.name if function else entry.function_name
    yield f"{mirrored}The {'class' if function else 'functional'} form is `{other}`."
    if entry.source:
        yield f"Source: {entry.source}."
    yield ""
    yield "Args:" if function else "Call with:"
    for spec in entry.inputs.values():
        notes = ", optional" * spec.optional + ", written in place" * spec.mutated
        yield f"    {spec.name} ({spec.dtype} {spec.shape}{notes}){_tail(spec.doc)}"
    if entry.params and not function:
        yield ""
        yield "Args:"
    for param in entry.params.values():
        default = "required" if param.required else f"default {param.default!r}"
        yield f"    {param.name} ({param.type}, {default}){_tail(param.doc)}"
    yield ""
    yield "Returns:"
    for spec in entry.outputs.values():
        yield f"    {spec.name} ({spec.dtype} {spec.shape}){_tail(spec.doc)}"
    yield ""
    yield "Raises:"
    yield "    SpecError: the call does not fit the entry: ShapeError, DtypeError, ParamError, RuleError ..."
    yield "    OpError: the call fits and cannot run: DeviceError, LayoutError, ValueDomainError ..."
    for rule in entry.rules:
        yield f"    RuleError: {rule.message}."
    yield ""
    accumulate = entry.numerics.accumulate
    precision = "the precision of the output" if accumulate == "output" else accumulate
    yield (
        f"Numerics: accumulates in {precision}; NaN: {entry.numerics.nan}; "
        f"determinism: {entry.numerics.determinism}."
    )


def _tail(doc: str) -> str:
    return f": {doc}" if doc else ""
