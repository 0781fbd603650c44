"""A signed record is held; one that was altered, signed by a stranger or not at all is refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

import attest

RECORD = {
    "schema": "tileops-verification/1", "created": "2026-01-02T00:00:00Z", "device": "D", "target": "cpu",
    "tier": "smoke", "versions": {"torch": "2.13.0"},
    "ops": [{"op": "AFwdOp", "status": "failed"}, {"op": "BFwdOp", "status": "passed"}],
}  # fmt: skip


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "verify-cpu.json"
    path.write_text(json.dumps(RECORD))
    assert attest.main(["keygen", str(tmp_path / "key")]) == 0
    assert attest.main(["sign", str(path), "--key", str(tmp_path / "key")]) == 0
    return path


def check(record: Path, key: str = "key.pub") -> int:
    return attest.main(["check", str(record), "--by", str(record.parent / key)])


def test_a_record_as_it_was_signed_is_held(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(record) == 0
    assert "held by key" in capsys.readouterr().out


def test_the_statement_says_what_passed_and_what_did_not(record: Path) -> None:
    envelope = json.loads(attest.attestation_of(record).read_text())
    said = json.loads(base64.b64decode(envelope["payload"]))
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicate"]["result"] == "FAILED"
    assert (said["predicate"]["passedTests"], said["predicate"]["failedTests"]) == (["BFwdOp"], ["AFwdOp"])


def test_a_tampered_record_is_refused(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.write_text(record.read_text().replace("failed", "passed"))
    assert check(record) == 1
    assert "is not what was signed" in capsys.readouterr().err


def test_a_statement_that_was_made_to_fit_is_refused(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record.write_text(record.read_text().replace("failed", "passed"))
    place = attest.attestation_of(record)
    envelope = json.loads(place.read_text())
    envelope["payload"] = base64.b64encode(json.dumps(attest.statement(record)).encode()).decode()
    place.write_text(json.dumps(envelope))
    assert check(record) == 1
    assert "or it was altered" in capsys.readouterr().err


def test_a_strangers_signature_is_refused(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attest.main(["keygen", str(record.parent / "stranger")])
    assert check(record, "stranger.pub") == 1
    assert "none of 1 keys signed it" in capsys.readouterr().err


def test_the_attestation_of_another_record_is_refused(record: Path) -> None:
    other = record.with_name("other.json")
    other.write_text(json.dumps(RECORD | {"device": "E"}))
    attest.attestation_of(other).write_text(attest.attestation_of(record).read_text())
    assert check(other) == 1


UNSIGNED = (
    None,
    "",
    "{}",
    '{"payload": "!", "payloadType": "x", "signatures": []}',
    '{"payload": 1, "payloadType": null, "signatures": [3]}',
)


@pytest.mark.parametrize("content", UNSIGNED)
def test_an_unsigned_record_is_refused(record: Path, content: str | None) -> None:
    place = attest.attestation_of(record)
    place.unlink() if content is None else place.write_text(content)
    assert check(record) == 1


def test_what_is_no_record_is_not_signed(
    tmp_path: Path, record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record.write_text("{}")
    assert attest.main(["sign", str(record), "--key", str(tmp_path / "key")]) == 1
    assert "is no verification record" in capsys.readouterr().err


def test_a_key_is_never_replaced_and_is_its_owners_alone(record: Path) -> None:
    key = record.parent / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert attest.main(["keygen", str(key)]) == 2


def test_a_renamed_record_is_refused_by_its_name(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moved = record.rename(record.with_name("other.json"))
    attest.attestation_of(record).rename(attest.attestation_of(moved))
    assert check(moved) == 1
    assert "other.json of SHA-256" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["missing/key", "."])
def test_a_place_where_no_key_can_be_written_is_a_wrong_call(tmp_path: Path, place: str) -> None:
    assert attest.main(["keygen", str(tmp_path / place) if place != "." else place]) == 2


def test_the_options_may_come_first(record: Path) -> None:
    assert attest.main(["check", "--by", str(record.parent / "key.pub"), str(record)]) == 0


def test_a_file_that_is_no_key_is_a_wrong_call(record: Path) -> None:
    assert check(record, "verify-cpu.json") == 2
