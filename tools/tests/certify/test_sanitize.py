"""What compute-sanitizer says is held against the op it said it of; silence is clean where the op ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sanitize

OPS = ["ReluFwdOp", "AddFwdOp"]
CLEAN = """========= COMPUTE-SANITIZER
@@ begin\tReluFwdOp
@@ end\tReluFwdOp\t3\t
@@ begin\tAddFwdOp
@@ end\tAddFwdOp\t4\t
@@ kernels\tElementwiseKernel
========= ERROR SUMMARY: 0 errors
"""


def said(text: str, status: int = 0) -> dict[str, list[str]]:
    return {op: what["messages"] for op, what in sanitize.read_output(text, OPS, status)[0].items()}


def test_silence_of_ops_that_ran_is_clean() -> None:
    found, kernels = sanitize.read_output(CLEAN, OPS, 0)
    assert found == {"ReluFwdOp": {"cases": 3, "messages": []}, "AddFwdOp": {"cases": 4, "messages": []}}
    assert kernels == {"ElementwiseKernel"}


def test_an_error_is_held_against_the_op_that_was_running() -> None:
    text = CLEAN.replace("@@ end\tAdd", "========= Invalid __global__ read of size 16 bytes\n@@ end\tAdd")
    assert said(text) == {"ReluFwdOp": [], "AddFwdOp": ["Invalid __global__ read of size 16 bytes"]}


def test_an_error_that_only_the_summary_counts_is_not_lost() -> None:
    assert said(CLEAN.replace("0 errors", "2 errors"))["AddFwdOp"] == ["ERROR SUMMARY: 2 errors"]


def test_ops_that_a_crash_kept_from_ending_are_not_clean() -> None:
    found = said(CLEAN.partition("@@ begin\tAdd")[0], 137)
    assert found["ReluFwdOp"] == []
    assert found["AddFwdOp"] == ["did not end: the process ended with exit status 137"]


@pytest.mark.parametrize(
    ("ending", "message"), [("0\t", "no case was run"), ("1\tx: OpError: y", "x: OpError: y")]
)
def test_an_op_that_ran_nothing_or_raised_is_not_clean(ending: str, message: str) -> None:
    assert said(CLEAN.replace("AddFwdOp\t4\t", f"AddFwdOp\t{ending}"))["AddFwdOp"] == [message]


@pytest.fixture
def sanitizer(tmp_path: Path) -> Path:
    """A stand-in that says what it is told to."""
    program = tmp_path / "sanitizer"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat {tmp_path}/says\n')
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(("text", "status"), [(CLEAN, 0), (CLEAN.replace("0 errors", "1 errors"), 1)])
def test_record_and_exit_status(sanitizer: Path, tmp_path: Path, text: str, status: int) -> None:
    (tmp_path / "says").write_text(text)
    out = tmp_path / "out.json"
    got = sanitize.main([*OPS, "--checks", "memcheck", "--sanitizer", str(sanitizer), "--out", str(out)])
    record = json.loads(out.read_text())
    assert (got, record["summary"]["clean"], record["summary"]["ops"]) == (status, 2 - status, 2)
    assert record["checks"]["memcheck"]["ReluFwdOp"]["cases"] == 3


def test_a_process_under_a_check_runs_the_cases_of_its_ops_and_starts_no_other(
    sanitizer: Path, tmp_path: Path
) -> None:
    (tmp_path / "says").write_text(CLEAN)
    sanitize.main([*OPS, "--checks", "memcheck", "racecheck", "--sanitizer", str(sanitizer)])
    script = str(Path(sanitize.__file__).resolve())
    asked = [line.split() for line in (tmp_path / "asked").read_text().splitlines()]
    assert sorted((words[1], *words[words.index(script) + 1 :]) for words in asked) == sorted(
        (check, "--child", "--target", "cuda", *OPS) for check in ("memcheck", "racecheck")
    )


def test_the_cases_of_an_op_run_in_the_checked_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "sanitizer"
    program.write_text('#!/bin/sh\nshift 4\nexec "$@"\n')  # a check of nothing
    program.chmod(0o755)
    call = ["IsnanFwdOp", "--target", "cpu", "--checks", "memcheck", "--sanitizer", str(program)]
    assert sanitize.main(call) == 0
    said = capsys.readouterr().out
    assert "IsnanFwdOp" in said
    assert " 0 cases" not in said
    assert "1 of 1 ops clean under memcheck" in said


def test_a_missing_sanitizer_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        sanitize.main([*OPS, "--sanitizer", "/nowhere/sanitizer"])
    assert caught.value.code == 2
    assert "part of the CUDA toolkit" in capsys.readouterr().err


def test_kernels_that_no_case_reached_are_named() -> None:
    summary = sanitize.summarise({"memcheck": {}}, {"A"}, {"A", "B"})
    assert summary["kernels_not_run"] == ["B"]
