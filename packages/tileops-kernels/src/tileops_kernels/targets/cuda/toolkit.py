"""Finds nvcc and runs it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

from ..base import HEADERS
from ..errors import CompilationError, CompilerNotFoundError

# TileLang's templates need C++20; `-Xptxas -v` makes every build report registers, shared memory and spills.
DEVICE_FLAGS: Final = ("-std=c++20", "-O3", "-w", "-lineinfo", "--expt-relaxed-constexpr", "-Xptxas", "-v")
# The host half is plain C++ without the runtime library: it calls the driver.
HOST_FLAGS: Final = ("-x", "c++", "-std=c++17", "-O2", "--shared", "-Xcompiler", "-fPIC", "-cudart", "none")
_HOMES: Final = ("CUDA_HOME", "CUDA_PATH")
_PIP_FOLDERS: Final = ("nvidia/cu13", "nvidia/cuda_nvcc")


@dataclass(frozen=True)
class Toolkit:
    """A CUDA compiler: its path, and its version as it prints it."""

    nvcc: str
    version: str

    def run(self, arguments: Sequence[str], source: str) -> str:
        """Run nvcc and return what it printed.

        Raises:
            CompilationError: nvcc refused the code; carries its messages and the source.
        """
        done = subprocess.run([self.nvcc, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise CompilationError(f"nvcc refused the generated code:\n{done.stderr[-4000:]}", source)
        return done.stdout + done.stderr


def find_toolkit() -> Toolkit:
    """Find nvcc: `$CUDA_HOME`, `$CUDA_PATH`, `PATH`, then a pip-installed one.

    Raises:
        CompilerNotFoundError: there is none; says what to install.
    """
    candidates = [Path(os.environ[name]) / "bin/nvcc" for name in _HOMES if os.environ.get(name)]
    on_path = shutil.which("nvcc")
    candidates += [Path(on_path)] if on_path else []
    candidates += [Path("/usr/local/cuda/bin/nvcc")]
    candidates += [Path(sysconfig.get_paths()["purelib"]) / folder / "bin/nvcc" for folder in _PIP_FOLDERS]
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return Toolkit(str(candidate), _version(str(candidate)))
    raise CompilerNotFoundError(
        "no CUDA compiler found; install the CUDA toolkit and put nvcc on PATH (or set CUDA_HOME), "
        "or `pip install nvidia-cuda-nvcc nvidia-cuda-cccl`"
    )


@functools.lru_cache(maxsize=8)
def _version(nvcc: str) -> str:
    printed = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release [\d.]+, (V[\d.]+)", printed)
    return found.group(1) if found else printed.strip()


def compile_device(
    source: Path, cubin: Path, arch: str, pass_configs: Mapping[str, object], *, keep: Path | None = None
) -> str:
    """Kernels to machine code for exactly one architecture; returns what ptxas reported.

    `keep` is a folder in which the PTX stays.
    """
    flags = [*DEVICE_FLAGS, "-gencode", f"arch={arch.replace('sm_', 'compute_')},code={arch}"]
    flags += map(str, pass_configs.get("tl.device_compile_flags") or ())
    flags += ["--use_fast_math"] if pass_configs.get("tl.enable_fast_math") else []
    flags += ["--keep", "--keep-dir", str(keep)] if keep else []
    includes = (f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}")
    return find_toolkit().run(
        [*flags, *includes, "-cubin", str(source), "-o", str(cubin)], source.read_text()
    )


def compile_host(source: Path, library: Path) -> None:
    """A host function to a library that loads with or without a GPU."""
    includes = [f"-I{Path(__file__).parent}", f"-I{HEADERS}"]
    find_toolkit().run([*HOST_FLAGS, *includes, str(source), "-o", str(library)], source.read_text())
