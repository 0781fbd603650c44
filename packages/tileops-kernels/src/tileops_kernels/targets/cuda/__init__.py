"""The `cuda` target: TileLang's lowering, nvcc, and a launcher of our own."""

from .artifact import CudaArtifact, lower_cuda
from .program import CudaProgram, compile_cuda
from .toolkit import Toolkit, find_toolkit

__all__ = ["CudaArtifact", "CudaProgram", "Toolkit", "compile_cuda", "find_toolkit", "lower_cuda"]
