"""Targets: how a tile program becomes a callable on a device.

>>> from tileops_kernels.targets import compile_program
>>> program = compile_program(prim_func, "cpu")      # doctest: +SKIP
>>> program(x, weight, y)                            # doctest: +SKIP
"""

from . import _tilelang  # noqa: F401  isort: skip  (first: it makes `tvm` importable)
from .api import CudaArtifact, compile_program, lower_cuda
from .base import CompiledProgram
from .doctor import doctor
from .errors import (
    CacheError,
    CompilationError,
    CompilerNotFoundError,
    LaunchError,
    LoweringError,
    TargetError,
    UnsupportedTileOpError,
)

__all__ = [
    "CacheError",
    "CompilationError",
    "CompiledProgram",
    "CompilerNotFoundError",
    "CudaArtifact",
    "LaunchError",
    "LoweringError",
    "TargetError",
    "UnsupportedTileOpError",
    "compile_program",
    "doctor",
    "lower_cuda",
]
