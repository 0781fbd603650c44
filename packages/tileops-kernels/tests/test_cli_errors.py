"""The command line under bad input: a message and an exit code, never a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tileops_kernels import cli


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resources --jobs 0", "'0', expected a positive integer"),
        ("resources --jobs many", "'many', expected a positive integer"),
        ("resources --arch cpu", "'cpu', expected an architecture such as sm_80"),
        ("resources --arch sm_", "'sm_', expected an architecture such as sm_80"),
        ("cache burn", "invalid choice: 'burn'"),
    ],
)
def test_malformed_options_exit_with_2(text: str, message: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(text.split())
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def interrupted(_options: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_cache_clear", interrupted)
    assert cli.main(["cache", "clear"]) == 130
    assert capsys.readouterr().err.startswith("tileops-kernels: interrupted")


def test_output_that_cannot_be_written_exits_with_1() -> None:
    command = [sys.executable, "-m", "tileops_kernels", "cache", "list"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "tileops-kernels: output: No space left on device\n"
