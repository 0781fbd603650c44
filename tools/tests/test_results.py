"""The kept benchmark file is short, grouped by op, and counts no invalid row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import docs
import results


def row(label: str, verdict: str, speedup: float | None) -> dict:
    timed = {"name": "candidate", "status": "ok", "summary": {"median": 2000.0}}
    baseline = {"name": "torch-eager", "status": "ok", "summary": {"median": 3000.0}}
    comparison = {"speedup": speedup, "low": 1.4, "high": 1.6} if speedup else None
    return {
        "type": "row", "id": f"XFwdOp/{label}", "verdict": verdict, "created": "2026-01-02", "problems": [],
        "candidate": timed, "baselines": [baseline], "against": "torch-eager", "comparison": comparison,
    }  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> dict:
    header = {
        "type": "header",
        "created": "2026-01-01T00:00:00+00:00",
        "conditions": {"device": "D", "timer": "cupti"},
        "options": {"alone": True},
    }
    rows = [row("a", "FAST", 1.5), row("b", "INVALID", 9.0), row("c", "INVALID", None)]
    run, summary, out = (tmp_path / name for name in ("run.jsonl", "summary.json", "out.json"))
    again = header | {"created": "2026-01-02T00:00:00+00:00", "options": {"alone": False}}
    lines = (header, row("a", "SLOW", 0.5), *rows[1:], again, rows[0])
    run.write_text("\n".join(json.dumps(line) for line in lines))
    counts = {"rows": 3, "valid": 1, "geomean": 1.5, "wins": 1, "ties": 0, "losses": 0, "ambiguous": 0}
    summary.write_text(json.dumps(counts))
    assert results.main([str(run), str(summary), str(out)]) == 0
    return json.loads(out.read_text())


def test_invalid_rows_do_not_count(kept: dict) -> None:
    assert kept["ops"]["XFwdOp"] == {"rows": 3, "valid": 1, "geomean": 1.5, "best": 1.5, "worst": 1.5}


def test_of_a_row_in_two_runs_the_later_one_is_kept(kept: dict) -> None:
    assert [r["verdict"] for r in kept["rows"]] == ["FAST", "INVALID", "INVALID"]


def test_every_run_keeps_its_own_conditions(kept: dict) -> None:
    runs = [(part["created"][:10], part["rows"], part["options"]["alone"]) for part in kept["parts"]]
    assert runs == [("2026-01-01", 3, True), ("2026-01-02", 1, False)]
    assert kept["created"] == "2026-01-02T00:00:00+00:00"


def test_rows_are_in_microseconds_without_samples(kept: dict) -> None:
    assert kept["rows"][0]["us"] == 2.0
    assert kept["rows"][0]["baselines"] == {"torch-eager": 3.0}


def test_wrong_call_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert results.main([]) == 2
    assert "RUN.jsonl" in capsys.readouterr().err


def test_performance_table_shows_every_op(
    kept: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(kept))
    monkeypatch.setattr(docs, "BENCH", path)
    assert "| XFwdOp | 1 of 3 | 1.50× | 1.50× | 1.50× |" in docs.performance_table()


def test_rows_against_compositions_are_counted_apart() -> None:
    rows = [
        {"verdict": "FAST", "speedup": [2.0, 1.9, 2.1], "against": "torch-eager"},
        {"verdict": "FAST", "speedup": [8.0, 7.9, 8.1], "against": "composition-compile"},
        {"verdict": "INVALID", "speedup": [9.0, 8.9, 9.1], "against": "torch-eager"},
    ]
    found = docs._by_rival(rows)
    assert (
        found == "Apart: 1 rows against a library 2.00×, 1 rows against a composition of torch calls 8.00×."
    )


def test_generated_part_needs_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("no marks here")
    with pytest.raises(SystemExit, match="no generated part"):
        docs.between(page, lambda: "x\n")
    page.write_text(f"a\n{docs.BEGIN}\nold\n{docs.END}\nb")
    assert docs.between(page, lambda: "new\n") == f"a\n{docs.BEGIN}\nnew\n{docs.END}\nb"
