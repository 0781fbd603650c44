"""The CUDA target as far as it goes without a GPU: machine code, its cost, and errors that say what to do."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tilelang.language as T
import torch

from tileops_kernels import cli
from tileops_kernels.targets import (
    CompilationError,
    CompilerNotFoundError,
    LoweringError,
    TargetError,
    compile_program,
    lower_cuda,
)
from tileops_kernels.targets.cuda import find_toolkit, toolkit
from tileops_kernels.targets.cuda.artifact import parse_resources
from tileops_kernels.targets.cuda.lowering import lower

needs_nvcc = pytest.mark.usefixtures("nvcc")


def scale_program(n=256, dtype="float32"):
    m = T.dynamic("m")

    @T.prim_func
    def scale(x: T.Tensor((m, n), dtype), y: T.Tensor((m, n), dtype), factor: T.float32):
        with T.Kernel(m, threads=128) as row:
            tile = T.alloc_fragment((n,), dtype)
            T.copy(x[row, 0], tile)
            for i in T.Parallel(n):
                tile[i] = tile[i] * factor
            T.copy(tile, y[row, 0])

    return scale


def fp8_program():
    @T.prim_func
    def product(
        a: T.Tensor((64, 64), "float8_e4m3fn"),
        b: T.Tensor((64, 64), "float8_e4m3fn"),
        d: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128) as _:
            a_shared = T.alloc_shared((64, 64), "float8_e4m3fn")
            b_shared = T.alloc_shared((64, 64), "float8_e4m3fn")
            acc = T.alloc_fragment((64, 64), "float32")
            T.clear(acc)
            T.copy(a, a_shared)
            T.copy(b, b_shared)
            T.gemm(a_shared, b_shared, acc, transpose_B=True)
            T.copy(acc, d)

    return product


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_machine_code_without_a_gpu(arch: str) -> None:
    found = lower_cuda(scale_program(), arch)
    assert found.cubin.startswith(b"\x7fELF")
    assert found.registers > 0
    assert found.spill_store_bytes == found.spill_load_bytes == 0
    assert "scale_kernel" in found.source


@needs_nvcc
def test_library_compiles_and_loads_without_a_gpu() -> None:
    program = compile_program(scale_program(), "cuda", arch="sm_90a")
    assert program.device_type == "cuda"
    assert program.resources.registers > 0
    assert compile_program(scale_program(), "cuda", arch="sm_90a") is program


@needs_nvcc
def test_matrix_product_that_an_architecture_lacks_is_refused() -> None:
    with pytest.raises(LoweringError, match="sm_80 has no matrix instruction"):
        lower_cuda(fp8_program(), "sm_80")
    assert lower_cuda(fp8_program(), "sm_90a").instructions & {"wgmma", "mma"}


@needs_nvcc
def test_cpu_tensor_is_refused_at_launch() -> None:
    program = compile_program(scale_program(), "cuda", arch="sm_90a")
    x = torch.empty(4, 256)
    with pytest.raises(TargetError, match=r"x\.device is cpu, expected cuda"):
        program(x, x, 2.0)


def test_architecture_of_another_form_is_refused() -> None:
    with pytest.raises((TargetError, CompilerNotFoundError), match=r"hopper|no CUDA compiler"):
        lower_cuda(scale_program(), "hopper")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_no_device_asks_for_an_architecture() -> None:
    with pytest.raises((TargetError, CompilerNotFoundError), match=r"arch='sm_90a'|no CUDA compiler"):
        compile_program(scale_program(), "cuda")


def test_missing_nvcc_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit.os, "access", lambda *_: False)
    with pytest.raises(CompilerNotFoundError, match=r"nvidia-cuda-nvcc"):
        lower_cuda(scale_program(), "sm_90a")


@needs_nvcc
def test_code_that_nvcc_refuses_carries_its_words(tmp_path: Path) -> None:
    source = tmp_path / "broken.cu"
    source.write_text("this is no C++")
    with pytest.raises(CompilationError, match="error"):
        find_toolkit().run(["-cubin", str(source), "-o", str(tmp_path / "x.cubin")], source.read_text())


def test_report_without_a_kernel_is_refused() -> None:
    with pytest.raises(LoweringError, match="reported no kernel"):
        parse_resources("nothing here")


@needs_nvcc
def test_resources_command_writes_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "resources.json"
    assert cli.main(["resources", "SplitKSumKernel", "--arch", "sm_90a", "--json", str(out)]) == 0
    records = json.loads(out.read_text())
    assert {r["arch"] for r in records} == {"sm_90a"}
    assert all(r["registers"] > 0 for r in records)
    assert "0 failed or with spills" in capsys.readouterr().out


def test_resources_of_an_unknown_kernel_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["resources", "NoKernel"]) == 2
    assert "NoKernel" in capsys.readouterr().err


def test_threads_lower_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """TileLang traces Python of its own while it lowers a matrix product."""
    inside, most = [], []

    def slow(func, target):
        inside.append(func)
        time.sleep(0.002)
        most.append(len(inside))
        inside.pop()
        raise ValueError("seen")

    monkeypatch.setattr("tilelang.lower", slow)
    program = scale_program()
    with ThreadPoolExecutor(8) as pool:
        lowered = [pool.submit(lower, program, "sm_90a", {}) for _ in range(8)]
        assert all(isinstance(future.exception(), LoweringError) for future in lowered)
    assert most == [1] * 8
