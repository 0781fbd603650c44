"""`compile_program`: the one way from a tile program to a callable. The only file that chooses a target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tvm import tirx

from .base import CompiledProgram
from .cpu import compile_cpu
from .cpu.context import Options
from .cuda import CudaArtifact, compile_cuda, lower_cuda
from .errors import TargetError

__all__ = ["CudaArtifact", "Target", "compile_program", "lower_cuda"]

Target = Literal["cpu", "cuda"]


def compile_program(
    prim_func: tirx.PrimFunc,
    target: Target,
    *,
    arch: str | None = None,
    parallel: bool = True,
    pass_configs: Mapping[str, object] | None = None,
    reverse_parallel: bool = False,
    poison: bool = False,
    strict: bool = False,
) -> CompiledProgram:
    """Compile a tile program, written in TileLang's plain CUDA form, for a target.

    Args:
        prim_func: the program (what ``@T.prim_func`` returns).
        target: ``"cpu"`` or ``"cuda"``.
        arch: cuda only: the architecture, such as ``"sm_90a"``; by default that of the current device.
        parallel: cpu only: run the grid on ``torch.get_num_threads()`` threads. Programs with atomics
            always run in order.
        pass_configs: options of TileLang's passes (cuda), and of its checks (cpu).
        reverse_parallel: cpu only, a race check: run every ``T.Parallel`` loop backwards. A result that
            changes depends on the order.
        poison: cpu only, a use-before-write check: fill block-local storage with NaN bytes before each block.
        strict: cpu only, a bounds check: a launch that touches an element outside a global tensor raises
            `TargetError`. For programs that switch off TileLang's own guards, which read zero and write
            nothing there; copies of tiles are bounded on every target.

    Returns:
        A `CompiledProgram`; the same program compiled again comes from memory, or from the cache on disk.

    Raises:
        UnsupportedTileOpError: the CPU target does not know an operation; names it and its source line.
        CompilerNotFoundError: no C++ compiler, or no nvcc; says what to install.
        LoweringError: TileLang refuses the program.
        CacheError: the cache directory cannot be written.
        TargetError: any other failure; all of the above are subclasses.
    """
    if not isinstance(prim_func, tirx.PrimFunc):
        raise TargetError(f"prim_func is {type(prim_func).__name__}, expected a TileLang PrimFunc")
    if target == "cpu":
        if arch is not None:
            raise TargetError(
                f"arch is {arch!r}, expected None for the cpu target, which compiles for the machine at hand"
            )
        return compile_cpu(prim_func, Options(parallel, reverse_parallel, poison, strict), pass_configs)
    if target == "cuda":
        if reverse_parallel or poison or strict:
            raise TargetError("reverse_parallel, poison and strict are checks of the cpu target")
        return compile_cuda(prim_func, arch, pass_configs)
    raise TargetError(f"target is {target!r}, expected 'cpu' or 'cuda'")
