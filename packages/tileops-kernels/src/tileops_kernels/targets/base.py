"""What every target's compiled program is."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from .arguments import Signature
from .errors import CompilationError


def load_library(program: str, path: Path, source: str) -> ctypes.CDLL:
    """Load what a compiler made.

    Raises:
        CompilationError: the loader refuses it; says how to have it made again.
    """
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompilationError(
            f"{program}: the compiled library does not load: {error}; "
            "if it was made on another machine, `tileops-kernels cache clear` has it made again",
            source,
        ) from error


class CompiledProgram(ABC):
    """A tile program compiled for one target.

    Call it with torch tensors and Python numbers in the order of the program's parameters; outputs are
    allocated by the caller. Symbolic sizes are read off the tensors. `launcher` is the same call without
    any check, for callers that have checked already.

    Attributes:
        signature: the parameters and their dtypes, shapes and symbolic sizes.
        key: the content key under which the program is cached.
        launcher: ``launcher(*args) -> None``, unchecked; reads the symbolic sizes off the tensors.

    Raises:
        LaunchError: an argument's count, type, dtype, shape, stride or device does not fit; names the
            parameter.
    """

    device_type: ClassVar[str]
    launcher: Callable[..., None]

    def __init__(self, signature: Signature, key: str) -> None:
        self.signature = signature
        self.key = key
        self._check = signature.checker

    def __call__(self, *args: object) -> None:
        self._check(args, self.device_type)
        self.launcher(*args)

    @abstractmethod
    def bound(self, *example_args: object) -> Callable[..., None]:
        """A launcher for calls whose sizes are those of `example_args`: checks these once, reads no size
        again.

        The launcher takes as many arguments as the program; numbers are passed again. Of a tensor it uses
        only the address, so a tensor of another shape over the same elements will do, and callers need no
        views.
        """

    @property
    @abstractmethod
    def source(self) -> str:
        """The generated source of the device code."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.signature.program} {self.key[:12]}>"
