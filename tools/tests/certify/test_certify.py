"""From planted baselines to certificates to a benchmark run in which they cannot win, in real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest

import certify
import tileops_bench
from certify import Server
from tileops_bench.baselines import baseline

ROOT = Path(__file__).resolve().parents[3]
OP = "ExpFwdOp"
PLANTED = """
import os

from tileops_bench.baselines.base import UnsupportedCase


def _calls(function):
    return lambda case: function


def _wrong(x):
    return x.exp() * 1.01


def _break(x):
    raise RuntimeError("no kernel image")


def _crash(x):
    os.abort()


def _decline(x):
    raise UnsupportedCase("never")


_PLANTED = {"wrong": _wrong, "breaks": _break, "crashes": _crash, "declines": _decline}
OTHERS = (
    *OTHERS,
    *(Baseline("ExpFwdOp", name, _calls(f)) for name, f in _PLANTED.items()),
    Baseline("NoSuchFwdOp", "wrong", _calls(_wrong)),
)
"""
CANDIDATE = """
import torch

def run(input):
    return torch.exp(input)
"""


@dataclass(frozen=True)
class Planted:
    """A folder with a copy of the bench package that has further baselines."""

    folder: Path

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """Run Python on the copy and on everything else that this process sees."""
        path = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        return subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=self.folder, env=os.environ | {"PYTHONPATH": path}, text=True, capture_output=True,
        )  # fmt: skip

    def row(self, *options: object) -> dict:
        """The one row of a run."""
        out = self.folder / "r.jsonl"
        done = self.run(
            "-m", "tileops_bench", "run", OP, "--candidate", f"{self.folder}/candidate.py:run", "--out", out,
            "--overwrite", "--rows", "ragged", "--dtypes", "float32", "--target", "cpu",
            "--row-budget", "0.05", "--no-alone", "--quiet", "--fail-on", "never", *options,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text().splitlines()[1])


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(Path(tileops_bench.__file__).parent, folder / "tileops_bench")
    with (folder / "tileops_bench/baselines/elementwise.py").open("a") as module:
        module.write(PLANTED)
    (folder / "candidate.py").write_text(CANDIDATE)
    return Planted(folder)


@pytest.fixture(scope="module")
def made(planted: Planted) -> tuple[subprocess.CompletedProcess[str], dict[str, dict]]:
    """What the tool says and writes of two ops' baselines, but the one that takes long to compile."""
    names = ("torch-eager", "crashes", "breaks", "declines", "wrong")
    ops = (OP, "NoSuchFwdOp")
    out = planted.folder / "certificates.json"
    done = planted.run(
        ROOT / "tools/certify.py", *ops, "--target", "cpu", "--jobs", "2", "--out", out, "--baselines", *names
    )
    return done, {found["name"]: found for found in json.loads(out.read_text()).values()}


def test_certificates_are_of_what_was_judged_and_one_that_breaks_stops_nothing(made) -> None:
    done, certificates = made
    assert done.returncode == 1, done.stderr
    assert {name: found["status"] for name, found in certificates.items()} == {
        "torch-eager": "certified",
        "wrong": "rejected",
    }
    assert certificates["torch-eager"]["max_error"] < 1 < 4 < certificates["wrong"]["max_error"]
    assert Counter(line.split()[0] for line in done.stdout.splitlines()[:-1]) == {
        "certified": 1,
        "rejected": 1,
        "failed": 2,
        "unsupported": 1,
        "unjudged": 1,
    }
    assert "RuntimeError: no kernel image" in done.stdout
    assert "the process ended with signal SIGABRT" in done.stdout
    assert "no entry" in done.stdout


def test_rejected_baseline_is_not_run_and_a_row_without_another_is_no_win(planted: Planted, made) -> None:
    only = ("--baselines", "wrong")
    assert planted.row(*only)["against"] == "wrong"
    row = planted.row(*only, "--certificates", planted.folder / "certificates.json")
    assert row["verdict"] == "INVALID"
    # A busy machine may add that it was throttled.
    assert {problem["code"] for problem in row["problems"]} - {"throttled"} == {"baseline_failed"}
    (refused,) = (b for b in row["baselines"] if b["name"] == "wrong")
    assert (refused["status"], refused["certified"]) == ("rejected", "no")
    assert "summary" not in refused


def test_baseline_that_takes_too_long_has_failed_and_its_process_is_gone() -> None:
    server = Server(OP, "cpu", threads=1, timeout_s=0.0, cancel=Event())
    opinion = server.ask(baseline(OP, "torch-eager"))
    assert (opinion.status, opinion.detail) == ("failed", "no answer in 0 s")
    assert certify.multiprocessing.active_children() == []


def test_interrupt_ends_all_processes_and_keeps_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """It comes when the first op is done, while the second waits for a process that will never answer."""
    monkeypatch.setattr(Server, "ask", answer_once)
    write = certify.Book.write

    def interrupted(book: certify.Book) -> None:
        write(book)
        if book.counts:
            raise KeyboardInterrupt

    monkeypatch.setattr(certify.Book, "write", interrupted)
    out = tmp_path / "c.json"
    begun = time.monotonic()
    ops = ("ExpFwdOp", "AbsFwdOp")
    arguments = [*ops, "--target", "cpu", "--jobs", "2", "--baselines", "torch-eager", "--out", str(out)]
    assert certify.main(arguments) == 130
    assert time.monotonic() - begun < 60
    assert "interrupted" in capsys.readouterr().err
    assert [found["op"] for found in json.loads(out.read_text()).values()] == ["ExpFwdOp"]
    assert certify.multiprocessing.active_children() == []


def answer_once(server: Server, entry: certify.Baseline) -> certify.Opinion:
    """Stands for a process that answers for one op, and is ended by an interrupt for another."""
    if entry.op == "AbsFwdOp":
        assert server._cancel.wait(60)
        return certify.Opinion(entry.op, entry.name, "failed")
    return certify.Opinion(entry.op, entry.name, "certified", 0.5, 1)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["NoSuchFwdOp"], 2, "no baselines for 'NoSuchFwdOp'"),
        ([OP, "--baselines", "cublas"], 2, "no baseline 'cublas'"),
        ([OP, "--jobs", "0"], 2, "must be positive"),
        ([OP, "--timeout", "soon"], 2, "invalid float value"),
    ],
)
def test_wrong_call_is_refused(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as stop:
        certify.main([*arguments, "--target", "cpu", "--out", str(tmp_path / "c.json")])
    assert stop.value.code == status
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_file_that_cannot_be_written_is_known_before_anything_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(certify, "certify", lambda *_: pytest.fail("judged"))
    assert certify.main([OP, "--target", "cpu", "--out", str(tmp_path / "file/c.json")]) == 3
    assert "cannot be written" in capsys.readouterr().err
