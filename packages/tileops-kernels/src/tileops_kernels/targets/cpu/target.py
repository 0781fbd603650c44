"""Compile a tile program for the CPU, through the on-disk cache, and launch it."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import tilelang
import torch
import tvm
from tilelang.engine.semantic_check import PreLowerSemanticCheck
from tvm import tirx

from ... import dtypes
from ...memo import Memo
from .. import arguments, cache
from ..arguments import Signature
from ..base import HEADERS, CompiledProgram, Library
from ..errors import LoweringError, TargetError
from .compiler import FLAGS, SUPPORT_HEADERS, build, find_compiler, instruction_set
from .context import Options
from .program import OUT_OF_MEMORY, translate

_LIBRARY: Final = "program.so"
_SOURCE: Final = "program.cpp"
_ASSERTS: Final = "asserts.json"

_programs = Memo()


def compile_cpu(
    func: tirx.PrimFunc, options: Options, pass_configs: Mapping[str, object] | None = None
) -> CpuProgram:
    """Compile, or take from the cache. Of threads that ask for one program at once, one compiles it."""
    text = func.script(show_meta=True)
    compiler = find_compiler()
    key = cache.digest(
        _fingerprint(),
        text,
        repr(options),
        repr(sorted((pass_configs or {}).items())),
        compiler.version,
        *compiler.arguments,
        instruction_set(),
        *FLAGS,
    )

    def make() -> CpuProgram:
        signature = Signature.of(func)
        build_entry = functools.partial(_build, func, signature, options, pass_configs)
        return CpuProgram(signature, key, cache.load("cpu", key) or cache.publish("cpu", key, build_entry))

    return _programs.get(key, make)


def _build(
    func: tirx.PrimFunc, signature: Signature, options: Options, pass_configs: Mapping | None, work: Path
) -> Mapping[str, object]:
    _check_semantics(func, pass_configs)
    translation = translate(func, signature, options)
    (work / _SOURCE).write_text(translation.source)
    compiler = find_compiler()
    build(compiler, work / _SOURCE, work / _LIBRARY)
    (work / _ASSERTS).write_text(json.dumps(translation.asserts))
    return {"program": signature.program, "compiler": compiler.version, "parallel": translation.parallel}


def _check_semantics(func: tirx.PrimFunc, pass_configs: Mapping[str, object] | None) -> None:
    """TileLang's own checks of the program as written: loop nests, fragment indices."""
    try:
        with tvm.transform.PassContext(opt_level=3, config=dict(pass_configs or {})):
            PreLowerSemanticCheck(tvm.IRModule({"main": func}))
    except Exception as error:  # TVM raises many classes, without a common base
        raise LoweringError(f"TileLang refuses the program: {error}") from error


@functools.lru_cache(maxsize=1)
def _fingerprint() -> str:
    """The rewrite is part of what a library's content depends on: our sources, and TileLang's version."""
    sha = hashlib.sha256(tilelang.__version__.encode())
    for path in sorted(
        [
            *SUPPORT_HEADERS.glob("*.py"),
            *SUPPORT_HEADERS.glob("*.h"),
            HEADERS / "call.h",
            Path(arguments.__file__),
            Path(dtypes.__file__),
        ]
    ):
        sha.update(path.name.encode() + path.read_bytes())
    return sha.hexdigest()


class CpuProgram(CompiledProgram):
    """A tile program that runs on CPU tensors."""

    device_type = "cpu"

    def __init__(self, signature: Signature, key: str, entry: cache.CacheEntry) -> None:
        super().__init__(signature, key)
        self._entry = entry
        self._asserts = tuple(json.loads(entry.file(_ASSERTS).read_text()))
        self._source = entry.file(_SOURCE).read_text()
        self._library = Library(signature.program, entry.file(_LIBRARY), self._source)

    @property
    def source(self) -> str:
        """The generated C++."""
        return self._source

    @functools.cached_property
    def launcher(self) -> Callable[..., None]:
        """The unchecked launch; sizes are read off the tensors."""
        dimensions, launches = self.signature.dimensions, self._launch_with

        def launch(*args: object) -> None:
            launches(tuple(d.read(args) for d in dimensions))(*args)

        return launch

    def bound(self, *example_args: object) -> Callable[..., None]:
        """See `CompiledProgram.bound`."""
        self._check(example_args, self.device_type)
        return self._launch_with(tuple(d.read(example_args) for d in self.signature.dimensions))

    def _launch_with(self, sizes: tuple[int, ...]) -> Callable[..., None]:
        """A launch with given sizes."""
        call, values, threads, fail = self._library.call, self._values, torch.get_num_threads, self._fail

        def launch(*args: object) -> None:
            status = call(threads(), *values(args), *sizes)
            if status:
                fail(status)

        return launch

    def _fail(self, status: int) -> None:
        self._check_count(status)
        if status == OUT_OF_MEMORY:
            raise MemoryError(f"{self.signature.program}: no memory for the blocks' working storage")
        raise TargetError(f"{self.signature.program}: {self._asserts[status - OUT_OF_MEMORY - 1]}")
