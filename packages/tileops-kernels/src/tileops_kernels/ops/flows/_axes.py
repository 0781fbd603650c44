"""Axes of a reduction: any set of dims as a sequence of (outer, reduced, inner) problems, without a
transpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

__all__ = ["Joined", "Stage", "joined", "normalised_axes", "stages"]


@dataclass(frozen=True)
class Stage:
    """One reduction of the middle axis of (outer, length, inner); `inner == 1` is a reduction of rows."""

    outer: int
    length: int
    inner: int

    @property
    def outputs(self) -> int:
        return self.outer * self.inner

    @property
    def elements(self) -> int:
        return self.outputs * self.length


@dataclass(frozen=True)
class Joined:
    """One reduction of the second and fourth axis of (outer, runs, rows, run): rows that are gathered from
    runs."""

    outer: int
    runs: int
    rows: int
    run: int
    inner: ClassVar[int] = 1

    @property
    def length(self) -> int:
        return self.runs * self.run

    @property
    def outputs(self) -> int:
        return self.outer * self.rows

    @property
    def elements(self) -> int:
        return self.outputs * self.length


def joined(plan: Sequence[Stage]) -> Joined | None:
    """Return the first two stages of a plan as one, where the first one reduces rows.

    >>> joined(stages([2, 5, 37, 131], [1, 3]))
    Joined(outer=2, runs=5, rows=37, run=131)
    >>> joined(stages([5, 37], [1])) is None
    True
    """
    if len(plan) < 2 or plan[0].inner > 1:
        return None
    rows, columns = plan[:2]
    return Joined(columns.outer, columns.length, columns.inner, rows.length)


def normalised_axes(dim: Any, rank: int, *, empty_is_all: bool = True) -> tuple[int, ...]:
    """Return the axes a `dim` param names, in order, none twice.

    >>> normalised_axes(None, 3), normalised_axes(-1, 3), normalised_axes([2, 0], 3), normalised_axes([], 2)
    ((0, 1, 2), (2,), (0, 2), (0, 1))
    >>> normalised_axes(-1, 0), normalised_axes([], 2, empty_is_all=False)
    ((), ())
    """
    if dim is None:
        return tuple(range(rank))
    dims = [dim] if isinstance(dim, int) else list(dim)
    if not dims:
        return tuple(range(rank)) if empty_is_all else ()
    return tuple(sorted(d % rank for d in dims)) if rank else ()


def stages(shape: Sequence[int], axes: Sequence[int]) -> list[Stage]:
    """Return the reductions to run one after another on contiguous data, the last axes first.

    Neighbouring axes are one axis; each stage works on what the one before it left.

    >>> stages([4, 128, 4096], [0, 2])
    [Stage(outer=512, length=4096, inner=1), Stage(outer=1, length=4, inner=128)]
    >>> stages([2, 3, 5], [0, 1]), stages([2, 3, 5], [])
    ([Stage(outer=1, length=6, inner=5)], [])
    """
    groups: list[list[int]] = []
    for axis in sorted(axes):
        if groups and all(shape[d] == 1 for d in range(groups[-1][-1] + 1, axis)):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    plan, left = [], list(shape)
    for group in reversed(groups):
        first, last = group[0], group[-1]
        plan.append(Stage(prod(left[:first]), prod(left[first : last + 1]), prod(left[last + 1 :])))
        left[first : last + 1] = [1] * (last + 1 - first)
    return plan
