"""Entries for readers: plain records for programs, signatures and tables for people."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from tileops_manifest.entry import Entry
from tileops_manifest.functions import FUNCTIONS
from tileops_manifest.tensors import ParamSpec, TensorSpec, Values

TARGETS = ("cpu", "cuda")


def brief(entry: Entry) -> dict[str, Any]:
    """The record of ``list --json``."""
    return {
        "name": entry.name,
        "family": entry.family,
        "function": entry.function_name,
        "summary": entry.summary,
        "status": entry.status.model_dump(),
        "rows": len(entry.workloads),
        "digest": entry.digest,
    }


def full(entry: Entry) -> dict[str, Any]:
    """The record of ``show --json``: everything declared, and what follows from it."""
    cases = [
        {"id": case.id, "flops": binding.flops, "bytes": binding.bytes}
        for case in entry.cases()
        for binding in [case.bind()]
    ]
    declared = entry.model.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return {**brief(entry), "signature": signature(entry), "entry": declared, "cases": cases}


def signature(entry: Entry) -> str:
    """The functional form, as a Python signature.

    >>> from tileops_manifest import load_manifest
    >>> signature(load_manifest()["SumFwdOp"])
    'sum(x, dim=None, keepdim=False) -> output'
    """
    required = any(spec.required and not spec.kw_only for spec in entry.params.values())
    positional = [
        name + ("=None" if spec.optional and not required else "") for name, spec in entry.inputs.items()
    ]
    positional += [_param(spec) for spec in entry.params.values() if not spec.kw_only]
    keyword = [_param(spec) for spec in entry.params.values() if spec.kw_only]
    arguments = [*positional, *(["*"] if keyword else []), *keyword]
    return f"{entry.function_name}({', '.join(arguments)}) -> {', '.join(entry.outputs)}"


def _param(spec: ParamSpec) -> str:
    return spec.name if spec.required else f"{spec.name}={spec.default!r}"


def tensor_line(spec: TensorSpec) -> tuple[str, str, str, str]:
    """Name, dtype, shape and remarks of an input or output."""
    notes = [spec.doc] if spec.doc else []
    if spec.optional:
        notes.append("optional")
    if spec.mutated:
        notes.append(f"written when {spec.mutated_when}" if spec.mutated_when else "written")
    if spec.alias:
        notes.append(f"is {spec.alias} when that is written")
    if spec.values is not None and spec.values.kind != "any":
        values = spec.values
        notes.append(_legal_values(values))
    return spec.name, spec.dtype, str(spec.shape), "; ".join(notes)


def _legal_values(values: Values) -> str:
    if values.of is not None:
        return f"{values.kind} of {values.of}"
    text = values.kind + (f" [{values.low}, {values.high})" if values.high else f" 0 .. {values.total}")
    text += f", never below {values.above}" if values.above else ""
    text += ", no page twice" if values.disjoint else ""
    text += f", rising by at most {values.longest}" if values.longest else ""
    return text + (f", or {values.filler}" if values.filler is not None else "")


def param_line(spec: ParamSpec) -> tuple[str, str, str, str]:
    """Name, type, default and remarks of a param."""
    notes = [spec.doc] if spec.doc else []
    if spec.choices is not None:
        notes.append("one of " + ", ".join(repr(choice) for choice in spec.choices))
    if spec.binds:
        notes.append(f"equals {spec.binds}")
    if spec.kw_only:
        notes.append("keyword-only")
    if spec.deviation:
        notes.append(f"deviation: {spec.deviation}")
    return spec.name, str(spec.type), "required" if spec.required else repr(spec.default), "; ".join(notes)


def support_matrix(entries: Iterable[Entry]) -> str:
    """Markdown: one line per op with its function, dtypes, status per target and number of rows."""
    lines = ["# Support matrix", ""]
    families: dict[str, list[Entry]] = {}
    for entry in entries:
        families.setdefault(entry.family, []).append(entry)
    for family, members in families.items():
        lines += [
            f"## {family}",
            "",
            "| op | function | dtypes | cpu | cuda | rows |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_matrix_line(entry) for entry in members]
        lines.append("")
    return "\n".join(lines)


def _matrix_line(entry: Entry) -> str:
    dtypes = "; ".join(f"{name}: {', '.join(values)}" for name, values in entry.dtypes.items())
    status = " | ".join(getattr(entry.status, target) for target in TARGETS)
    return f"| {entry.name} | `{entry.function_name}` | {dtypes} | {status} | {len(entry.workloads)} |"


def _argument(parameter: inspect.Parameter) -> str:
    return str(parameter.replace(annotation=inspect.Parameter.empty))


def function_table() -> str:
    """Markdown: the functions of the expression language."""
    lines = ["| function | value |", "|---|---|"]
    for name, function in FUNCTIONS.items():
        arguments = (
            "x"
            if function.tensors
            else ", ".join(map(_argument, inspect.signature(function.call).parameters.values()))
        )
        lines.append(f"| `{name}({arguments})` | {function.doc} |")
    return "\n".join(lines)
