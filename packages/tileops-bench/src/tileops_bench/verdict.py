"""From measurements to a verdict: pure checks that collect every problem, each with its code and numbers.

The verdict is against the strongest valid baseline. A baseline that is missing, fails or is wrong can take a
verdict away; it can never turn one into a win.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tileops_bench.records import Code, Contender, Problem, Status
from tileops_bench.roofline import Floor
from tileops_bench.stats import (
    MIN_SAMPLES,
    Comparison,
    Summary,
    Verdict,
    compare,
    drift,
    median_ratio_interval,
)

DRIFT_LIMIT = 1.10  # every contender changed by more than this between the first and the last third
DRIFT_SAMPLES = 15
ALONE_LIMIT = 0.10  # noise allowed between the interleaved and the clean-process median, on top of the spread
BULK_LIMIT = 2.0  # a call timed by the parent's clock against the same call by the child's
BULK_SLACK_NS = 50_000

TRANSIENT = frozenset(
    {Code.THROTTLED, Code.BASELINE_DISAGREES_ALONE, Code.CLOCK_DISAGREES, Code.LOST_RECORDS}
)


@dataclass(frozen=True)
class Bulk:
    """Untimed calls in a row, timed from outside by the parent's clock."""

    calls: int
    total_ns: int

    @property
    def per_call(self) -> float:
        """Nanoseconds per call."""
        return self.total_ns / self.calls


@dataclass(frozen=True)
class Evidence:
    """Everything that a verdict may rest on."""

    candidate: Contender
    baselines: tuple[Contender, ...]
    requested_timer: str
    reported_timer: str
    floor: Floor
    bulk: Bulk | None = None
    alone: Contender | None = None
    alone_required: bool = False
    throttle_reasons: tuple[str, ...] = ()
    row_problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """The outcome for one row."""

    verdict: Verdict
    problems: tuple[Problem, ...]
    against: Contender | None = None
    comparison: Comparison | None = None


def valid_baselines(evidence: Evidence) -> tuple[Contender, ...]:
    """Baselines that ran, broke no rule, are not rejected by a certificate and respect the physical floor."""
    return tuple(
        b
        for b in evidence.baselines
        if b.status is Status.OK
        and b.summary is not None
        and not b.problems
        and not _under_floor(b, evidence.floor)
    )


def strongest(evidence: Evidence) -> Contender | None:
    """The valid baseline with the smallest median."""
    return min(valid_baselines(evidence), key=lambda b: b.summary.median, default=None)


def judge(evidence: Evidence) -> Judgement:
    """Decide one row. INVALID lists every problem found, not only the first."""
    against = strongest(evidence)
    problems = [problem for check in CHECKS for problem in check(evidence)]
    comparison = None
    if against is not None and evidence.candidate.summary is not None:
        comparison = compare(evidence.candidate.samples, against.samples)
        if comparison.verdict is Verdict.FAST:
            problems.extend(_failed_beside_a_win(evidence))
    if problems:
        return Judgement(Verdict.INVALID, tuple(problems), against, comparison)
    if comparison is None:  # unreachable while the checks hold: no samples and no baseline are problems
        raise RuntimeError("no comparison and no problem")
    return Judgement(comparison.verdict, (), against, comparison)


def _under_floor(contender: Contender, floor: Floor) -> bool:
    return floor.ns is not None and contender.summary is not None and contender.summary.min < floor.ns


def _candidate_problems(e: Evidence) -> Iterator[Problem]:
    yield from e.row_problems
    yield from e.candidate.problems
    if e.candidate.status is not Status.OK and not e.candidate.problems:
        yield Problem(code=Code.CANDIDATE_FAILED, detail=e.candidate.detail or e.candidate.status.value)


def _sample_count(e: Evidence) -> Iterator[Problem]:
    n = len(e.candidate.samples)
    if e.candidate.status is Status.OK and not e.candidate.problems and n < MIN_SAMPLES:
        yield Problem(code=Code.TOO_FEW_SAMPLES, detail=f"{n} samples, at least {MIN_SAMPLES} are needed")


def _timer(e: Evidence) -> Iterator[Problem]:
    if e.reported_timer != e.requested_timer:
        detail = f"asked for {e.requested_timer!r}, measured with {e.reported_timer!r}"
        yield Problem(code=Code.TIMER_FALLBACK, detail=detail)


def _roofline(e: Evidence) -> Iterator[Problem]:
    if _under_floor(e.candidate, e.floor):
        fastest, floor = e.candidate.summary.min, e.floor
        detail = f"{fastest:.0f} ns is below the physical floor of {floor.ns:.0f} ns ({floor.note})"
        yield Problem(code=Code.BELOW_ROOFLINE, detail=detail)


def _constant(e: Evidence) -> Iterator[Problem]:
    """The same output for different inputs is right for some ops; a baseline's outputs tell which."""
    varying = [b.name for b in e.baselines if b.output_varies]
    if e.candidate.output_varies is False and varying:
        detail = f"the same output for different inputs, where that of {', '.join(varying)} differs"
        yield Problem(code=Code.OUTPUT_CONSTANT, detail=detail)


def _baselines(e: Evidence) -> Iterator[Problem]:
    if valid_baselines(e):
        return
    states = "; ".join(f"{b.name}: {_state(b, e.floor)}" for b in e.baselines) or "none is known for this op"
    broken = any(b.status in (Status.FAILED, Status.REJECTED, Status.OK) for b in e.baselines)
    code = Code.BASELINE_FAILED if broken else Code.BASELINE_MISSING
    yield Problem(code=code, detail=f"no valid baseline ({states})")


def _failed_beside_a_win(e: Evidence) -> Iterator[Problem]:
    """A win does not count while a baseline that should have run broke: it might have been the strongest."""
    for b in e.baselines:
        broke = b.status is Status.FAILED or (b.status is Status.OK and b not in valid_baselines(e))
        if broke:
            yield Problem(code=Code.BASELINE_FAILED, detail=f"{b.name}: {_state(b, e.floor)}")


def _state(b: Contender, floor: Floor) -> str:
    if b.problems:
        return ", ".join(p.code.value for p in b.problems)
    if b.status is Status.OK and _under_floor(b, floor):
        return Code.BELOW_ROOFLINE.value
    return f"{b.status.value} {b.detail}".strip()


def _throttled(e: Evidence) -> Iterator[Problem]:
    if e.throttle_reasons:
        yield Problem(code=Code.THROTTLED, detail="driver reports " + ", ".join(e.throttle_reasons))
    timed = (c for c in (e.candidate, *e.baselines) if c.summary is not None)
    drifts = [drift(c.samples) for c in timed if len(c.samples) >= DRIFT_SAMPLES]
    if drifts and (min(drifts) > DRIFT_LIMIT or max(drifts) < 1.0 / DRIFT_LIMIT):
        detail = f"every contender's time drifted by {min(drifts):.2f}x to {max(drifts):.2f}x in the row"
        yield Problem(code=Code.THROTTLED, detail=detail)


def _clock(e: Evidence) -> Iterator[Problem]:
    if e.bulk is None or e.candidate.summary is None:
        return
    own = e.candidate.summary.q3 + (e.candidate.host.q3 if e.candidate.host else 0.0)
    if e.bulk.per_call > BULK_LIMIT * own + BULK_SLACK_NS:
        detail = f"{e.bulk.per_call:.0f} ns a call by the parent's clock, {own:.0f} ns by the child's"
        yield Problem(code=Code.CLOCK_DISAGREES, detail=detail)


def _alone(e: Evidence) -> Iterator[Problem]:
    against = strongest(e)
    if not e.alone_required or against is None:
        return
    if e.alone is None or e.alone.summary is None:
        detail = f"{against.name} could not be timed alone: {e.alone.detail if e.alone else 'no answer'}"
        yield Problem(code=Code.BASELINE_DISAGREES_ALONE, detail=detail)
        return
    noise = ALONE_LIMIT + max(_spread(against.summary), _spread(e.alone.summary))
    low, high = median_ratio_interval(against.samples, e.alone.samples)
    if low > 1.0 + noise or high < 1.0 / (1.0 + noise):
        yield Problem(
            code=Code.BASELINE_DISAGREES_ALONE,
            detail=(
                f"{against.name}: median {against.summary.median:.0f} ns interleaved, "
                f"{e.alone.summary.median:.0f} ns alone in a clean process (noise {noise:.0%})"
            ),
        )


def _spread(summary: Summary) -> float:
    """Relative width of the central part of a sample."""
    return (summary.q3 - summary.min) / summary.median


CHECKS: tuple[Callable[[Evidence], Iterator[Problem]], ...] = (
    _candidate_problems,
    _sample_count,
    _timer,
    _roofline,
    _constant,
    _baselines,
    _throttled,
    _clock,
    _alone,
)
