"""The command line: exit codes and messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tileops_tests import __version__
from tileops_tests.cli import main
from tileops_tests.record import read_record

SOFTMAX = Path(__file__).parent / "wrong" / "softmax.py"
ONE_CASE = ["--target", "cpu", "--case", "ragged-float16-*s0"]


def test_a_right_candidate_passes_and_leaves_a_record(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "record.json"
    arguments = ["verify", "SoftmaxFwdOp", "--candidate", f"{SOFTMAX}:right", "--json", str(path)]
    # One case cannot hold every kind of wrong result, so the whole tier is judged.
    assert main([*arguments, "--target", "cpu"]) == 0
    record = read_record(path)
    assert record.candidate == "softmax.py:right"
    assert record.ops[0].digests["candidate"]
    assert "1 of 1 ops passed" in capsys.readouterr().out


def test_a_wrong_candidate_exits_with_1_and_says_why(capsys: pytest.CaptureFixture) -> None:
    arguments = [
        "verify",
        "SoftmaxFwdOp",
        "--candidate",
        f"{SOFTMAX}:base_two",
        *ONE_CASE,
        "--json",
        "-",
    ]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ops"][0]["failures"][0]["code"] == "wrong_value"
    assert "wrong_value" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "SoftmxFwdOp"], "did you mean 'SoftmaxFwdOp'"),
        (["verify", "--candidate", "x.py:f"], "which does not exist"),
        (["verify", "SoftmaxFwdOp", "--candidate", "x.py"], "expected FILE:OBJECT"),
        (["verify", "SoftmaxFwdOp", "--candidate", "nowhere.py:f"], "does not exist"),
        (
            ["verify", "SoftmaxFwdOp", "--candidate", f"{SOFTMAX}:not a name"],
            "expected a dotted Python name",
        ),
        (
            ["verify", "SoftmaxFwdOp", "GemmFwdOp", "--candidate", f"{SOFTMAX}:right"],
            "expected exactly 1",
        ),
        (["verify", "SoftmaxFwdOp", "--case", "no-such-case"], "matches no case"),
        (["verify", "SoftmaxFwdOp", "--ledger", "/nonexistent.toml"], "cannot read the ledger"),
        (["explain", "SoftmaxFwdOp", "no-such-case"], "has no case 'no-such-case'"),
        (["list", "NoSuchOp"], "no entry named 'NoSuchOp'"),
    ],
)
def test_bad_input_is_one_clear_error_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    assert main([*arguments, "--target", "cpu"]) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "tileops-tests: error:" in text
    assert message in text


@pytest.mark.parametrize("text", ["verify --jobs 0", "verify --seed -1", "verify --tier tiny", "", "prove"])
def test_malformed_options_exit_with_2(text: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(text.split())
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_an_unwritable_record_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").touch()
    arguments = ["verify", "SoftmaxFwdOp", "--candidate", f"{SOFTMAX}:right", *ONE_CASE]
    assert main([*arguments, "--json", str(tmp_path / "file" / "record.json")]) == 3
    assert "cannot write the record" in capsys.readouterr().err


def test_output_that_cannot_be_written_exits_with_3() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "tileops_tests", "codes"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 3
    assert ended.stderr == "tileops-tests: error: cannot write: No space left on device\n"


def test_cuda_without_a_device_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["verify", "SoftmaxFwdOp", "--target", "cuda"]) == 2
    assert "no CUDA device" in " ".join(capsys.readouterr().err.split())


def test_cases_can_be_listed_and_explained(capsys: pytest.CaptureFixture) -> None:
    assert main(["list", "SoftmaxFwdOp", "--case", "ragged-float16-*"]) == 0
    case = capsys.readouterr().out.split()[-1]
    assert main(["explain", "SoftmaxFwdOp", case, "--target", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "e_base" in text
    assert "rejected" in text


def test_codes_and_schema_are_printed(capsys: pytest.CaptureFixture) -> None:
    assert main(["codes"]) == 0
    assert "insensitive_workload" in capsys.readouterr().out
    assert main(["schema"]) == 0
    assert "properties" in json.loads(capsys.readouterr().out)


def test_the_command_says_its_version(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tileops-tests {__version__}\n"
