"""Machine code without a GPU: what a tile program costs on an architecture, and what it uses of it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tvm import tirx

from ..errors import LoweringError
from .lowering import lower
from .toolkit import compile_device, find_toolkit

_PROPERTIES: Final = re.compile(
    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers(.*?)$",
    re.DOTALL | re.MULTILINE,
)
_SHARED: Final = re.compile(r"(\d+) bytes smem")
# TileLang's matrix templates; where an architecture lacks the instruction, they compile to a trap.
_MATRIX_CALLS: Final = re.compile(r"\btl::(?:gemm|mma|wgmma)")
# Families of instructions, by how PTX spells them.
_INSTRUCTIONS: Final = {
    "wgmma": r"\bwgmma\.mma_async",
    "mma": r"\bmma\.sync",
    "tma": r"\bcp\.async\.bulk",
    "cp.async": r"\bcp\.async\.c[ag]",
    "ldmatrix": r"\bldmatrix",
    "mbarrier": r"\bmbarrier",
    "setmaxnreg": r"\bsetmaxnreg",
    "vector128": r"\b(?:ld|st)\.global[\w.:]*\.v(?:4\.[bfu]32|2\.[bfu]64|8\.[bf]16)",
}


@dataclass(frozen=True)
class Resources:
    """What ptxas reported; over several kernels, the largest of each."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int


@dataclass(frozen=True)
class CudaArtifact:
    """A tile program compiled to machine code for one architecture.

    Attributes:
        source: the generated CUDA C++.
        cubin: the machine code.
        registers: per thread.
        stack_bytes, spill_store_bytes, spill_load_bytes: local memory per thread; spills should be 0.
        shared_bytes: static shared memory per block.
        dynamic_shared_bytes: shared memory per block that the launch asks for.
        instructions: the families found, of those in `_INSTRUCTIONS`: wgmma, mma, tma, cp.async and more.
    """

    arch: str
    source: str
    cubin: bytes
    registers: int
    stack_bytes: int
    shared_bytes: int
    dynamic_shared_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    instructions: frozenset[str]


def lower_cuda(
    prim_func: tirx.PrimFunc, arch: str = "sm_90a", *, pass_configs: Mapping[str, object] | None = None
) -> CudaArtifact:
    """Compile a tile program to machine code. Needs nvcc, no GPU.

    Raises:
        CompilerNotFoundError: no nvcc; says what to install.
        LoweringError: TileLang refuses the program, or the architecture lacks what it asks for.
        CompilationError: nvcc refuses the generated code.
    """
    find_toolkit()
    configs = pass_configs or {}
    code = lower(prim_func, arch, configs)
    with tempfile.TemporaryDirectory(prefix="tileops-") as scratch:
        source, cubin = Path(scratch, "program.cu"), Path(scratch, "program.cubin")
        source.write_text(code.device)
        report = compile_device(source, cubin, arch, configs, keep=Path(scratch))
        ptx = Path(scratch, "program.ptx").read_text()
        binary = cubin.read_bytes()
    instructions = frozenset(name for name, pattern in _INSTRUCTIONS.items() if re.search(pattern, ptx))
    if _MATRIX_CALLS.search(code.device) and not instructions & {"wgmma", "mma"}:
        raise LoweringError(f"{arch} has no matrix instruction for the program's dtypes: its code only traps")
    used = parse_resources(report)
    return CudaArtifact(
        arch=arch,
        source=code.device,
        cubin=binary,
        registers=used.registers,
        stack_bytes=used.stack_bytes,
        shared_bytes=used.shared_bytes,
        dynamic_shared_bytes=code.dynamic_shared_bytes,
        spill_store_bytes=used.spill_store_bytes,
        spill_load_bytes=used.spill_load_bytes,
        instructions=instructions,
    )


def parse_resources(report: str) -> Resources:
    """Read what `ptxas -v` printed.

    >>> text = '''ptxas info    : Function properties for k
    ...     0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads
    ... ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem'''
    >>> parse_resources(text)
    Resources(registers=40, stack_bytes=0, shared_bytes=1024, spill_store_bytes=8, spill_load_bytes=4)
    """
    found = _PROPERTIES.findall(report)
    if not found:
        raise LoweringError(f"nvcc reported no kernel: {report.strip()[:400]}")
    shared = [int(m.group(1)) if (m := _SHARED.search(rest)) else 0 for *_, rest in found]
    stack, stores, loads, registers = (max(int(row[i]) for row in found) for i in range(4))
    return Resources(registers, stack, max(shared), stores, loads)
