"""Records: schema, atomic writing, reading what is broken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tileops_tests.cli import main
from tileops_tests.errors import RecordError
from tileops_tests.record import (
    CaseCounts,
    OpRecord,
    Record,
    json_schema,
    merge_records,
    now,
    read_record,
    summarise,
    write_record,
)


def record(*statuses: str, requested: int | None = None) -> Record:
    ops = tuple(
        OpRecord(op=f"Op{i}", status=status, cases=CaseCounts(declared=3, run=3, passed=3), seconds=0.1)
        for i, status in enumerate(statuses)
    )
    summary = summarise(ops, requested=len(ops) if requested is None else requested)
    return Record(
        created=now(),
        device="d",
        target="cpu",
        tier="smoke",
        seed=0,
        versions={"torch": "2"},
        ops=ops,
        summary=summary,
    )


def test_a_record_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "record.json"
    write_record(record("passed", "failed"), path)
    assert read_record(path) == record("passed", "failed").model_copy(
        update={"created": read_record(path).created}
    )
    content = json.loads(path.read_text())
    assert content["schema"] == "tileops-verification/1"
    assert content["summary"] == {
        "ops": 2,
        "passed": 1,
        "failed": 1,
        "refused": 0,
        "error": 0,
        "complete": True,
    }
    assert set(content["ops"][0]["cases"]) >= {"declared", "run", "passed"}


def test_a_record_says_when_it_is_incomplete() -> None:
    assert not record("passed", requested=2).summary.complete


def test_a_failed_write_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_record(record("passed"), path)
    before = path.read_text()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match=r"cannot write the record .*No space left on device"):
        write_record(record("passed", "passed"), path)
    assert path.read_text() == before
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


def test_a_path_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "record.json", tmp_path):
        with pytest.raises(RecordError, match="cannot write the record"):
            write_record(record("passed"), path)


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_record(record("passed"), path)
        assert Record.model_validate_json(os.read(reader, 1 << 16)).summary.passed == 1
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_a_link_is_written_through(tmp_path: Path) -> None:
    target, link = tmp_path / "kept" / "record.json", tmp_path / "latest.json"
    link.symlink_to(target)
    write_record(record("passed"), link)
    assert link.is_symlink()
    assert read_record(target).summary.passed == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": "tileops-verification/1", "ops": [', "not a complete JSON document"),
        ("[]", "has schema None"),
        ('{"schema": "tileops-verification/9"}', "expected 'tileops-verification/1'"),
        ('{"schema": "tileops-verification/1", "ops": []}', "Field required"),
    ],
)
def test_a_broken_record_is_a_typed_error_that_names_the_file(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=message) as caught:
        read_record(path)
    assert "broken.json" in str(caught.value)
    with pytest.raises(RecordError, match="cannot read"):
        read_record(tmp_path / "missing.json")


def test_the_schema_names_every_field() -> None:
    schema = json_schema()
    assert {"schema", "created", "device", "target", "tier", "versions", "ops", "summary"} <= set(
        schema["properties"]
    )
    assert schema["additionalProperties"] is False


def test_of_an_op_in_two_records_the_later_one_speaks() -> None:
    early = record("failed", "passed").model_copy(update={"created": "2026-01-01T00:00:00Z"})
    late = record("passed").model_copy(update={"created": "2026-01-02T00:00:00Z"})
    for order in ([early, late], [late, early]):
        merged = merge_records(order)
        assert [op.status for op in merged.ops] == ["passed", "passed"]
        assert merged.created == late.created
        assert merged.summary == summarise(merged.ops, requested=2)


def test_a_merged_record_is_complete_only_where_every_part_is() -> None:
    assert merge_records([record("passed")]).summary.complete
    assert not merge_records([record("passed"), record("passed", requested=2)]).summary.complete


def test_a_merged_record_names_the_systems_of_its_parts() -> None:
    def on(*systems: str) -> list[Record]:
        parts = [record("passed") for _ in systems]
        return [
            part.model_copy(update={"versions": {**part.versions, "system": system}})
            for part, system in zip(parts, systems, strict=True)
        ]

    merged = merge_records(on("Linux-1", "Linux-2"))
    assert merged.versions["system"] == "Linux-1, Linux-2"
    assert merge_records([merged, *on("Linux-2")]).versions["system"] == "Linux-1, Linux-2"


@pytest.mark.parametrize(
    "other",
    [{"device": "e"}, {"target": "cuda"}, {"tier": "full"}, {"seed": 1}, {"versions": {"torch": "3"}}],
)
def test_records_of_different_conditions_do_not_merge(other: dict) -> None:
    name, value = next(iter(other.items()))
    with pytest.raises(RecordError, match=name) as caught:
        merge_records([record("passed"), record("passed").model_copy(update=other)])
    assert repr(value) in str(caught.value)


def test_merging_nothing_is_refused() -> None:
    with pytest.raises(RecordError, match="no record"):
        merge_records([])


def test_merge_command_writes_one_record(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json", "all.json")]
    write_record(record("passed"), paths[0])
    write_record(record("passed", "failed"), paths[1])
    assert main(["merge", *map(str, paths[:2]), "--json", str(paths[2])]) == 0
    assert [op.op for op in read_record(paths[2]).ops] == ["Op0", "Op1"]
    write_record(record("passed").model_copy(update={"seed": 7}), paths[1])
    assert main(["merge", *map(str, paths[:2]), "--json", str(tmp_path / "none.json")]) not in (0, 1)
    assert not (tmp_path / "none.json").exists()
