"""Boundary shapes, derived from an entry: 1, primes, powers of two ± 1, empty, 0-D, many dims; params one at
a time.

Each candidate changes one thing in a small legal shape. What the entry's rules forbid is filtered, and
counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tileops_manifest import Entry

from .scale import elements, scale_shape
from .shapes import Shape, freeze_dims

SIZES = (0, 1, 2, 3, 7, 15, 17, 31, 33, 63, 65, 127, 129, 257)
PACKS = ((), (1,), (0,), (129,), (3, 5), (0, 3), (3, 0), (2, 1, 3), (2, 3, 1, 2), (1,) * 9 + (2,))

# A boundary case is about its shape, not about its volume.
MAX_ELEMENTS = 1 << 17

_INTEGERS = (0, 1, 2, 3, -1, -2)
_SEQUENCES = ([0], [], [-1], [0, -1], [1, 0])
_PARAM_VALUES = (
    ("bool", (True, False)),
    ("list", _SEQUENCES),
    ("tuple", _SEQUENCES),
    ("int", _INTEGERS),
    ("None", (None,)),
)


@dataclass(frozen=True)
class BoundaryReport:
    """The legal candidates, and how many were tried and filtered out by the entry's rules or by volume."""

    cases: tuple[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]], ...]
    tried: int
    filtered: int


def boundary_dims(entry: Entry) -> Iterator[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]]:
    """Legal `(dims, params, with_)` at the boundaries of what an entry allows: arguments of
    `make_workload`.
    """
    yield from boundary_report(entry).cases


def boundary_report(entry: Entry) -> BoundaryReport:
    """`boundary_dims` with the count of candidates that were filtered."""
    trials = Trials(entry)
    for candidate in _candidates(entry, trials):
        trials.allows(candidate)
    kept = [shape for shape in trials.small.values() if shape is not None]
    cases = tuple((dict(s.dims), dict(s.params), s.with_) for s in kept)
    return BoundaryReport(cases, len(trials.small), len(trials.small) - len(cases))


class Trials:
    """Candidates, each tried once. `small` has those that are legal and of little volume, None for others."""

    def __init__(self, entry: Entry):
        self.entry = entry
        self.small: dict[str, Shape | None] = {}
        self._legal: dict[str, bool] = {}

    def allows_small(self, shape: Shape) -> bool:
        """Whether the entry's rules allow a shape, and it is of little volume."""
        return self.allows(shape) and self.small[self.key(shape)] is not None

    @staticmethod
    def key(shape: Shape) -> str:
        """What tells a shape from others."""
        return repr((sorted(shape.dims.items()), sorted(shape.params.items()), shape.with_))

    def allows(self, shape: Shape) -> bool:
        """Whether the entry's rules allow a shape."""
        key = self.key(shape)
        if key not in self._legal:
            binding = shape.legal(self.entry)
            self._legal[key] = binding is not None
            fits = binding is not None and elements(binding) <= MAX_ELEMENTS
            self.small[key] = shape if fits else None
        return self._legal[key]


def _candidates(entry: Entry, trials: Trials) -> Iterator[Shape]:
    for base in _bases(entry):
        yield base
        for name, value in base.dims.items():
            yield from _with_dim(base, name, SIZES if isinstance(value, int) else PACKS, trials)
        for name in entry.params:
            yield from (base.with_param(name, value) for value in param_values(entry, name))


def _bases(entry: Entry) -> Iterator[Shape]:
    """The branches, cut to the smallest."""
    return (smallest(entry, shape) for shape in branches(entry))


def branches(entry: Entry) -> Iterator[Shape]:
    """The entry's rows, scaled: one per set of given optional inputs and params."""
    seen = set()
    for row in entry.workloads:
        key = repr((sorted(row.params.items()), row.with_))
        if key not in seen:
            seen.add(key)
            shape = Shape(freeze_dims(row.dims), dict(row.params), row.dtypes[0], tuple(row.with_))
            yield scale_shape(entry, shape)


def smallest(entry: Entry, shape: Shape) -> Shape:
    """`shape` with every size cut to about a handful, as far as the rules allow."""
    for size in (40, 12, 5):
        for position, current in shape.positions():
            smaller = shape.put(position, size + current % 4)
            if shape.at(position) > size + current % 4 and smaller.legal(entry) is not None:
                shape = smaller
    return shape


def _with_dim(base: Shape, name: str, values: tuple, trials: Trials) -> Iterator[Shape]:
    """One dim replaced, and all alike of them; where a rule ties it to another, each other one with it."""
    others = [
        other for other, value in base.dims.items() if other != name and type(value) is type(base.dims[name])
    ]
    for value in values:
        alone = base.with_dim(name, value)
        yield alone
        yield replace(base, dims={**base.dims, name: value, **dict.fromkeys(others, value)})
        if others and not trials.allows(alone):
            yield from (alone.with_dim(other, value) for other in others)


def param_values(entry: Entry, name: str) -> tuple[Any, ...]:
    """A param's choices, or a few values of its types; none of one that is a number with a fraction."""
    spec = entry.params[name]
    if spec.choices:
        return tuple(spec.choices)
    return tuple(value for word, values in _PARAM_VALUES if word in str(spec.type) for value in values)
