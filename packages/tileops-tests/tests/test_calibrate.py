"""Calibration records come from runs that passed, on one device, under the present table."""

from __future__ import annotations

import pytest

from tileops_tests.calibrate import calibration_record
from tileops_tests.errors import UsageError
from tileops_tests.record import CaseCounts, OpRecord, Record, Worst, summarise
from tileops_tests.tolerance import tolerance_digest


def record(
    ratio: float, *, status: str = "passed", device: str = "d", tolerance: str | None = None
) -> Record:
    op = OpRecord(
        op="SoftmaxFwdOp",
        status=status,
        cases=CaseCounts(declared=9, run=9, passed=9),
        worst=Worst(case="c", output="y", error=ratio, bound=1.0, ratio=ratio),
        digests={"tolerance": tolerance or tolerance_digest()},
        seconds=1.0,
    )
    summary = summarise((op,), requested=1)
    where = {"device": device, "target": "cpu", "tier": "smoke", "seed": 0, "versions": {}}
    return Record(created="2026-01-02T03:04:05Z", ops=(op,), summary=summary, **where)


def test_the_largest_ratio_and_the_counts_are_kept() -> None:
    made = calibration_record([record(0.25), record(0.5)])
    assert made["observed_maximum_ratio"] == 0.5
    assert (made["cases"], made["ops"], made["date"], made["in"]) == (18, 1, "2026-01-02", "SoftmaxFwdOp c")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([record(0.5, status="failed")], "only implementations that pass"),
        ([record(0.5), record(0.5, device="e")], "runs of one device, got d, e"),
        ([record(0.5, tolerance="0" * 64)], "another table of constants"),
        ([], "runs of one device, got none"),
    ],
)
def test_runs_that_prove_nothing_are_refused(records: list[Record], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        calibration_record(records)
