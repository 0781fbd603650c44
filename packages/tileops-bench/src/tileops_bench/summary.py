"""A run in a few numbers: geometric mean over valid rows only, with what it was computed from beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tileops_bench.records import UNVERIFIED, Code, Record, Row, Status
from tileops_bench.stats import Verdict, geometric_mean
from tileops_bench.store import Results


class WorstRow(Record):
    """The valid row with the smallest speed-up."""

    id: str
    speedup: float
    against: str


class Summary(Record):
    """Counts and the geometric mean of speed-ups over the strongest valid baseline.

    `geomean` is None when no row is valid. `declared` counts the rows that the run set out to measure; those
    that it did not measure are counted under the code fewer_rows_than_declared in `invalid`. `certificates`
    counts baselines, each once however many rows it took part in: certified, rejected, or unknown. `verified`
    counts rows that stand on a verification record.
    """

    device: str
    target: str
    timer: str
    created: str
    declared: int
    rows: int
    valid: int
    geomean: float | None
    wins: int
    ties: int
    losses: int
    ambiguous: int
    invalid: dict[str, int]
    worst: WorstRow | None
    missing_baselines: dict[str, int]
    certificates: dict[str, int]
    verified: int


def summarise_results(results: Results) -> Summary:
    """Summarise one results file."""
    rows = results.rows
    valid = [row for row in rows if row.verdict is not Verdict.INVALID and row.comparison is not None]
    counts = Counter(row.verdict for row in rows)
    header = results.header
    return Summary(
        device=header.conditions.device,
        target=header.conditions.target,
        timer=header.conditions.timer,
        created=header.created,
        declared=len(rows) + len(results.missing),
        rows=len(rows),
        valid=len(valid),
        geomean=geometric_mean([row.comparison.speedup for row in valid]),
        wins=counts[Verdict.FAST],
        ties=counts[Verdict.SAME],
        losses=counts[Verdict.SLOW],
        ambiguous=counts[Verdict.AMBIGUOUS],
        invalid=_invalid(results),
        worst=_worst(valid),
        missing_baselines=dict(
            Counter(b.name for row in rows for b in row.baselines if b.status == "missing")
        ),
        certificates=_certificates(rows),
        verified=sum(row.verification != UNVERIFIED for row in rows),
    )


def _invalid(results: Results) -> dict[str, int]:
    """Rows per reason code; a row with two codes counts under both."""
    codes = Counter(code for row in results.rows for code in {p.code.value for p in row.problems})
    if results.missing:
        codes[Code.FEWER_ROWS_THAN_DECLARED.value] += len(results.missing)
    return dict(sorted(codes.items()))


def _certificates(rows: Sequence[Row]) -> dict[str, int]:
    """What certificates say of the baselines that ran or would have; later rows know better."""
    took_part = (Status.OK, Status.FAILED, Status.REJECTED)
    known = {(row.op, b.name): b.certified for row in rows for b in row.baselines if b.status in took_part}
    counts = Counter(known.values())
    return {"certified": counts["yes"], "rejected": counts["no"], "unknown": counts["unknown"]}


def _worst(valid: list[Row]) -> WorstRow | None:
    if not valid:
        return None
    row = min(valid, key=lambda r: r.comparison.speedup)
    return WorstRow(id=row.id, speedup=row.comparison.speedup, against=row.against)


def as_json(summary: Summary) -> dict[str, Any]:
    """The summary as plain data; every field is there, None included."""
    return summary.model_dump(mode="json")
