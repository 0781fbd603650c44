"""The system C++ compiler: which one, what it is, and how it is called."""

from __future__ import annotations

import functools
import os
import platform
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..base import HEADERS
from ..errors import CompilationError, CompilerNotFoundError

COMPILER_VARIABLES: Final = ("TILEOPS_CXX", "CXX")
_CANDIDATES: Final = ("g++", "c++", "clang++")
SUPPORT_HEADERS: Final = Path(__file__).parent

# Nothing here changes what a program computes. Left out on purpose: -ffast-math, -fassociative-math,
# -fno-signed-zeros and -ffinite-math-only, which break compensated sums, signed zeros and NaN tests.
# Reductions that may be reassociated are marked one by one in the generated code, with `omp simd
# reduction`.
FLAGS: Final = (
    "-std=gnu++17",
    "-O3",
    "-march=native",
    "-fno-math-errno",  # no errno from sqrt and the like: nobody reads it
    "-fno-trapping-math",  # floating-point exceptions are never unmasked
    "-ffp-contract=fast",  # a * b + c in one rounding, as nvcc does by default
    "-fwrapv",  # integer overflow wraps, as on the GPU and in torch
    "-fno-strict-aliasing",  # T.view reads memory under another dtype
    "-fopenmp",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-pipe",
    "-w",
)


@dataclass(frozen=True)
class Compiler:
    """A compiler, what is always passed to it, and its version line."""

    path: str
    version: str
    arguments: tuple[str, ...] = ()


def find_compiler() -> Compiler:
    """The compiler that `$TILEOPS_CXX` or `$CXX` names, else g++, c++ or clang++ on the PATH.

    A variable may hold a command of several words, such as `ccache g++`.

    Raises `CompilerNotFoundError`, which says what to install.
    """
    for variable in COMPILER_VARIABLES:
        named = os.environ.get(variable)
        if named:
            # A path with spaces is one word where it is an executable; else the words are a command.
            first, *arguments = [named] if shutil.which(named) else _words(named)
            path = shutil.which(first)
            if path is None:
                raise CompilerNotFoundError(
                    f"${variable} names {first!r}, which is not an executable; {_INSTALL}"
                )
            return _describe(path, tuple(arguments))
    for candidate in _CANDIDATES:
        path = shutil.which(candidate)
        if path is not None:
            return _describe(path)
    raise CompilerNotFoundError(
        f"no C++ compiler on the PATH (looked for {', '.join(_CANDIDATES)}); {_INSTALL}"
    )


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command) or [command]
    except ValueError:  # a quotation mark without its fellow
        return [command]


# How compilers say that OpenMP's header or library is missing.
_NO_OPENMP: Final = re.compile(r"\bomp\.h\b|-lomp\b|-lgomp\b|libgomp\.spec")
_INSTALL: Final = "install one: `apt install g++`, `dnf install gcc-c++` or `conda install gxx`"


@functools.lru_cache(maxsize=8)
def _describe(path: str, arguments: tuple[str, ...] = ()) -> Compiler:
    try:
        shown = subprocess.run(
            [path, *arguments, "--version"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CompilerNotFoundError(f"{path} does not run ({error}); {_INSTALL}") from error
    return Compiler(path, shown.splitlines()[0] if shown else "unknown", arguments)


@functools.lru_cache(maxsize=1)
def instruction_set() -> str:
    """What -march=native depends on: a binary built for one machine must not be loaded on another."""
    lines = {platform.machine()}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in (
                "vendor_id",
                "cpu family",
                "model",
                "model name",
                "flags",
                "Features",
                "CPU part",
            ):
                lines.add(f"{name.strip()}={value.strip()}")
    except OSError:
        lines.add(platform.processor())
    return "\n".join(sorted(lines))


def build(compiler: Compiler, source: Path, output: Path) -> None:
    """Compile one file to a shared library; raises `CompilationError` with the compiler's own words."""
    command = [
        compiler.path,
        *compiler.arguments,
        *FLAGS,
        *(f"-I{folder}" for folder in (SUPPORT_HEADERS, HEADERS)),
        source.name,
        "-o",
        output.name,
    ]
    environment = {
        **os.environ,
        "TMPDIR": str(output.parent),
        "LC_ALL": "C",
    }  # its temporary files go where ours are removed
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, cwd=output.parent, env=environment, check=False
        )
    except OSError as error:
        raise CompilerNotFoundError(f"{compiler.path} does not run ({error}); {_INSTALL}") from error
    if result.returncode:
        hint = (
            "; install its OpenMP runtime (`apt install libomp-dev`)"
            if _NO_OPENMP.search(result.stderr)
            else ""
        )
        raise CompilationError(
            f"{compiler.version} failed with exit code {result.returncode}{hint}\n"
            f"{result.stderr.strip()[:4000]}",
            source.read_text(),
        )
