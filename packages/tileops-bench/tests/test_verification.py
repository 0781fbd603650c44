"""A row stands on a record only where the record is of the candidate and target that are measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tileops_bench.errors import VerificationError
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
