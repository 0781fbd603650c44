"""Calls that an entry forbids, derived from it: one for each way of being illegal, and one for each rule.

A call that breaks a rule is found by asking the entry: small legal shapes are changed in one place, and where
that breaks too little or too much in two, until the entry's answer names the rule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tileops_manifest import DTYPES, Entry, ParamSpec, RuleError, SpecError, TensorMeta
from tileops_manifest.realise import realise
from tileops_workloads.boundary import smallest
from tileops_workloads.scale import scale_shape
from tileops_workloads.shapes import Shape, freeze_dims

NO_VALUE = "not-a-value"

# Changes of two places are tried on one base up to this number.
_PAIRS = 20000

_SIZES = (0, 1, 2, 3)
_PACKS = ((), (3,), (2, 3), (5, 2, 3), (2, 1, 2, 1))
_INTS = (0, 1, -1, 2, 3, -2, 7, 4096)
_FLOATS = (0.0, -1.0, 0.5, 2.0, -0.5, 1e300, math.inf, math.nan)
_ITEMS = (0, 1, -1, 2, 9, -9)

Illegal = Iterator[tuple[str, Mapping[str, TensorMeta | None], Mapping[str, Any]]]


@dataclass(frozen=True)
class ForbiddenCall:
    """A call that the entry refuses; `error` names the class of the error that it declares."""

    id: str
    inputs: tuple[TensorMeta | None, ...]
    params: Mapping[str, Any]
    error: str
    message: str = field(compare=False)


def forbidden_calls(entry: Entry, *, per_kind: int | None = 1) -> list[ForbiddenCall]:
    """Calls made illegal: by one change of a legal one (dtype, shape, missing input, param), and by rule.

    `per_kind` bounds how many of each kind are taken; None takes all.
    """
    calls: list[ForbiddenCall] = []
    for kind, candidates in _kinds(entry).items():
        found = (_forbidden(entry, kind, *candidate) for candidate in candidates)
        calls += itertools.islice((call for call in found if call is not None), per_kind)
    return calls


def _forbidden(
    entry: Entry, kind: str, label: str, inputs: Mapping[str, TensorMeta | None], params: Mapping[str, Any]
) -> ForbiddenCall | None:
    try:
        entry.bind(inputs, params)
    except SpecError as error:
        name = f"forbidden-{kind}-{label}"
        return ForbiddenCall(name, tuple(inputs.values()), params, type(error).__name__, str(error))
    return None


def _kinds(entry: Entry) -> dict[str, Illegal]:
    """Candidates by kind, the most telling first; what the entry allows is filtered by asking it."""
    binding = next(small_shapes(entry)).bind(entry)
    metas, params = binding.inputs, dict(binding.params)
    given = {name: meta for name, meta in metas.items() if meta is not None}

    def changed(make: Callable[[TensorMeta], TensorMeta | None], how: str = "") -> Illegal:
        return ((name + how, {**metas, name: make(meta)}, params) for name, meta in given.items())

    dtypes = sorted(DTYPES, key=lambda dtype: (dtype != "float64", dtype != "complex64"))
    return {
        "dtype": itertools.chain.from_iterable(
            changed(lambda meta, dtype=dtype: TensorMeta(meta.shape, dtype), f"-{dtype}") for dtype in dtypes
        ),
        "shape": itertools.chain(
            changed(_longer, "-longer"),
            changed(lambda meta: TensorMeta((*meta.shape, 2), meta.dtype), "-rank"),
        ),
        "size": _undersized(entry),
        "missing": changed(lambda meta: None),
        "param": ((name, metas, {**params, name: NO_VALUE}) for name in params),
        "rule": _rule_breakers(entry),
    }


def _undersized(entry: Entry) -> Illegal:
    """Dims below their least size, packs below their least rank."""
    base = next(small_shapes(entry))
    for name, spec in entry.dims.items():
        size = base.dims.get(name)
        rank = spec.min_rank if spec.rank is None else spec.rank
        if isinstance(size, tuple) and rank:
            yield from _realised(entry, f"{name}-rank", base.with_dim(name, size[: rank - 1]))
        if size and spec.min:
            smaller = (spec.min - 1, *size[1:]) if isinstance(size, tuple) else spec.min - 1
            yield from _realised(entry, name, base.with_dim(name, smaller))


def _realised(entry: Entry, label: str, shape: Shape) -> Illegal:
    metas, params = realise(entry, shape.dims, shape.params, shape.dtypes, shape.with_)
    yield label, metas, params


def _longer(meta: TensorMeta) -> TensorMeta:
    return TensorMeta((*meta.shape[:-1], meta.shape[-1] + 1), meta.dtype) if meta.shape else meta


def _rule_breakers(entry: Entry) -> Illegal:
    for number, shape in enumerate(broken_rules(entry).values()):
        yield from _realised(entry, str(number), shape)


def broken_rules(entry: Entry) -> dict[str, Shape]:
    """For each rule of the entry, as it is written there, a call that the entry refuses for that rule.

    A rule is missing where the search found none: either the entry says the same in another place, or the
    candidates here know too little of its params.
    """
    found: dict[str, Shape] = {}
    wanted = len({rule.expr.source for rule in entry.rules})
    for shape in _candidates(entry) if wanted else ():
        try:
            shape.bind(entry)
        except RuleError as error:
            if str(error.rule) in found or not _has_tensors(entry, shape):
                continue
            found[str(error.rule)] = shape
            if len(found) == wanted:
                break
        except SpecError:
            continue
    order = (rule.expr.source for rule in entry.rules)
    return {source: found[source] for source in order if source in found}


def _has_tensors(entry: Entry, shape: Shape) -> bool:
    """Whether tensors of these sizes exist: a negative param may make a size of an input negative."""
    metas, _ = realise(entry, shape.dims, shape.params, shape.dtypes, shape.with_)
    return all(size >= 0 for meta in metas.values() if meta is not None for size in meta.shape)


def _candidates(entry: Entry) -> Iterator[Shape]:
    bases = list(small_shapes(entry))
    for base in bases:
        yield from _changed(entry, base)
    for base in bases:
        pairs = (second for first in _changed(entry, base) for second in _changed(entry, first))
        yield from itertools.islice(pairs, _PAIRS)


def small_shapes(entry: Entry) -> Iterator[Shape]:
    """The rows made small: one per set of params and optional inputs."""
    seen = set()
    for row in entry.workloads:
        key = repr((sorted(row.params.items()), row.with_))
        if key not in seen:
            seen.add(key)
            shape = Shape(freeze_dims(row.dims), dict(row.params), row.dtypes[0], tuple(row.with_))
            yield smallest(entry, scale_shape(entry, shape))


def _changed(entry: Entry, base: Shape) -> Iterator[Shape]:
    """`base` with one thing changed, legal or not."""
    yield from _changed_sizes(base)
    for name, spec in entry.params.items():
        if spec.binds is None:
            current = base.params.get(name, spec.default)
            yield from (base.with_param(name, value) for value in _param_values(spec, current))
    optional = [name for name, spec in entry.inputs.items() if spec.optional]
    for name in optional:
        others = tuple(other for other in base.with_ if other != name)
        yield replace(base, with_=others if name in base.with_ else (*base.with_, name))
    yield from (replace(base, with_=given) for given in ((), tuple(optional)) if given != base.with_)
    assigned = entry.resolve_dtypes(base.dtypes)
    for name, dtypes in entry.dtypes.items():
        yield from (replace(base, dtypes={**assigned, name: d}) for d in dtypes if d != assigned[name])


def _changed_sizes(base: Shape) -> Iterator[Shape]:
    positions = list(base.positions())
    everywhere = sorted({size for _, size in positions})
    for position, size in positions:
        others = dict.fromkeys((size + 1, size - 1, 2 * size, *_SIZES, *everywhere))
        yield from (base.put(position, other) for other in others if other >= 0 and other != size)
    for name, pack in base.dims.items():
        if isinstance(pack, tuple):
            around = ((*pack, 2), (2, *pack), pack[:-1], pack[1:], *_PACKS)
            yield from (base.with_dim(name, other) for other in dict.fromkeys(around) if other != pack)


def _param_values(spec: ParamSpec, current: Any) -> Iterator[Any]:
    if spec.choices is not None:
        yield from spec.choices
        return
    kind = str(spec.type)
    if "bool" in kind:
        yield from (True, False)
    if "str" in kind:
        yield NO_VALUE
    if "None" in kind:
        yield None
    if "int" in kind or "number" in kind:
        yield from _INTS
        if isinstance(current, int) and not isinstance(current, bool):
            yield from (current + 1, current - 1, 2 * current, current // 2)
    if "float" in kind or "number" in kind:
        yield from _FLOATS
    if "list" in kind or "tuple" in kind:
        yield from _sequences(tuple(current) if isinstance(current, list | tuple) else ())


def _sequences(current: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield from ((*current, 1), current[:-1])
    for length in dict.fromkeys((len(current), 1, 2, 3, 0)):
        yield from ((item,) * length for item in _ITEMS)
    for place, item in enumerate(current):
        others = (0, -1, 64, *((item + 1, item - 1) if isinstance(item, int) else ()))
        yield from ((*current[:place], other, *current[place + 1 :]) for other in others)
