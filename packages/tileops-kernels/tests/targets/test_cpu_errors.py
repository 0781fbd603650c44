"""The CPU target says what it cannot do, where, and what to install."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tileops_kernels.targets import (
    CompilationError,
    CompilerNotFoundError,
    LaunchError,
    TargetError,
    UnsupportedTileOpError,
    compile_program,
)


def line_of(text: str) -> int:
    lines = Path(__file__).with_name("conftest.py").read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize(
    ("name", "operation", "line"),
    [
        ("per_thread", "the thread index tx", "y[tx] = tx"),
        ("shuffled", "tl.warp_reduce_sum", "T.warp_reduce_sum(x[i])"),
    ],
)
def test_an_unknown_operation_is_named_with_its_line(programs, private_cache, name, operation, line):
    with pytest.raises(UnsupportedTileOpError) as caught:
        compile_program(getattr(programs, name)(), "cpu")
    assert caught.value.operation == operation
    assert re.search(rf"conftest\.py:{line_of(line)}\b", caught.value.location)
    assert operation in str(caught.value)


def test_a_dtype_that_cannot_be_held_is_named(programs, private_cache):
    with pytest.raises((UnsupportedTileOpError, ValueError), match="float4_e2m1fn"):
        compile_program(programs.four_bits(), "cpu")


def test_a_refused_program_leaves_nothing_in_the_cache(programs, private_cache):
    with pytest.raises(UnsupportedTileOpError):
        compile_program(programs.per_thread(), "cpu")
    assert [p for p in private_cache.rglob("*") if p.is_file()] == []


GOOD = (torch.zeros(5, 32), torch.zeros(5, 32), 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (GOOD[:2], "the argument count is 2, expected 3 (x, y, bias)"),
        ((None, *GOOD[1:]), "x is NoneType, expected a tensor"),
        ((GOOD[0].double(), *GOOD[1:]), "x.dtype is torch.float64, expected torch.float32"),
        ((GOOD[0].to("meta"), *GOOD[1:]), "x.device is meta, expected cpu"),
        ((GOOD[0][0], *GOOD[1:]), "x.shape is (32,), expected 2 dimensions"),
        ((GOOD[0], torch.zeros(4, 32), 0.5), "y.shape is (4, 32), expected (5, 32) = (rows, 32)"),
        ((torch.zeros(5, 33), *GOOD[1:]), "x.shape is (5, 33), expected (5, 32) = (rows, 32)"),
        ((torch.zeros(32, 5).T, *GOOD[1:]), "x.stride is (1, 5), expected that of a contiguous tensor"),
        ((*GOOD[:2], "1"), "bias is str, expected a number (float32)"),
        ((*GOOD[:2], 1j), "bias is complex, expected a number (float32)"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(programs, arguments, message):
    program = compile_program(programs.scaled(), "cpu")
    with pytest.raises(LaunchError) as caught:
        program(*arguments)
    assert str(caught.value) == f"scale_rows: {message}"


def test_a_launch_that_fits_is_not_refused(programs):
    program = compile_program(programs.scaled(), "cpu")
    for rows in (0, 1, 5):
        assert program(torch.zeros(rows, 32), torch.zeros(rows, 32), 1) is None


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("tpu", {}, "target is 'tpu', expected 'cpu' or 'cuda'"),
        ("cpu", {"arch": "sm_90a"}, "arch is 'sm_90a', expected None"),
        ("cuda", {"poison": True}, "checks of the cpu target"),
        ("cuda", {"strict": True}, "checks of the cpu target"),
    ],
)
def test_wrong_use_of_compile_program(programs, target, options, message):
    with pytest.raises(TargetError, match=re.escape(message)):
        compile_program(programs.scaled(), target, **options)


def test_something_else_than_a_program_is_refused():
    with pytest.raises(TargetError, match="prim_func is int, expected a TileLang PrimFunc"):
        compile_program(7, "cpu")


def test_a_missing_compiler_is_reported_with_what_to_install(programs, private_cache, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("TILEOPS_CXX", raising=False)
    with pytest.raises(CompilerNotFoundError, match=r"apt install g\+\+"):
        compile_program(programs.scaled(), "cpu")


def test_a_compiler_named_by_the_environment_must_exist(programs, private_cache, monkeypatch):
    monkeypatch.setenv("TILEOPS_CXX", "no-such-compiler")
    with pytest.raises(CompilerNotFoundError, match=r"\$TILEOPS_CXX names 'no-such-compiler'"):
        compile_program(programs.scaled(), "cpu")


def test_a_compiler_may_be_a_command_of_several_words(programs, private_cache, monkeypatch, tmp_path):
    wrapper = tmp_path / "wrap"
    wrapper.write_text('#!/bin/sh\necho "$@" >> "$0".calls\nexec "$@"\n')
    wrapper.chmod(0o755)
    plain = compile_program(programs.scaled(), "cpu").key
    monkeypatch.setenv("TILEOPS_CXX", f"{wrapper} g++ -fno-inline")
    assert compile_program(programs.scaled(), "cpu").key != plain
    calls = (tmp_path / "wrap.calls").read_text().splitlines()
    assert calls[0] == "g++ -fno-inline --version"
    assert calls[1].startswith("g++ -fno-inline -std=")


def test_a_quotation_mark_alone_is_no_command(programs, private_cache, monkeypatch):
    monkeypatch.setenv("TILEOPS_CXX", 'g++ "')
    with pytest.raises(CompilerNotFoundError, match="which is not an executable"):
        compile_program(programs.scaled(), "cpu")


def fake_compiler(path: Path, version: str, *, fail: bool = False) -> Path:
    """A compiler that reports `version`, and else is g++ or an error."""
    otherwise = 'echo "no room on this chip" >&2; exit 3' if fail else 'exec g++ "$@"'
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "{version}"; exit 0; }}\n{otherwise}\n')
    path.chmod(0o755)
    return path


def test_a_compiler_that_fails_is_quoted(programs, private_cache, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEOPS_CXX", str(fake_compiler(tmp_path / "broken", "Broken 1.0", fail=True)))
    with pytest.raises(
        CompilationError, match=r"Broken 1\.0 failed with exit code 3\nno room on this chip"
    ) as caught:
        compile_program(programs.scaled(), "cpu")
    assert "tileops_block" in caught.value.source
    assert list(private_cache.glob("cpu/*")) == []


def test_another_compiler_version_is_another_entry(programs, private_cache, monkeypatch, tmp_path):
    keys = set()
    for version in ("Fake 1.0", "Fake 2.0"):
        monkeypatch.setenv("TILEOPS_CXX", str(fake_compiler(tmp_path / version.replace(" ", ""), version)))
        keys.add(compile_program(programs.scaled(), "cpu").key)
    assert len(keys) == 2


def test_a_failed_device_assert_is_reported_with_its_message_and_line(programs, private_cache):
    program = compile_program(programs.asserted(), "cpu")
    program(torch.arange(8, dtype=torch.int32))
    with pytest.raises(
        TargetError, match=rf"refuse_negative: x is negative at .*conftest\.py:{line_of('T.device_assert')}"
    ):
        program(torch.arange(8, dtype=torch.int32) - 1)
    program(torch.arange(8, dtype=torch.int32))
