"""The chain of an op shows every link, and hands over records of the state at hand alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import chain
import evidence

OP = "ReluFwdOp"


def record(target: str, **changes: object) -> dict:
    part = {
        "op": OP,
        "status": "passed",
        "cases": {"declared": 2, "run": 2, "passed": 2, "refused": 0, "known_failures": 0},
        "digests": evidence.digests_now(OP, target),
    }
    return {
        "created": "2026-01-02T00:00:00Z", "device": "Some Device", "target": target, "tier": "smoke",
        "versions": {"torch": "2.13.0"}, "ops": [part | changes],
    }  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of records of their own, for both the tools that read them."""
    (tmp_path / "evidence").mkdir()
    read = evidence.read_files
    monkeypatch.setattr(evidence, "read_files", lambda root=None: read(tmp_path))
    monkeypatch.setattr(chain, "ROOT", tmp_path)
    return tmp_path / "evidence"


def keep(folder: Path, target: str, **changes: object) -> dict:
    whole = record(target, **changes)
    (folder / f"{target}.json").write_text(json.dumps(whole))
    return whole["ops"][0]


def test_every_link_is_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert chain.main(["show", OP]) == 0
    shown = capsys.readouterr().out
    for part in (
        "elementwise.yaml", "ElementwiseKernel", "oracles/", "baselines/elementwise.py",
        "@tileops/manifest-reviewers",
        "cpu: implemented", "evidence/verify-cpu.json", "tolerance", "checker",
    ):  # fmt: skip
        assert part in shown, part
    assert len(shown.splitlines()) <= 45


def test_a_record_of_another_state_is_shown_as_stale_and_not_handed_over(kept: Path) -> None:
    keep(kept, "cpu")
    stale = keep(kept, "cuda", digests=evidence.digests_now(OP, "cuda") | {"oracle": "another"})
    shown = "\n".join(chain._record_lines(OP, "cuda", evidence.digests_now(OP, "cuda")))
    assert "stale: other oracle" in shown
    assert evidence.record_digest(stale)[:12] in shown
    cpu, cuda = chain.verified()
    assert list(cpu["records"]) == [OP]
    assert cuda["records"] == {}


def test_a_failed_op_is_not_handed_over(kept: Path) -> None:
    keep(kept, "cpu", status="failed")
    assert [book["records"] for book in chain.verified()] == [{}, {}]


def test_what_is_handed_over_is_what_the_benchmark_reads(kept: Path, tmp_path: Path) -> None:
    from tileops_bench.digests import candidate_digest
    from tileops_bench.verification import read_verified

    part = keep(kept, "cpu")
    out = tmp_path / "verified.json"
    assert chain.main(["verified", "--out", str(out)]) == 0
    assert read_verified(out, "cpu", candidate_digest("tileops")) == {OP: evidence.record_digest(part)}


def test_a_full_disk_is_an_error_and_no_traceback(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(kept, "cpu")
    assert chain.main(["verified", "--out", str(kept / "missing" / "x.json")]) == 3
    assert "cannot be written" in capsys.readouterr().err


def test_an_unknown_op_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        chain.main(["show", "ReluFwdOpp"])
    assert caught.value.code == 2
    assert "did you mean ReluFwdOp" in capsys.readouterr().err
