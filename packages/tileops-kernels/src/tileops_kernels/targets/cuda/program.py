"""Compile a tile program for a GPU, through the on-disk cache, and launch it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Final

import tilelang
import torch
from tvm import tirx

from ...memo import Memo
from .. import arguments, cache
from ..arguments import SCALAR_DTYPES, Signature, TensorParameter
from ..base import HEADERS, CompiledProgram, Library
from ..errors import TargetError
from .artifact import Resources, parse_resources
from .lowering import lower
from .toolkit import DEVICE_FLAGS, HOST_FLAGS, compile_device, compile_host, find_toolkit

_SOURCE: Final = "program.cu"
_CODE: Final = "program.cubin"
_HOST: Final = "launch.cpp"
_LIBRARY: Final = "launch.so"

_programs = Memo()


def current_arch() -> str:
    """The architecture of the current device, such as `sm_90a`; raises `TargetError` without one."""
    if not torch.cuda.is_available():
        raise TargetError(
            "no CUDA device is visible; name an architecture, such as arch='sm_90a', to compile"
        )
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def compile_cuda(
    func: tirx.PrimFunc, arch: str | None = None, pass_configs: Mapping[str, object] | None = None
) -> CudaProgram:
    """Compile, or take from the cache. Of threads that ask for one program at once, one compiles it."""
    arch, configs, toolkit = arch or current_arch(), dict(pass_configs or {}), find_toolkit()
    parts = (
        func.script(show_meta=True),
        arch,
        repr(sorted(configs.items())),
        toolkit.version,
        *DEVICE_FLAGS,
        *HOST_FLAGS,
    )
    key = cache.digest(_fingerprint(), *parts)

    def make() -> CudaProgram:
        signature = Signature.of(func)
        build = functools.partial(_build, func, signature, arch, configs)
        return CudaProgram(signature, key, cache.load("cuda", key) or cache.publish("cuda", key, build))

    return _programs.get(key, make)


def _build(
    func: tirx.PrimFunc, signature: Signature, arch: str, configs: Mapping[str, object], work: Path
) -> Mapping[str, object]:
    code = lower(func, arch, configs)
    source, host = work / _SOURCE, work / _HOST
    source.write_text(code.device)
    host.write_text(code.host)
    with ThreadPoolExecutor(1) as beside:
        hosted = beside.submit(compile_host, host, work / _LIBRARY)
        report = compile_device(source, work / _CODE, arch, configs)
        hosted.result()
    return {
        "program": signature.program,
        "compiler": find_toolkit().version,
        "arch": arch,
        "resources": asdict(parse_resources(report)),
        "dynamic_shared_bytes": code.dynamic_shared_bytes,
    }


@functools.lru_cache(maxsize=1)
def _fingerprint() -> str:
    """What generates the code is part of what a library's content depends on."""
    sha = hashlib.sha256(tilelang.__version__.encode())
    for path in (
        *sorted(Path(__file__).parent.glob("*.[hp]*")),
        Path(arguments.__file__),
        HEADERS / "call.h",
    ):
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()


class CudaProgram(CompiledProgram):
    """A tile program that runs on CUDA tensors, on their device and on torch's current stream there.

    Attributes:
        resources: registers, shared memory and spills, as ptxas reported them.
    """

    device_type = "cuda"

    def __init__(self, signature: Signature, key: str, entry: cache.CacheEntry) -> None:
        super().__init__(signature, key)
        self._source = entry.file(_SOURCE).read_text()
        self.resources = Resources(**entry.meta["resources"])
        self._library = Library(signature.program, entry.file(_LIBRARY), self._source)
        self._driver = self._library.functions
        self._driver.get_last_error.restype = ctypes.c_char_p
        self._code = entry.file(_CODE).read_bytes()
        self._loading = threading.Lock()
        self._loaded = False
        self._ready: set[int] = set()
        # The order in which the generated function takes sizes: shapes of all tensors, then strides.
        self._dimensions = tuple(sorted(signature.dimensions, key=lambda d: d.is_stride))
        tensors = [i for i, p in enumerate(signature.parameters) if isinstance(p, TensorParameter)]
        if not tensors:
            raise TargetError(f"{signature.program}: a program without a tensor has no device to run on")
        self._first_tensor = tensors[0]
        for p in signature.parameters:
            if not isinstance(p, TensorParameter) and p.dtype not in SCALAR_DTYPES:
                raise TargetError(
                    f"{signature.program}: {p.name} is {p.dtype}, expected one of {sorted(SCALAR_DTYPES)}"
                )

    @property
    def source(self) -> str:
        """The generated CUDA C++ of the kernels."""
        return self._source

    def bound(self, *args: object) -> Callable[..., None]:
        """Fix the symbolic sizes and the device to those of `args`: a launcher that reads only addresses.

        Later calls may pass tensors of any shape with the same bytes, so callers need no views.
        """
        self._check(args, self.device_type)
        index = args[self._first_tensor].device.index
        return self._launch_on(index, tuple(d.read(args) for d in self._dimensions))

    @functools.cached_property
    def launcher(self) -> Callable[..., None]:
        """The unchecked launch; sizes and device are read off the tensors."""
        first, dimensions, launches = self._first_tensor, self._dimensions, self._launch_on

        def launch(*args: object) -> None:
            launches(args[first].device.index, tuple(d.read(args) for d in dimensions))(*args)

        return launch

    def _launch_on(self, index: int, sizes: tuple[int, ...]) -> Callable[..., None]:
        """A launch on device `index` with given sizes."""
        if index not in self._ready:
            self._prepare(index)
        call, values, fail = self._library.call, self._values, self._fail
        stream, current = torch._C._cuda_getCurrentRawStream, torch._C._cuda_getDevice

        def launch(*args: object) -> None:
            if current() == index:
                status = call(*values(args), *sizes, stream(index))
            else:
                with torch.cuda.device(index):
                    status = call(*values(args), *sizes, stream(index))
            if status:
                fail(status)

        return launch

    def _prepare(self, index: int) -> None:
        """Hand the machine code to the driver, once; raise the kernels' shared-memory limit on a device."""
        with self._loading, torch.cuda.device(index):
            if not self._loaded and self._driver.load(self._code):
                self._fail(-1)
            self._loaded = True
            if self._driver.init(index):
                self._fail(-1)
            self._ready.add(index)

    def _fail(self, status: int) -> None:
        self._check_count(status)
        message = self._driver.get_last_error().decode(errors="replace")
        raise TargetError(f"{self.signature.program}: {message}")
