"""Sessions: finished ops reach the disk at once, whatever happens next."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from tileops_manifest import load_manifest
from tileops_tests.candidate import Candidate
from tileops_tests.codes import ReasonCode
from tileops_tests.errors import RecordError, UsageError
from tileops_tests.host import Worker, WorkerFailure
from tileops_tests.limits import Limits
from tileops_tests.oracles import get_oracle
from tileops_tests.record import OpRecord, read_record
from tileops_tests.session import run_session, select_ops
from tileops_tests.verify import Options

WRONG = Path(__file__).parent / "wrong"
RIGHT = Candidate(WRONG / "softmax.py", "right")
OPTIONS = Options(candidate=RIGHT, only=("ragged-float16-*s0",), limits=Limits())
PAIR = ("SoftmaxFwdOp", "LogSoftmaxFwdOp")


def entries(*names: str) -> list:
    return [load_manifest()[name] for name in names]


def test_a_finished_op_is_on_the_disk_before_the_next_one_ends(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    seen: list[int] = []

    def finished(op: OpRecord) -> None:
        seen.append(len(read_record(path).ops))

    outcome = run_session(entries(*PAIR), OPTIONS, get_oracle, path=path, on_finished=finished)
    assert seen == [1, 2]
    assert outcome.record == read_record(path)
    assert outcome.record.summary.complete


def test_an_interruption_keeps_what_was_finished(tmp_path: Path) -> None:
    path = tmp_path / "record.json"

    def interrupt(op: OpRecord) -> None:
        raise KeyboardInterrupt

    options = replace(OPTIONS, cancel=Event())
    outcome = run_session(entries(*PAIR), options, get_oracle, path=path, on_finished=interrupt)
    assert outcome.interrupted
    record = read_record(path)
    assert [op.op for op in record.ops] == ["SoftmaxFwdOp"]
    assert not record.summary.complete


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    calls = []
    original = os.fsync

    def fsync(fd: int) -> None:
        calls.append(fd)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    outcome = run_session(entries(*PAIR), OPTIONS, get_oracle, path=path)
    assert isinstance(outcome.write_error, RecordError)
    assert len(outcome.record.ops) == 2
    assert [op.op for op in read_record(path).ops] == ["SoftmaxFwdOp"]


def test_a_path_that_cannot_be_written_is_known_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot write the record"):
        run_session(entries("SoftmaxFwdOp"), OPTIONS, get_oracle, path=tmp_path / "file" / "record.json")


def test_an_op_without_an_oracle_has_no_verdict() -> None:
    def none(op: str) -> None:
        raise LookupError(f"no oracle for {op}")

    record = run_session(entries("SoftmaxFwdOp"), OPTIONS, none).record
    assert record.ops[0].status == "error"
    assert record.ops[0].failures[0].code == "oracle_error"
    assert record.summary.error == 1


def test_an_oracle_that_fails_is_the_oracles_fault_and_stops_nothing_else() -> None:
    class Broken:
        def ref_program(self, *arguments: object) -> tuple:
            raise ZeroDivisionError("oops")

    def lookup(op: str) -> object:
        return Broken() if op == "SoftmaxFwdOp" else get_oracle(op)

    record = run_session(entries(*PAIR), OPTIONS, lookup).record
    by_op = {op.op: op for op in record.ops}
    assert by_op["SoftmaxFwdOp"].status == "error"
    assert "ZeroDivisionError: oops" in by_op["SoftmaxFwdOp"].failures[0].message
    assert by_op["LogSoftmaxFwdOp"].status == "failed"


def test_ops_are_selected_by_name_or_by_status() -> None:
    manifest = load_manifest()
    assert [e.name for e in select_ops(manifest, ["GemmFwdOp", "GemmFwdOp"], "cpu")] == ["GemmFwdOp"]
    with pytest.raises(UsageError, match="did you mean 'GemmFwdOp'"):
        select_ops(manifest, ["GemFwdOp"], "cpu")
    implemented = [e.name for e in manifest.entries.values() if e.status.cpu == "implemented"]
    if implemented:
        assert [e.name for e in select_ops(manifest, [], "cpu")] == implemented
    else:
        with pytest.raises(UsageError, match="no entry is implemented"):
            select_ops(manifest, [], "cpu")


def compile_requests(monkeypatch: pytest.MonkeyPatch, *, lose: bool) -> list[dict]:
    """What workers are sent while one op is judged with two compile jobs; `lose` ends the first worker."""
    sent, ask = [], Worker.ask

    def spy(self: Worker, message: dict, *args: object, **kwargs: object) -> dict:
        sent.append(message)
        if message.get("do") == "warm" and lose:
            raise WorkerFailure(ReasonCode.CRASH, "lost")
        return ask(self, message, *args, **kwargs)

    monkeypatch.setattr(Worker, "ask", spy)
    options = Options(tier="smoke", only=("*ragged*",), compile_jobs=2)
    record = run_session(entries("ReluFwdOp"), options, get_oracle).record
    assert [(op.status, op.failures) for op in record.ops] == [("passed", ())]
    return sent


def test_programs_of_an_op_compile_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    warm = [message for message in compile_requests(monkeypatch, lose=False) if message.get("do") == "warm"]
    assert len(warm) == 1
    assert warm[0]["threads"] == 2
    assert len(warm[0]["calls"]) > 1
    assert {"shape", "dtype", "device"} == set(warm[0]["calls"][0]["inputs"][0])


def test_no_case_is_blamed_for_a_worker_lost_among_several_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = [message.get("do") for message in compile_requests(monkeypatch, lose=True)]
    assert asked.count("load") == 2
    assert asked.count("warm") == 1
