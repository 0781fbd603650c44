"""`tileops-kernels`: doctor, cache, prewarm."""

from __future__ import annotations

import doctest
import importlib
import json

import pytest
import torch

from tileops_kernels import __version__, cli, dtypes
from tileops_kernels.targets import compile_program, doctor

COMPILER_VARIABLES = ("CXX", "TILEOPS_CXX")


def test_doctor_finds_what_works(private_cache):
    report = doctor()
    assert report["cpu"]["works"], report["cpu"]["problem"]
    assert report["cache"]["path"] == str(private_cache)
    assert report["cuda"]["works"] == bool(report["cuda"]["devices"])
    assert set(report["versions"]) >= {"python", "torch", "tilelang"}


def test_doctor_says_what_to_install(private_cache, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "/nonexistent")
    for variable in COMPILER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["doctor"]) == cli.EXIT_FAILED
    assert "apt install g++" in capsys.readouterr().out


def test_doctor_reports_a_cache_that_cannot_be_written(private_cache, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEOPS_CACHE_DIR", str(tmp_path / "file"))
    report = doctor()
    assert "TILEOPS_CACHE_DIR" in report["cache"]["problem"]
    assert report["cache"]["problem"] in report["advice"]
    assert not report["cpu"]["works"]


def test_doctor_prints_json(private_cache, capsys):
    assert cli.main(["doctor", "--json"]) == cli.EXIT_OK
    assert json.loads(capsys.readouterr().out)["cpu"]["works"]


def test_cache_list_and_clear(programs, private_cache, capsys):
    program = compile_program(programs.scaled(), "cpu")
    assert cli.main(["cache", "list"]) == cli.EXIT_OK
    assert f"{program.key}" in capsys.readouterr().out
    assert cli.main(["cache", "list", "--json"]) == cli.EXIT_OK
    assert [e["program"] for e in json.loads(capsys.readouterr().out)] == ["scale_rows"]
    assert cli.main(["cache", "clear"]) == cli.EXIT_OK
    capsys.readouterr()
    assert cli.main(["cache", "list"]) == cli.EXIT_OK
    assert capsys.readouterr().out.startswith("0 programs")


class Good:
    @staticmethod
    def serves_device(device):
        return True

    @staticmethod
    def samples():
        return ({"hidden": 1}, {"hidden": 2})

    @staticmethod
    def compiled(device, *, hidden):
        return None


class Bad(Good):
    @staticmethod
    def compiled(device, *, hidden):
        from tileops_kernels.targets import UnsupportedTileOpError

        if hidden == 1:
            raise UnsupportedTileOpError("T.teleport", "bad.py:7")


def test_prewarm_compiles_every_sample_and_fails_if_one_fails(capsys):
    assert cli._compile_samples([Good], "cpu") == cli.EXIT_OK
    assert capsys.readouterr().out.endswith("2 compiled, 0 failed\n")
    assert cli._compile_samples([Bad, Good], "cpu") == cli.EXIT_FAILED
    printed = capsys.readouterr()
    assert printed.out.endswith("3 compiled, 1 failed\n")
    assert "FAILED  Bad(hidden=1): the cpu target does not support T.teleport at bad.py:7" in printed.err


def test_prewarm_refuses_a_kernel_that_does_not_exist(capsys):
    assert cli.main(["prewarm", "NoSuchKernel"]) == cli.EXIT_USAGE
    assert "unknown kernel NoSuchKernel" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["cache"], ["cache", "burn"], ["doctor", "--xml"]])
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == cli.EXIT_USAGE
    assert "usage: tileops-kernels" in capsys.readouterr().err


def test_dtype_names_go_both_ways():
    for name, dtype in dtypes.TORCH_DTYPES.items():
        assert dtypes.torch_dtype(name) is dtype
        assert dtypes.dtype_name(dtype) == dtypes.from_tilelang(name) == name
        assert dtypes.itemsize(name) == dtype.itemsize


def test_a_tile_program_declares_every_dtype_but_complex_ones():
    for name, dtype in dtypes.TORCH_DTYPES.items():
        if dtype.is_complex:
            with pytest.raises(dtypes.UnknownDtypeError, match=name):
                dtypes.tilelang_dtype(name)
        else:
            assert dtypes.tilelang_dtype(dtype) == dtypes.tilelang_dtype(name) == name


@pytest.mark.parametrize("wrong", ["float12", "", None, 7])
def test_an_unknown_dtype_is_refused(wrong):
    with pytest.raises(dtypes.UnknownDtypeError, match="expected one of bool, uint8"):
        dtypes.torch_dtype(wrong)
    with pytest.raises(dtypes.UnknownDtypeError, match="complex32"):
        dtypes.dtype_name(torch.complex32)


@pytest.mark.parametrize("module", ["dtypes", "targets", "targets.doctor"])
def test_examples_of_a_module(module):
    found = doctest.testmod(
        importlib.import_module(f"tileops_kernels.{module}"), optionflags=doctest.ELLIPSIS
    )
    assert (found.failed, found.attempted > 0) == (0, True)


def test_the_command_says_its_version(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"tileops-kernels {__version__}\n"
