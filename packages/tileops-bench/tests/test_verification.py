"""A row stands on a record only where the record is of the candidate and target that are measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_builders import make_header, make_row

from tileops_bench.cli import main
from tileops_bench.errors import VerificationError
from tileops_bench.records import UNVERIFIED, Row
from tileops_bench.store import ResultsWriter, read_results
from tileops_bench.verification import read_verified

BOOKS = [
    {"target": "cpu", "candidate": "k1", "records": {"ExpFwdOp": "r1"}},
    {"target": "cuda", "candidate": "k1", "records": {"ExpFwdOp": "r2", "AddFwdOp": "r3"}},
]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "verified.json"
    path.write_text(json.dumps(BOOKS))
    return path


def test_records_are_those_of_the_target(book: Path) -> None:
    assert read_verified(book, "cuda", "k1") == {"ExpFwdOp": "r2", "AddFwdOp": "r3"}
    assert read_verified(book, "cpu", "k1") == {"ExpFwdOp": "r1"}


def test_without_a_file_nothing_is_verified() -> None:
    assert read_verified(None, "cpu", "k1") == {}


def test_records_of_another_candidate_are_refused(book: Path) -> None:
    with pytest.raises(VerificationError, match="speaks of the candidates k1, this one is k2"):
        read_verified(book, "cuda", "k2")


@pytest.mark.parametrize(
    "text", ["", "{}", '[{"target": "tpu"}]', '[{"target": "cpu", "candidate": "k"}]', "\xff"]
)
def test_a_malformed_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "v.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(VerificationError, match=r"v\.json: not a file of verified ops"):
        read_verified(path, "cpu", "k1")


def timed(op: str, candidate: str = "k1", verification: str = UNVERIFIED) -> Row:
    row = make_row(f"{op}/x")
    digests = {**row.digests, "candidate": candidate, "verification": verification}
    return row.model_copy(update={"op": op, "digests": digests, "verification": verification})


def merged(book: Path, *rows: Row) -> tuple[int, Path]:
    run, out = book.with_name("run.jsonl"), book.with_name("all.jsonl")
    with ResultsWriter(run) as writer:
        writer.append(make_header())
        for row in rows:
            writer.append(row)
    return main(["merge", str(run), "--verified", str(book), "--out", str(out)]), out


def test_rows_timed_before_the_records_were_made_stand_on_them(book: Path) -> None:
    status, out = merged(book, timed("ExpFwdOp"), timed("AbsFwdOp"), timed("AddFwdOp", verification="r0"))
    assert status == 0
    found = {row.op: (row.verification, row.digests["verification"]) for row in read_results(out).rows}
    assert found == {
        "ExpFwdOp": ("r1", "r1"),
        "AbsFwdOp": (UNVERIFIED, UNVERIFIED),
        "AddFwdOp": ("r0", "r0"),
    }


def test_rows_of_another_candidate_do_not_stand_on_them(
    book: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = merged(book, timed("ExpFwdOp"), timed("AddFwdOp", candidate="k2"))
    assert status == 2
    assert "speaks of the candidates k1, this one is k2" in capsys.readouterr().err
    assert not out.exists()
