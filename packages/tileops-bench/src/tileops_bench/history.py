"""Runs against earlier runs: one old against one new, and a whole directory with its change points.

Only runs on the same device with the same timer and thread count are compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from tileops_bench.errors import ResultsError
from tileops_bench.records import Header, Record, Row
from tileops_bench.stats import Comparison, Verdict, compare, quantile
from tileops_bench.store import Results, read_results

BEST_OF_LAST = 10
MIN_SEGMENT = 2
MIN_CHANGE = 0.03
SEPARATION = 4.0
NORMAL_MAD = 1.4826  # a normal distribution's standard deviation over its median absolute deviation


class Change(Record):
    """One row in two runs. FAST: the new one is faster."""

    id: str
    kind: Literal["compared", "only-old", "only-new", "not-comparable"]
    comparison: Comparison | None = None
    old_verdict: Verdict | None = None
    new_verdict: Verdict | None = None
    note: str = ""


def same_conditions(old: Header, new: Header) -> list[str]:
    """Differences that forbid comparing two runs; empty when they may be compared."""
    problems = []
    for name in ("device", "target", "timer", "threads"):
        before, after = getattr(old.conditions, name), getattr(new.conditions, name)
        if before != after:
            problems.append(f"{name}: {before!r} against {after!r}")
    return problems


def compare_runs(old: Results, new: Results) -> list[Change]:
    """The candidate's times of two runs, row by row.

    Raises:
        ResultsError: the runs were made on different devices or with different methods.
    """
    differences = same_conditions(old.header, new.header)
    if differences:
        raise ResultsError(f"{old.path} and {new.path} cannot be compared: {'; '.join(differences)}")
    before, after = {r.id: r for r in old.rows}, {r.id: r for r in new.rows}
    return [_change(name, before.get(name), after.get(name)) for name in dict.fromkeys((*before, *after))]


def _change(name: str, old: Row | None, new: Row | None) -> Change:
    if old is None or new is None:
        return Change(id=name, kind="only-new" if old is None else "only-old")
    verdicts = {"old_verdict": old.verdict, "new_verdict": new.verdict}
    if Verdict.INVALID in verdicts.values():
        which = [run for run, row in (("old", old), ("new", new)) if row.verdict is Verdict.INVALID]
        return Change(id=name, kind="not-comparable", note=f"INVALID in {' and '.join(which)}", **verdicts)
    if old.digests.get("entry") != new.digests.get("entry"):
        return Change(id=name, kind="not-comparable", note="the manifest entry changed", **verdicts)
    return Change(
        id=name,
        kind="compared",
        comparison=compare(new.candidate.samples, old.candidate.samples),
        **verdicts,
    )


class Trend(Record):
    """The candidate's median of one row over several runs, oldest first."""

    id: str
    created: tuple[str, ...]
    medians: tuple[float, ...]
    change_points: tuple[int, ...]
    against_last: float | None
    against_best: float | None


def change_points(values: Sequence[float]) -> tuple[int, ...]:
    """Indices where the level of a series changes for good, by binary segmentation.

    A split counts when both sides hold at least two values and their medians differ by 3 % and by four times
    the noise from run to run (from the median step between neighbours, which a few large steps do not move):
    one odd run is no change.

    >>> change_points([10.0, 10.1, 9.9, 10.0, 12.0, 12.1, 11.9])
    (4,)
    """
    steps = [abs(b - a) for a, b in itertools.pairwise(values)]
    noise = NORMAL_MAD * _median(steps) / math.sqrt(2.0) if steps else 0.0
    return tuple(_split(list(values), 0, noise))


def _split(values: list[float], offset: int, noise: float) -> list[int]:
    best_gain, best_cut = 0.0, 0
    for cut in range(MIN_SEGMENT, len(values) - MIN_SEGMENT + 1):
        gain = _spread(values) - _spread(values[:cut]) - _spread(values[cut:])
        if gain > best_gain:
            best_gain, best_cut = gain, cut
    left, right = values[:best_cut], values[best_cut:]
    if not best_cut or not _differs(left, right, noise):
        return []
    return [*_split(left, offset, noise), offset + best_cut, *_split(right, offset + best_cut, noise)]


def _spread(values: Sequence[float]) -> float:
    """Sum of absolute deviations from the median: one outlier weighs once, not squared."""
    center = _median(values)
    return sum(abs(v - center) for v in values)


def _differs(left: Sequence[float], right: Sequence[float], noise: float) -> bool:
    a, b = _median(left), _median(right)
    step = abs(b - a)
    return step > MIN_CHANGE * min(a, b) and step > SEPARATION * noise


def _median(values: Sequence[float]) -> float:
    return quantile(sorted(values), 0.5)


def read_history(directory: str | Path) -> tuple[list[Trend], list[str]]:
    """Trends of every row over the results files (`*.jsonl`) of a directory, and notes on what was left out.

    The newest run sets the conditions; runs on another device or with another timer are left out by name.

    Raises:
        ResultsError: no readable results file.
    """
    notes: list[str] = []
    runs: list[Results] = []
    for path in sorted(Path(directory).glob("*.jsonl")):
        try:
            runs.append(read_results(path))
        except ResultsError as error:
            notes.append(str(error))
    if not runs:
        raise ResultsError(
            f"{directory}: no results file (*.jsonl) can be read{': ' if notes else ''}{'; '.join(notes)}"
        )
    runs.sort(key=lambda run: run.headers[0].created)
    newest = runs[-1]
    kept = []
    for run in runs:
        differences = same_conditions(run.header, newest.header)
        if differences:
            notes.append(f"{run.path.name}: left out ({'; '.join(differences)})")
        else:
            kept.append(run)
    ids = dict.fromkeys(row.id for run in kept for row in run.rows)
    trends = [trend for name in ids if (trend := _trend(name, kept)) is not None]
    return trends, notes


def _trend(name: str, runs: Sequence[Results]) -> Trend | None:
    points = [
        (row.created, row.candidate.summary.median)
        for run in runs
        for row in run.rows
        if row.id == name and row.verdict is not Verdict.INVALID and row.candidate.summary is not None
    ]
    if not points:
        return None
    medians = [median for _, median in points]
    before = medians[:-1][-BEST_OF_LAST:]
    return Trend(
        id=name,
        created=tuple(created for created, _ in points),
        medians=tuple(medians),
        change_points=change_points(medians),
        against_last=before[-1] / medians[-1] if before else None,
        against_best=min(before) / medians[-1] if before else None,
    )
