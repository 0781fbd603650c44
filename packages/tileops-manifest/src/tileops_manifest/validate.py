"""Validation on workload rows: every rule, shape and roofline is evaluated on every row and dtype."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tileops_manifest.binding import Binding
from tileops_manifest.build import Report
from tileops_manifest.entry import Case, Entry
from tileops_manifest.errors import ExpressionError, SpecError
from tileops_manifest.functions import prod


@dataclass
class RowStats:
    """Counts that a validation reports; ``evaluated`` is the number of rule evaluations."""

    entries: int = 0
    rows: int = 0
    rules: int = 0
    evaluated: int = 0


def check_rows(entry: Entry, report: Report, stats: RowStats) -> bool:
    """Bind every case of the entry. Problems go to ``report``; True when there was none."""
    sound = True
    stats.rows += len(entry.workloads)
    stats.rules += len(entry.rules)
    for index, row in enumerate(entry.workloads):
        path = ("workloads", index)
        for position, item in enumerate(row.dtypes):
            try:
                case = Case(entry, row, entry.resolve_dtypes(item), item)
            except SpecError as error:
                report((*path, "dtypes", position), None, _without_op(error))
                sound = False
                continue
            message = _check_case(case)
            stats.evaluated += len(entry.rules)
            if message is not None:
                report((*path, "label"), None, f"row {row.label!r} ({case.id}): {message}")
                sound = False
                break
    return sound


def _without_op(error: SpecError) -> str:
    return str(error).removeprefix(f"{error.op}: ")


def _check_case(case: Case) -> str | None:
    try:
        binding = case.bind()
        for rule in case.entry.rules:
            if type(rule.expr.evaluate(binding.env)) is not bool:
                return f"rule `{rule.expr}` is not a condition: it gives {rule.expr.evaluate(binding.env)!r}"
        unused = sorted(set(case.row.dims) - set(binding.dims) - set(binding.packs))
        if unused:
            return f"dims.{unused[0]} is in the shape of no input that this row gives"
        for what, amount in (("flops", binding.flops), ("bytes", binding.bytes)):
            if type(amount) is not int or amount <= 0:
                return f"roofline.{what} is {amount!r}, expected a positive integer"
        return _check_values(binding)
    except SpecError as error:
        return _without_op(error)
    except ExpressionError as error:
        return str(error)


def _check_values(binding: Binding) -> str | None:
    """Domains evaluate; fixed values of a row fit them."""
    for name, spec in binding.entry.inputs.items():
        meta = binding.inputs[name]
        if meta is None or spec.values is None:
            continue
        domain = binding.domain(name)
        assert domain is not None
        if (
            domain.low is not None
            and domain.high is not None
            and domain.low >= domain.high
            and prod(meta.shape)
        ):
            return f"{name} has no legal value: low {domain.low}, high {domain.high}"
        if name in binding.values:
            message = check_values(domain, binding.values[name], prod(meta.shape))
            if message is not None:
                return f"values.{name}: {message}"
    for name in binding.values:
        if binding.inputs.get(name) is None:
            return f"values.{name}: not an input that this row gives"
    return None


def check_values(domain: Any, values: int | tuple[int, ...], count: int) -> str | None:
    """Why fixed values of an integer input are not legal, or None."""
    flat = (values,) if isinstance(values, int) else values
    if domain.kind == "starts":
        return f"starts follow from {domain.of}: fix that"
    if not isinstance(values, int) and len(flat) != count:
        return f"{len(flat)} values for {count} elements"
    if domain.kind == "offsets":
        if flat[0] != 0 or flat[-1] != domain.total or any(a > b for a, b in pairwise(flat)):
            return f"offsets must rise from 0 to {domain.total}, got {list(flat)}"
        if domain.longest is not None and max(b - a for a, b in pairwise(flat)) > domain.longest:
            return f"offsets must rise by at most {domain.longest}, got {list(flat)}"
        return None
    if domain.kind == "parts":
        whole = sum(flat) if len(flat) > 1 else flat[0] * count
        if min(flat) < 0 or whole > domain.total:
            return f"parts must add up to at most {domain.total}, got {whole}"
        return None
    for value in flat:
        if (domain.low is not None and value < domain.low) or (
            domain.high is not None and value >= domain.high
        ):
            return f"{value} is outside [{domain.low}, {domain.high})"
    if domain.kind == "sorted" and list(flat) != sorted(flat):
        return f"values must not fall, got {list(flat)}"
    if domain.kind == "permutation" and sorted(flat) != list(range(domain.high)):
        return f"not a permutation of 0 .. {domain.high - 1}"
    return None
