"""`doctor`: what this machine can run, and what to install for the rest."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from . import cache
from .api import Target, compile_program
from .cpu.compiler import find_compiler
from .cuda.toolkit import find_toolkit
from .errors import CacheError, TargetError
from .probe import successor

_PACKAGES = ("tileops-kernels", "tileops-manifest", "tilelang", "torch")
_NO_DEVICE = (
    "no CUDA device; a driver and a CUDA build of torch are needed to run there (lowering needs only nvcc)"
)
_NO_CUDA_TORCH = "this build of torch has no CUDA: install one from https://pytorch.org/get-started"


def doctor() -> dict[str, object]:
    """Examine the machine: compile and run a tile program on each target, look at compilers and cache.

    Returns:
        ``versions``; ``cpu`` and ``cuda``, each with ``works``, what was found, and ``problem`` (None where
        there is none); ``cache`` with ``path``, ``entries``, ``bytes`` and ``problem``; ``advice``, a list of
        what to do.

    >>> sorted(doctor())
    ['advice', 'cache', 'cpu', 'cuda', 'versions']
    """
    found: dict[str, object] = {"versions": _versions(), "cpu": _cpu(), "cuda": _cuda(), "cache": _cache()}
    problems = (found[part]["problem"] for part in ("cpu", "cuda", "cache"))
    found["advice"] = [problem for problem in dict.fromkeys(problems) if problem]
    return found


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None  # run from a checkout that is not installed
    versions["cuda of torch"] = torch.version.cuda
    return versions


def _cpu() -> dict[str, object]:
    report: dict[str, object] = {
        "works": False,
        "compiler": None,
        "threads": torch.get_num_threads(),
        "problem": None,
    }
    try:
        compiler = find_compiler()
        report |= {"compiler": compiler.path, "compiler version": compiler.version}
        _run_probe("cpu")
        report["works"] = True
    except TargetError as error:
        report["problem"] = str(error)
    return report


def _cuda() -> dict[str, object]:
    report: dict[str, object] = {
        "works": False,
        "lowers": False,
        "nvcc": None,
        "devices": [],
        "problem": None,
    }
    try:
        toolkit = find_toolkit()
        report |= {"lowers": True, "nvcc": toolkit.nvcc, "nvcc version": toolkit.version}
        if not torch.cuda.is_available():
            report["problem"] = _NO_DEVICE if torch.version.cuda else _NO_CUDA_TORCH
            return report
        report["devices"] = [_device(index) for index in range(torch.cuda.device_count())]
        _run_probe("cuda")
        report["works"] = True
    except TargetError as error:
        report["problem"] = str(error)
    return report


def _device(index: int) -> dict[str, object]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "index": index,
        "name": properties.name,
        "compute capability": f"{properties.major}.{properties.minor}",
        "memory": properties.total_memory,
    }


def _run_probe(target: Target) -> None:
    x = torch.arange(1000, dtype=torch.int32, device=target)
    y = torch.empty_like(x)
    compile_program(successor(), target)(x, y)
    if not torch.equal(y, x + 1):
        raise TargetError(
            f"the {target} target computes wrong results: please report this, with the output of doctor"
        )


def _cache() -> dict[str, object]:
    report: dict[str, object] = {"path": str(cache.root()), "entries": 0, "bytes": 0, "problem": None}
    try:
        cache.ensure_directory()
        report |= {"entries": len(cache.entries()), "bytes": cache.total_bytes()}
    except CacheError as error:
        report["problem"] = str(error)
    return report
