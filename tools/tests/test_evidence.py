"""`implemented` without a passing record is found; a record of an earlier state only stops a release."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import evidence
from evidence import Gap, due, find_gaps, read_records, renew

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


STATUSES = {name: {"cpu": "implemented", "cuda": "spec-only"} for name in ("AFwdOp", "BFwdOp", "CFwdOp")}
CURRENT = {"status": "passed", "digests": {"oracle": "now"}}


def drawn(records: dict[str, dict], sample: int = 0, seed: int = 0) -> tuple[list[str], list[str]]:
    digests = {"cpu": {op: {"oracle": "now"} for op in STATUSES}}
    return due(STATUSES, digests, {"cpu": records, "cuda": {}}, sample, seed)


def test_ops_without_a_current_record_that_passed_are_due() -> None:
    records = {"AFwdOp": CURRENT, "BFwdOp": CURRENT | {"digests": {"oracle": "then"}}}
    assert drawn(records) == (["BFwdOp", "CFwdOp"], [])
    assert drawn({op: CURRENT | {"status": "failed"} for op in STATUSES})[0] == list(STATUSES)


def test_any_op_may_be_drawn_and_the_seed_says_which() -> None:
    records = dict.fromkeys(STATUSES, CURRENT)
    draws = {seed: drawn(records, 1, seed) for seed in range(20)}
    assert {op for _, ops in draws.values() for op in ops} == set(STATUSES)
    assert drawn(records, 1, 7) == draws[7]
    assert len(drawn(records, 9)[1]) == 3


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Stands for tileops-tests: says of each op what the test puts here, passed by default."""
    verdicts: dict[str, str] = {}

    def run(command: list[str], **_: object) -> SimpleNamespace:
        ops = [word for word in command if word.endswith("FwdOp")]
        found = [{"op": op, "status": verdicts.get(op, "passed"), "digests": {}} for op in ops]
        record = {"created": "2026-01-01", "target": "cpu", "ops": found, "summary": {}}
        Path(command[-1]).write_text(json.dumps(record))
        return SimpleNamespace(stdout=b"said")

    monkeypatch.setattr(evidence.subprocess, "run", run)
    return verdicts


def test_a_negative_sample_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evidence.main(["renew", "--sample", "-1"])
    assert "got -1" in capsys.readouterr().err


def test_stale_ops_get_a_new_record_and_drawn_ones_keep_theirs(judge: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "renewed.json"
    assert renew(["AFwdOp"], ["BFwdOp"], 1, out) == 0
    record = json.loads(out.read_text())
    assert [part["op"] for part in record["ops"]] == ["AFwdOp"]
    assert (record["summary"]["passed"], record["summary"]["complete"]) == (1, True)


def test_a_forged_record_is_found_when_its_op_is_drawn(
    judge: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge["BFwdOp"] = "failed"
    assert renew([], ["BFwdOp"], 1, tmp_path / "renewed.json") == 1
    assert "BFwdOp on cpu: does not pass (its record says passed)" in capsys.readouterr().err
    assert not (tmp_path / "renewed.json").exists()
