"""What changed between two manifests, what each change means to users, and the version bump it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tileops_manifest.entry import Entry
from tileops_manifest.tensors import ParamSpec, Row, TensorSpec

BREAKING = "breaking"
ADDITIVE = "additive"
NEUTRAL = "neutral"
_ORDER = (NEUTRAL, ADDITIVE, BREAKING)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. ``kind``: breaking (some call, result or record is lost), additive or neutral."""

    op: str
    kind: str
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.op}: {self.where}: {self.message}"


def diff_manifests(old: Mapping[str, Entry], new: Mapping[str, Entry]) -> tuple[Change, ...]:
    """Every change from ``old`` to ``new``, ops in name order."""
    changes: list[Change] = []
    for name in sorted({*old, *new}):
        if name not in new:
            changes.append(Change(name, BREAKING, "op", "removed"))
        elif name not in old:
            changes.append(Change(name, ADDITIVE, "op", "added"))
        else:
            changes.extend(diff_entries(old[name], new[name]))
    return tuple(changes)


def worst(changes: tuple[Change, ...]) -> str | None:
    """The most severe kind among the changes; None when there is none."""
    return max((change.kind for change in changes), key=_ORDER.index, default=None)


def next_version(version: str, kind: str | None) -> str:
    """The version after a change of this kind. Below 1.0 a breaking change bumps the minor number.

    >>> [next_version(version, kind) for version, kind in [("0.1.3", "breaking"), ("1.2.3", "additive")]]
    ['0.2.0', '1.3.0']
    """
    major, minor, patch = (int(part) for part in version.split("."))
    if kind is None:
        return version
    if kind == BREAKING:
        return f"{major + 1}.0.0" if major else f"0.{minor + 1}.0"
    return f"{major}.{minor + 1}.0" if kind == ADDITIVE and major else f"{major}.{minor}.{patch + 1}"


def diff_entries(old: Entry, new: Entry) -> Iterator[Change]:
    """Every change between two versions of one entry."""

    def change(kind: str, where: str, message: str) -> Change:
        return Change(old.name, kind, where, message)

    yield from _tensors(old, new, change)
    yield from _params(old, new, change)
    yield from _rules(old, new, change)
    yield from _rows(old, new, change)
    for field, kind in _FIELDS.items():
        before, after = getattr(old.model, field), getattr(new.model, field)
        if before != after:
            yield change(kind, field, f"{_show(before)} became {_show(after)}")
    if old.family != new.family:
        yield change(NEUTRAL, "family", f"{old.family} became {new.family}")


# Fields compared as a whole. Verdicts stand on the numerics; rooflines feed no call and no result.
_FIELDS = {
    "numerics": BREAKING,
    "roofline": NEUTRAL,
    "kernel_map": NEUTRAL,
    "status": NEUTRAL,
    "summary": NEUTRAL,
    "source": NEUTRAL,
    "ref_api": NEUTRAL,
    "deviations": NEUTRAL,
    "let": NEUTRAL,
}

Make = Callable[[str, str, str], Change]


def _show(value: Any) -> str:
    if hasattr(value, "model_dump"):
        value = value.model_dump(exclude_none=True)
    return str(dict(value)) if isinstance(value, Mapping) else str(value)


def _tensors(old: Entry, new: Entry, change: Make) -> Iterator[Change]:
    for group in ("inputs", "outputs"):
        before, after = getattr(old, group), getattr(new, group)
        for name in before:
            if name not in after:
                yield change(BREAKING, f"{group}.{name}", "removed")
            else:
                yield from _tensor(
                    f"{group}.{name}", before[name], after[name], change, accepts=group == "inputs"
                )
        added = [name for name in after if name not in before]
        for name in added:
            optional_at_end = group == "inputs" and after[name].optional and _at_end(name, before, after)
            yield change(ADDITIVE if optional_at_end else BREAKING, f"{group}.{name}", "added")
        if [name for name in before if name in after] != [name for name in after if name in before]:
            yield change(BREAKING, group, f"order became {', '.join(after)}")


def _at_end(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    names = list(after)
    return not any(later in before for later in names[names.index(name) :])


def _tensor(where: str, old: TensorSpec, new: TensorSpec, change: Make, accepts: bool) -> Iterator[Change]:
    if old.dtypes != new.dtypes:
        lost = [dtype for dtype in old.dtypes if dtype not in new.dtypes]
        gained = [dtype for dtype in new.dtypes if dtype not in old.dtypes]
        kind = BREAKING if lost else ADDITIVE
        parts = [f"no longer {', '.join(lost)}"] * bool(lost) + [f"now also {', '.join(gained)}"] * bool(
            gained
        )
        yield change(
            kind if lost or gained else NEUTRAL, f"{where}.dtype", "; ".join(parts) or "order changed"
        )
    elif old.dtype != new.dtype:
        yield change(BREAKING, f"{where}.dtype", f"{old.dtype} became {new.dtype}")
    if str(old.shape) != str(new.shape):
        yield change(BREAKING, f"{where}.shape", f"{old.shape} became {new.shape}")
    if accepts and old.optional != new.optional:
        kind = ADDITIVE if new.optional else BREAKING
        yield change(kind, f"{where}.optional", "became optional" if new.optional else "became required")
    for field in ("mutated", "mutated_when", "alias", "values"):
        if getattr(old, field) != getattr(new, field):
            yield change(BREAKING, f"{where}.{field}", f"{_plain(old, field)} became {_plain(new, field)}")
    if old.doc != new.doc:
        yield change(NEUTRAL, f"{where}.doc", "reworded")


_BOUNDS = ("low", "high", "above", "total", "longest", "of", "filler", "disjoint")


def _plain(spec: TensorSpec, field: str) -> str:
    value = getattr(spec, field)
    if field != "values" or value is None:
        return str(value)
    bounds = {name: getattr(value, name) for name in _BOUNDS}
    return " ".join(
        [value.kind, *(f"{name}={bound}" for name, bound in bounds.items() if bound not in (None, False))]
    )


def _params(old: Entry, new: Entry, change: Make) -> Iterator[Change]:
    for name, spec in old.params.items():
        if name not in new.params:
            yield change(BREAKING, f"params.{name}", "removed")
        else:
            yield from _param(f"params.{name}", spec, new.params[name], change)
    for name, spec in new.params.items():
        if name not in old.params:
            callable_as_before = not spec.required and (spec.kw_only or _at_end(name, old.params, new.params))
            yield change(ADDITIVE if callable_as_before else BREAKING, f"params.{name}", "added")
    before = [name for name, spec in old.params.items() if not spec.kw_only and name in new.params]
    after = [name for name, spec in new.params.items() if not spec.kw_only and name in before]
    if [name for name in before if name in after] != after:
        yield change(BREAKING, "params", f"order became {', '.join(new.params)}")


def _param(where: str, old: ParamSpec, new: ParamSpec, change: Make) -> Iterator[Change]:
    if str(old.type) != str(new.type):
        wider = set(_split(str(old.type))) <= set(_split(str(new.type)))
        yield change(ADDITIVE if wider else BREAKING, f"{where}.type", f"{old.type} became {new.type}")
    if old.required != new.required:
        kind = BREAKING if new.required else ADDITIVE
        yield change(
            kind, f"{where}.default", "became required" if new.required else f"became {new.default!r}"
        )
    elif not old.required and (old.default != new.default or type(old.default) is not type(new.default)):
        yield change(BREAKING, f"{where}.default", f"{old.default!r} became {new.default!r}")
    if old.kw_only != new.kw_only:
        kind = BREAKING if new.kw_only else ADDITIVE
        yield change(kind, f"{where}.kw_only", f"became {'keyword-only' if new.kw_only else 'positional'}")
    if old.choices != new.choices:
        wider = new.choices is None or (old.choices is not None and set(old.choices) <= set(new.choices))
        yield change(
            ADDITIVE if wider else BREAKING, f"{where}.choices", f"{old.choices} became {new.choices}"
        )
    if old.binds != new.binds:
        yield change(BREAKING, f"{where}.binds", f"{old.binds} became {new.binds}")
    for field in ("doc", "deviation"):
        if getattr(old, field) != getattr(new, field):
            yield change(NEUTRAL, f"{where}.{field}", "reworded")


def _split(source: str) -> list[str]:
    return [part.strip() for part in source.split("|")]


def _rules(old: Entry, new: Entry, change: Make) -> Iterator[Change]:
    before = {rule.expr.source: rule.message for rule in old.rules}
    after = {rule.expr.source: rule.message for rule in new.rules}
    for expr, message in before.items():
        if expr not in after:
            yield change(ADDITIVE, "rules", f"removed `{expr}`")
        elif after[expr] != message:
            yield change(NEUTRAL, "rules", f"`{expr}` reworded")
    for expr in after:
        if expr not in before:
            yield change(BREAKING, "rules", f"added `{expr}`")
    for name, dim in new.dims.items():
        previous = old.dims.get(name)
        if previous is None or previous.pack != dim.pack:
            continue  # a dim that is new shows in the shape it stands in
        if (previous.min, previous.rank, previous.min_rank) != (dim.min, dim.rank, dim.min_rank):
            narrower = dim.min > previous.min or dim.min_rank > previous.min_rank or dim.rank is not None
            yield change(BREAKING if narrower else ADDITIVE, f"dims.{name}", "domain became " + _domain(dim))
        elif previous.doc != dim.doc:
            yield change(NEUTRAL, f"dims.{name}", "reworded")


def _domain(dim: Any) -> str:
    return f"min {dim.min}" + (
        f", rank {dim.rank}" if dim.rank is not None else f", min_rank {dim.min_rank}" * dim.pack
    )


def _rows(old: Entry, new: Entry, change: Make) -> Iterator[Change]:
    before = {row.label: row for row in old.workloads}
    after = {row.label: row for row in new.workloads}
    for label, row in before.items():
        where = f"workloads.{label}"
        if label not in after:
            yield change(BREAKING, where, "removed: records of this row lose their meaning")
        elif _content(row) != _content(after[label]):
            yield change(BREAKING, where, "changed: give a changed row a label of its own")
        elif row.dtypes != after[label].dtypes:
            lost = [item for item in row.dtypes if item not in after[label].dtypes]
            message = "dtypes became " + ", ".join(str(item) for item in after[label].dtypes)
            yield change(BREAKING if lost else ADDITIVE, where, message)
    for label in after:
        if label not in before:
            yield change(ADDITIVE, f"workloads.{label}", "added")


def _content(row: Row) -> tuple[Any, ...]:
    return dict(row.dims), dict(row.params), row.with_, dict(row.values)
