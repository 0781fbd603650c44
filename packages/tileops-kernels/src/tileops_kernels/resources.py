"""What every kernel costs on an architecture: registers, shared memory and spills, without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from tileops_kernels.kernels import Kernel, get_kernel, list_kernels


@dataclass(frozen=True)
class KernelResources:
    """One kernel, one set of static arguments, one architecture.

    Attributes:
        kernel: class name.
        sample: the static arguments.
        arch: `sm_80`, `sm_90a`, ….
        registers: per thread.
        shared_bytes: per block, static and dynamic together.
        spill_bytes: stores and loads to local memory per thread.
        instructions: families of instructions that the code uses, sorted.
        error: why there is no code, or None.
    """

    kernel: str
    sample: Mapping[str, Any]
    arch: str
    registers: int = 0
    shared_bytes: int = 0
    spill_bytes: int = 0
    instructions: tuple[str, ...] = ()
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """A JSON-serialisable form."""
        return asdict(self) | {
            "sample": {k: v if isinstance(v, int | float | bool) else str(v) for k, v in self.sample.items()}
        }


def measure(
    kernels: Iterable[str] = (), archs: Iterable[str] = ("sm_80", "sm_90a"), *, jobs: int = 1
) -> Iterator[KernelResources]:
    """Lower and compile every sample of the named kernels (default: all), `jobs` at a time, in order.

    A kernel that is not written for an architecture is left out there.

    Raises:
        CompilerNotFoundError: no nvcc; says what to install.
        ConfigError: there is no such kernel.
    """
    from tileops_kernels.targets.cuda import find_toolkit

    find_toolkit()
    classes = [get_kernel(name) for name in tuple(kernels) or list_kernels()]
    archs = tuple(archs)
    work = [
        (cls, sample, arch)
        for cls in classes
        for sample in cls.samples()
        for arch in archs
        if cls.serves("cuda", arch)
    ]
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda item: _measure_one(*item), work)


def _measure_one(kernel: type[Kernel], sample: Mapping[str, Any], arch: str) -> KernelResources:
    from tileops_kernels.targets import TargetError

    try:
        found = kernel.lower(arch, **sample)
    except TargetError as error:
        return KernelResources(kernel.__name__, sample, arch, error=str(error))
    return KernelResources(
        kernel.__name__,
        sample,
        arch,
        registers=found.registers,
        shared_bytes=found.shared_bytes + found.dynamic_shared_bytes,
        spill_bytes=found.spill_store_bytes + found.spill_load_bytes,
        instructions=tuple(sorted(found.instructions)),
    )
