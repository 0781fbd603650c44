"""`implemented` without a passing record is found; a record of an earlier state only stops a release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evidence import Gap, find_gaps, read_records

DIGESTS = {
    "cpu": {"XFwdOp": {"manifest": "a", "implementation": "b"}},
    "cuda": {"XFwdOp": {"manifest": "a", "implementation": "c"}},
}
PASSED = {
    "op": "XFwdOp",
    "status": "passed",
    "digests": {"manifest": "a", "implementation": "b", "oracle": "c"},
}


def gaps(status: str, record: dict | None) -> list[Gap]:
    records = {"cpu": {"XFwdOp": record} if record else {}}
    return find_gaps({"XFwdOp": {"cpu": status}}, DIGESTS, records)


def test_implemented_with_a_current_passing_record_has_no_gap() -> None:
    assert gaps("implemented", PASSED) == []


@pytest.mark.parametrize("record", [None, PASSED | {"status": "failed"}, PASSED | {"status": "refused"}])
def test_implemented_without_a_passing_record_is_an_error(record: dict | None) -> None:
    (gap,) = gaps("implemented", record)
    assert not gap.stale


def test_record_of_another_kernel_is_stale() -> None:
    (gap,) = gaps("implemented", PASSED | {"digests": {"manifest": "a", "implementation": "older"}})
    assert gap.stale
    assert "implementation" in gap.message


def test_record_of_one_target_is_held_against_that_targets_state() -> None:
    statuses = {"XFwdOp": {"cpu": "implemented", "cuda": "implemented"}}
    (gap,) = find_gaps(statuses, DIGESTS, {"cpu": {"XFwdOp": PASSED}, "cuda": {"XFwdOp": PASSED}})
    assert (gap.target, gap.stale) == ("cuda", True)


def test_passing_record_for_a_spec_only_op_is_reported() -> None:
    (gap,) = gaps("spec-only", PASSED)
    assert gap.stale


def test_spec_only_without_a_record_has_no_gap() -> None:
    assert gaps("spec-only", None) == []


def test_latest_record_of_an_op_speaks_for_it(tmp_path: Path) -> None:
    def keep(name: str, created: str, target: str, **status: str) -> None:
        ops = [{"op": op, "status": value} for op, value in status.items()]
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"created": created, "target": target, "ops": ops}))

    keep("evidence/all.json", "2026-01-02T00:00:00Z", "cpu", XFwdOp="failed", YFwdOp="passed")
    keep("evidence/x.json", "2026-01-03T00:00:00Z", "cpu", XFwdOp="passed")
    keep("evidence/y.json", "2026-01-01T00:00:00Z", "cpu", YFwdOp="failed")
    keep("docs/results/verify-h200.json", "2026-01-01T00:00:00Z", "cuda", XFwdOp="refused")
    records = read_records(tmp_path)
    assert {op: found["status"] for op, found in records["cpu"].items()} == {
        "XFwdOp": "passed",
        "YFwdOp": "passed",
    }
    assert records["cuda"]["XFwdOp"]["status"] == "refused"
