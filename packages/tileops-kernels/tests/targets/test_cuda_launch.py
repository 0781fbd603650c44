"""The host half of a CUDA program against a driver that prints what it was asked for. Needs nvcc, no GPU."""

from __future__ import annotations

import ctypes.util
import subprocess
import sys
from pathlib import Path

import pytest
import tilelang.language as T

from tileops_kernels.kernels import get_kernel
from tileops_kernels.targets import LoweringError, compile_program, lower_cuda
from tileops_kernels.targets.cuda import CudaProgram, find_toolkit

pytestmark = pytest.mark.usefixtures("nvcc")

CALLS = """
import ctypes, sys
fake, host, code, *values = sys.argv[1:]
if fake:
    ctypes.CDLL(fake)
library = ctypes.CDLL(host)
library.get_last_error.restype = ctypes.c_char_p
def step(status):
    if status:
        print("error", library.get_last_error().decode())
step(library.load(open(code, "rb").read()))
if fake:
    step(library.init(3))
    types = {"p": ctypes.c_void_p, "i": ctypes.c_int, "f": ctypes.c_float}
    step(library.call(*(types[v[0]](float(v[1:]) if v[0] == "f" else int(v[1:])) for v in values)))
ctypes.CDLL(None).fflush(None)
"""


def host_calls(program: CudaProgram, fake: Path | None, *values: str) -> list[str]:
    """Lines that the fake driver printed for load, init and one call, in a process of its own."""
    folder = Path(program._library.functions._name).parent
    command = [sys.executable, "-u", "-c", CALLS, str(fake or ""), str(folder / "launch.so")]
    done = subprocess.run(
        [*command, str(folder / "program.cubin"), *values], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with the driver's own name, so that the loader takes it for the driver once it is loaded."""
    library = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    source = Path(__file__).with_name("fake_driver.cpp")
    flags = [
        "-x",
        "c++",
        "--shared",
        "-Xcompiler",
        "-fPIC",
        "-cudart",
        "none",
        "-Xlinker",
        "-soname=libcuda.so.1",
    ]
    find_toolkit().run([*flags, str(source), "-o", str(library)], source.read_text())
    return library


def scale_program():
    m = T.dynamic("m")

    @T.prim_func
    def scale(x: T.Tensor((m, 256), "float32"), y: T.Tensor((m, 256), "float32"), factor: T.float32):
        with T.Kernel(m, threads=128) as row:
            tile = T.alloc_fragment((256,), "float32")
            T.copy(x[row, 0], tile)
            for i in T.Parallel(256):
                tile[i] = tile[i] * factor
            T.copy(tile, y[row, 0])

    return scale


def test_driver_is_asked_for_the_programs_grid_and_stream(fake_driver: Path) -> None:
    program = compile_program(scale_program(), "cuda", arch="sm_90a")
    lines = host_calls(program, fake_driver, "p4096", "p8192", "f2.5", "i7", "p11")
    assert lines[:2] == ["load 1", "kernel scale_kernel"]
    assert lines[-3:] == ["retain 0", "enter 3", "launch 7 1 1 block 128 shared 0 stream 11 attributes 0"]


def test_tensor_maps_and_shared_memory_are_asked_for(fake_driver: Path) -> None:
    kernel = get_kernel("GemmKernel")
    static = kernel.samples()[0]
    config = kernel.default_config(target="cuda", arch="sm_90a", **static)
    func = kernel.program(**static, config=config)
    program = compile_program(func, "cuda", arch="sm_90a", pass_configs=kernel.PASS_CONFIGS)
    lines = host_calls(program, fake_driver, "p4096", "p8192", "p16384", "i100", "p0")
    assert any(line.startswith("shared ") and line.endswith(" device 3") for line in lines)
    # A thread that has not touched the GPU has no context, and without one no map can be made.
    assert lines.index("enter 3") < lines.index(f"map 2 4096 {static['k']} 100")
    assert lines[-1].startswith("launch ")


def test_error_of_a_launch_names_the_kernel_and_the_drivers_words(fake_driver: Path) -> None:
    program = compile_program(scale_program(), "cuda", arch="sm_90a")
    lines = host_calls(program, fake_driver, "p4096", "p8192", "f2.5", "i7", "p13")
    assert lines[-1] == "error scale_kernel: as the fake was told (1)"


@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="this machine has a CUDA driver")
def test_without_a_driver_the_library_loads_and_says_what_is_missing() -> None:
    program = compile_program(scale_program(), "cuda", arch="sm_90a")
    assert host_calls(program, None)[0].startswith("error no CUDA driver: libcuda.so.1")


def test_barrier_over_the_grid_is_refused() -> None:
    @T.prim_func
    def twice(x: T.Tensor((256,), "float32")):
        with T.Kernel(2, threads=128) as block:
            for i in T.Parallel(128):
                x[block * 128 + i] = x[block * 128 + i] * 2.0
            T.sync_grid()
            for i in T.Parallel(128):
                x[block * 128 + i] = x[block * 128 + i] * 2.0

    with pytest.raises(LoweringError, match="barriers over the whole grid"):
        lower_cuda(twice, "sm_90a")
