"""The command line: one real run from end to end, and a clear error for every kind of bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from bench_builders import make_header, make_row

from tileops_bench.cli import main
from tileops_bench.records import json_schema
from tileops_bench.store import ResultsWriter, read_results

HONEST = """
    import torch.nn.functional as F

    def run(x, weight, normalized_shape, eps):
        return F.rms_norm(x, tuple(normalized_shape), weight, eps)
"""
ROW = ("RMSNormFwdOp", "--target", "cpu", "--rows", "llama-8b-decode", "--dtypes", "bfloat16")
QUICK = (
    "--baselines",
    "torch-eager",
    "--no-confirm",
    "--row-budget",
    "0.05",
    "--samples",
    "7",
    "8",
    "--fail-on",
    "never",
    "--quiet",
)


def write_results(path, *rows):
    with ResultsWriter(path) as writer:
        writer.append(make_header(tuple(r.id for r in rows)))
        for row in rows:
            writer.append(row)
    return str(path)


def test_run_summary_report_compare_and_history_on_a_real_row(tmp_path, candidate_file, capsys):
    out = tmp_path / "runs" / "r.jsonl"
    candidate = ("--candidate", candidate_file(HONEST))
    assert main(["run", *ROW, *candidate, *QUICK, "--out", str(out)]) == 0
    row = read_results(out).rows[0]
    assert row.op == "RMSNormFwdOp"
    assert len(row.candidate.samples) >= 7
    assert {b.name: b.status for b in row.baselines} == {"torch-eager": "ok", "torch-compile": "excluded"}
    assert row.candidate.outputs_compared == 3

    assert main(["run", *ROW, *candidate, *QUICK, "--out", str(out), "--resume"]) == 0
    assert "1 of 1 rows are finished already" in capsys.readouterr().out

    assert main(["summary", str(out), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["declared"] == summary["rows"] == 1

    page = tmp_path / "report.html"
    assert main(["report", str(out), "--out", str(page)]) == 0
    assert "llama-8b-decode" in page.read_text()

    assert main(["compare", str(out), str(out), "--json"]) == 0
    assert main(["history", str(out.parent)]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("RMSNormFwdOpp",), "did you mean RMSNormFwdOp"),
        (("RMSNormFwdOp", "--rows", "llama-8b-decoder"), "did you mean llama-8b-decode"),
        (("RMSNormFwdOp", "--dtypes", "float64"), "no row is left"),
        (("RMSNormFwdOp", "--candidate", "nowhere.py:run"), "does not exist"),
        (("RMSNormFwdOp", "--candidate", "nonsense"), "FILE.py:OBJECT"),
        (("RMSNormFwdOp", "--candidate", "no_such_package:run"), "not installed"),
        (("--candidate", "x.py:run"), "does not exist"),
        (("RMSNormFwdOp", "--baselines", "cublas"), "no baseline 'cublas'"),
        (("RMSNormFwdOp", "--target", "cpu", "--timer", "cupti"), "times cuda"),
        (("RMSNormFwdOp", "--threads", "100000"), "--threads 100000"),
        (("RMSNormFwdOp", "--samples", "9", "3"), "larger than the most"),
        (("RMSNormFwdOp", "--certificates", "absent.json"), "cannot be read"),
        (("RMSNormFwdOp", "--verified", "absent.json"), "cannot be read"),
        (("RMSNormFwdOp", "--manifest", "absent.yaml"), "absent.yaml"),
    ],
)
def test_bad_input_to_run_is_exit_2_with_its_reason_and_writes_nothing(tmp_path, capsys, arguments, message):
    out = tmp_path / "r.jsonl"
    assert main(["run", *arguments, "--out", str(out), "--quiet"]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments", [("--row-budget", "-1"), ("--threads", "0"), ("--scale", "huge"), ("--row-budget", "x")]
)
def test_values_out_of_range_are_usage_errors(tmp_path, capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        main(["run", "RMSNormFwdOp", "--out", str(tmp_path / "r.jsonl"), *arguments])
    assert caught.value.code == 2


@pytest.mark.parametrize("command", [("summary",), ("report", "--out", "x.html"), ("compare",), ("history",)])
def test_a_file_that_is_no_results_file_is_exit_2(tmp_path, capsys, command):
    path = tmp_path / "r.jsonl"
    path.write_text("hello\n")
    name, *rest = command
    files = {"compare": [str(path), str(path)], "history": [str(tmp_path)]}.get(name, [str(path)])
    assert main([name, *files, *rest]) == 2
    assert "r.jsonl" in capsys.readouterr().err


def test_a_truncated_file_is_read_with_a_notice(tmp_path, capsys):
    path = tmp_path / "r.jsonl"
    write_results(path, make_row("A/x"), make_row("B/x"))
    path.write_bytes(path.read_bytes()[:-100])
    assert main(["summary", str(path), "--json"]) == 0
    captured = capsys.readouterr()
    assert "truncated" in captured.err
    assert json.loads(captured.out)["invalid"] == {"fewer_rows_than_declared": 1}


def test_merge_writes_one_file_and_refuses_what_does_not_compare(tmp_path, capsys):
    for name, device in (("a", "Test CPU"), ("b", "Test CPU"), ("c", "Other")):
        with ResultsWriter(tmp_path / name) as writer:
            writer.append(make_header((f"{name}/x",), device=device))
            writer.append(make_row(f"{name}/x"))
    out = tmp_path / "all.jsonl"
    assert main(["merge", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(out)]) == 0
    assert [row.id for row in read_results(out).rows] == ["a/x", "b/x"]
    capsys.readouterr()
    assert main(["merge", str(tmp_path / "a"), str(tmp_path / "c"), "--out", str(tmp_path / "no")]) == 2
    assert "device is 'Other', expected 'Test CPU'" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


def test_compare_exits_1_when_a_row_got_slower(tmp_path):
    old = write_results(tmp_path / "old.jsonl", make_row("A/x", own=1000))
    new = write_results(tmp_path / "new.jsonl", make_row("A/x", own=1200))
    assert main(["compare", old, new]) == 1
    assert main(["compare", new, old]) == 0


def test_a_report_that_cannot_be_written_is_exit_3(tmp_path, capsys):
    results = write_results(tmp_path / "r.jsonl", make_row("A/x"))
    assert main(["report", results, "--out", "/dev/full"]) == 3
    assert "cannot be written" in capsys.readouterr().err


def test_an_invalid_row_makes_run_exit_1(tmp_path, candidate_file):
    broken = candidate_file("def run(*inputs, **params):\n    raise ValueError('no')\n")
    arguments = [a for a in QUICK if a not in ("--fail-on", "never")]
    out = str(tmp_path / "r.jsonl")
    assert main(["run", *ROW, *arguments, "--candidate", broken, "--out", out]) == 1
    row = read_results(out).rows[0]
    assert [p.code.value for p in row.problems] == ["candidate_failed"]
    assert "ValueError: no" in row.problems[0].detail


def test_output_that_cannot_be_written_is_exit_3(tmp_path):
    command = [sys.executable, "-m", "tileops_bench", "schema"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 3
    assert ended.stderr == "tileops-bench: cannot write: No space left on device\n"


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_the_middle_is_130_and_the_process_group_is_gone(tmp_path, candidate_file, ending):
    slow = candidate_file("import time\n\ndef run(*inputs, **params):\n    time.sleep(600)\n")
    out = tmp_path / "r.jsonl"
    command = [
        sys.executable,
        "-m",
        "tileops_bench",
        "run",
        *ROW,
        *QUICK,
        "--candidate",
        slow,
        "--out",
        str(out),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (out.exists() and out.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(1.0)
    children = children_of(process.pid)
    process.send_signal(ending)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "0 rows of this run are kept" in errors
    assert read_results(out).missing
    assert children
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]


def children_of(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_baselines_and_schema_are_machine_readable(capsys):
    assert main(["baselines", "RMSNormFwdOp", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [b["name"] for b in listed] == ["torch-eager", "torch-compile", "liger", "flashinfer"]
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(json_schema()))
    assert main(["baselines", "NoSuchOp"]) == 2
