"""Small shapes that vary the params and the optional inputs of an entry.

A branch is one value for each switch (a param that is a bool or has choices) and one set of given optional
inputs. Which of them are legal is the entry's answer, as it is for sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tileops_manifest import Entry

from .boundary import Trials, branches, param_values, smallest
from .shapes import Shape

# The usual ones first; where the rules forbid the outermost ones, 0 and 1 are ends of most domains.
_FLOATS = (0.5, 2.0, 0.25, 8.0, 1.0, 0.0, -1.0, -8.0)


def param_dims(entry: Entry) -> Iterator[tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]]:
    """Legal `(dims, params, with_)` of little volume that vary the params and the optional inputs.

    * One in each branch, where every other param that the rules leave a choice is neither at its default nor
      at what the row has: who ignores one, in that branch alone, is told.
    * For each param that is a number the least and the greatest of a few values that the rules allow, for
      each other one another value.

    Rows with the most params and optional inputs come first, the last ones among equals: there what a param
    scales or bounds is in use. Their sizes are those of the `cpu` scale where these are of little volume:
    what is cut further may fit into any window.
    """
    search = _Search(entry, Trials(entry))
    found = {Trials.key(shape): shape for shape in (*search.in_branches(), *search.at_ends())}
    for shape in found.values():
        yield dict(shape.dims), dict(shape.params), shape.with_


@dataclass(frozen=True)
class _Search:
    """Shapes of one entry that its rules allow."""

    entry: Entry
    trials: Trials

    @cached_property
    def bases(self) -> list[Shape]:
        """The rows, scaled; then cut to the smallest."""
        rows = list(branches(self.entry))
        rows.reverse()
        rows.sort(key=lambda shape: -len(shape.params) - len(shape.with_))
        return [*rows, *(smallest(self.entry, shape) for shape in rows)]

    @cached_property
    def switches(self) -> Mapping[str, tuple[Any, ...]]:
        """Params that select a branch, and their values."""
        params = self.entry.params.items()
        return {
            name: param_values(self.entry, name)
            for name, spec in params
            if spec.choices or str(spec.type) == "bool"
        }

    def in_branches(self) -> Iterator[Shape]:
        """One shape in each branch that exists, its other params moved; none of an entry without a choice."""
        optional = [name for name, spec in self.entry.inputs.items() if spec.optional]
        given = [
            tuple(filter(None, names)) for names in itertools.product(*((name, None) for name in optional))
        ]
        if not self.entry.params and not optional:
            return
        for values in itertools.product(*self.switches.values()):
            for names in given:
                shape = self._in_branch(dict(zip(self.switches, values, strict=True)), names)
                if shape is not None:
                    yield self._moved(shape)

    def _in_branch(self, switches: Mapping[str, Any], given: tuple[str, ...]) -> Shape | None:
        """The first legal shape of a branch, made of the base that needs the fewest changes."""

        def changes(base: Shape) -> int:
            params = [base.params.get(name, self.entry.params[name].default) for name in switches]
            switched = sum(a != b for a, b in zip(params, switches.values(), strict=True))
            return switched + len(set(base.with_) ^ set(given))

        half = len(self.bases) // 2
        near = [*sorted(self.bases[:half], key=changes), *sorted(self.bases[half:], key=changes)]
        made = (replace(base, params={**base.params, **switches}, with_=given) for base in near)
        return next(filter(self.trials.allows_small, made), None)

    def _moved(self, shape: Shape) -> Shape:
        """`shape` with one param after the other at another value, as far as the rules allow."""
        for turn, name in enumerate(name for name in self.entry.params if name not in self.switches):
            current = shape.params.get(name, self.entry.params[name].default)
            # Up and down in turn, since two that move together may cancel.
            near = _half_and_twice(current)[:: -1 if turn % 2 else 1]
            candidates = (shape.with_param(name, value) for value in (*near, *self._others(shape, name)))
            shape = next(filter(self.trials.allows_small, candidates), shape)
        return shape

    def at_ends(self) -> Iterator[Shape]:
        """For each param shapes of one base at its ends; of what is no number, at any other value."""
        for name in self.entry.params:
            for base in self.bases:
                others = [base.with_param(name, value) for value in self._others(base, name)]
                legal = list(filter(self.trials.allows_small, others))
                if legal:
                    numbers = [s for s in legal if type(s.params[name]) in (int, float)]
                    ends = sorted(numbers, key=lambda shape: shape.params[name])
                    yield from (ends[0], ends[-1]) if ends else legal[:1]
                    break

    def _others(self, shape: Shape, name: str) -> list[Any]:
        """Values of a param that are neither its default nor what a shape has."""
        spec = self.entry.params[name]
        floats = (
            _FLOATS
            if not spec.choices and any(word in str(spec.type) for word in ("float", "number"))
            else ()
        )
        kept = (spec.default, shape.params.get(name, spec.default))
        return [value for value in (*param_values(self.entry, name), *floats) if value not in kept]


def _half_and_twice(value: Any) -> tuple[Any, ...]:
    """Values of about the same size; none below 1, where what is negligible stays so."""
    if type(value) not in (int, float) or abs(value) < 1:
        return ()
    return (value // 2 if type(value) is int else value / 2, value * 2)
