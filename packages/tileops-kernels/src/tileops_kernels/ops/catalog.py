"""All ops of the manifest by name: runtimes, classes and functions, each made once, when first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

from tileops_kernels.errors import ConfigError, UnknownOpError
from tileops_kernels.ops.base import Op, make_class
from tileops_kernels.ops.docstrings import docstring_of
from tileops_kernels.ops.functional import make_function
from tileops_kernels.ops.registry import FLOWS
from tileops_kernels.ops.runtime import OpRuntime
from tileops_manifest import Manifest, load_manifest

__all__ = ["CATALOG", "Catalog"]


class Catalog:
    """The ops of one manifest. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._runtimes: dict[str, OpRuntime] = {}
        self._classes: dict[str, type[Op]] = {}
        self._functions: dict[str, Callable[..., Any]] = {}

    @cached_property
    def manifest(self) -> Manifest:
        return load_manifest()

    @cached_property
    def op_of_function(self) -> dict[str, str]:
        """Function name -> op name."""
        return {entry.function_name: name for name, entry in self.manifest.entries.items()}

    def runtime(self, name: str) -> OpRuntime:
        """Return the runtime of an op; registers it with torch the first time.

        Raises:
            UnknownOpError: no entry has this name; suggests the nearest.
            ConfigError: torch schemas cannot say the type of one of its params.
        """
        with self._lock:
            if name not in self._runtimes:
                if name not in self.manifest:
                    raise UnknownOpError(name, self.manifest.entries)
                self._runtimes[name] = OpRuntime(self.manifest[name])
            return self._runtimes[name]

    def op(self, name: str) -> type[Op]:
        """Return the class form. Raises like `runtime`."""
        with self._lock:
            if name not in self._classes:
                runtime = self.runtime(name)
                self._classes[name] = make_class(runtime, docstring_of(runtime.entry, function=False))
            return self._classes[name]

    def function(self, name: str) -> Callable[..., Any]:
        """Return the functional form. Raises like `runtime`."""
        with self._lock:
            if name not in self._functions:
                if name not in self.op_of_function:
                    raise UnknownOpError(name, self.op_of_function)
                runtime = self.runtime(self.op_of_function[name])
                self._functions[name] = make_function(runtime, docstring_of(runtime.entry, function=True))
            return self._functions[name]

    def names(self, *, implemented: bool | None = None) -> list[str]:
        """Return op names, sorted; only those with (or without) a flow if `implemented` is given."""
        return sorted(
            name for name in self.manifest.entries if implemented is None or (name in FLOWS) is implemented
        )

    def register_all(self) -> None:
        """Register every op with torch, so that exported programs that name them can be loaded.

        An op whose params torch schemas cannot say is left out here and raises when it is asked for.
        """
        for name in self.manifest.entries:
            try:
                self.runtime(name)
            except ConfigError:
                continue


CATALOG = Catalog()
