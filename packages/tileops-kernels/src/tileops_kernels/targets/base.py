"""What every target's compiled program is."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final

import torch
import tvm_ffi

from .arguments import Signature, TensorParameter
from .errors import CompilationError, LaunchError

# Headers that generated code of every target includes.
HEADERS: Final = Path(__file__).parent
# What `call.h` answers to a call with a wrong number of arguments, plus that number.
_WRONG_COUNT: Final = -(1 << 31)
_MOST_ARGUMENTS: Final = 1 << 16
_address: Final = torch.Tensor.data_ptr


class Library:
    """What a compiler made, loaded.

    Attributes:
        call: the function that `call.h` exports; takes addresses and numbers, returns the program's status.
        functions: every other exported C function, by ctypes.

    Raises:
        CompilationError: the loader refuses it; says how to have it made again.
    """

    def __init__(self, program: str, path: Path, source: str) -> None:
        try:
            self.functions = ctypes.CDLL(str(path))
        except OSError as error:
            raise CompilationError(
                f"{program}: the compiled library does not load: {error}; "
                "if it was made on another machine, `tileops-kernels cache clear` has it made again",
                source,
            ) from error
        self._module = tvm_ffi.load_module(str(path))
        self.call: Callable[..., int] = self._module["call"]


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
        self._values = _addresses([isinstance(p, TensorParameter) for p in signature.parameters])

    def __call__(self, *args: object) -> None:
        self._check(args, self.device_type)
        self.launcher(*args)

    def _check_count(self, status: int) -> None:
        if status < 0 and (came := status - _WRONG_COUNT) < _MOST_ARGUMENTS:
            raise LaunchError(
                self.signature.program, "call", f"{came} arguments and sizes", "one of each parameter"
            )

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


def _addresses(is_tensor: Sequence[bool]) -> Callable[[Sequence[object]], Sequence[object]]:
    """From a call's arguments to what the C function takes: a tensor becomes its address."""
    leading = sum(is_tensor)
    if all(is_tensor[:leading]):  # tensors first, as in nearly every program: the loop runs in C
        return lambda args: (*map(_address, args[:leading]), *args[leading:])
    return lambda args: [_address(a) if t else a for a, t in zip(args, is_tensor, strict=True)]
