"""What a baseline is: a named library callable for one op, with the conditions under which it applies."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CPU_AND_CUDA = ("cpu", "cuda")
CUDA = ("cuda",)


class UnsupportedCase(Exception):
    """A library says that it does not do this case (not that it broke)."""


@dataclass(frozen=True)
class Case:
    """What a baseline may know when it is built: the row's canonical params, dtypes, shapes and the device.

    `inputs` holds example tensors (shapes, dtypes, device), so that tables and workspaces can be made outside
    the timed call, as a user of the library would. Their values must not be used.
    """

    op: str
    params: Mapping[str, Any]
    inputs: Mapping[str, Any]
    target: str

    def dtype_param(self, name: str) -> torch.dtype:
        """A param that is a dtype, given as one or by its name."""
        import torch

        return getattr(torch, str(self.params[name]).removeprefix("torch."))


Make = Callable[[Case], Callable[..., Any]]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` through torch.compile, for one row: what was compiled before is forgotten.

    Torch keeps 8 programs per code object, which all rows of a function share (and all torch functions,
    through one wrapper of its own); what goes beyond would run eagerly under the name of a compiled baseline.
    Within a row that is an error.
    """
    import torch._dynamo

    torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(function, dynamic=False)


@dataclass(frozen=True)
class Baseline:
    """One baseline of one op.

    Attributes:
        op: manifest key.
        name: unique within the op, for example `torch-eager` or `sdpa-cudnn`.
        make: builds the callable; it is then called as `fn(*inputs)` with the inputs in the entry's order.
        dist: the distribution whose presence is needed and whose version is part of the digest.
        module: import name of that distribution.
        targets: devices it can run on.
        local: True for a composition written here because no library has the op.
    """

    op: str
    name: str
    make: Make = field(compare=False)
    dist: str = "torch"
    module: str = "torch"
    targets: tuple[str, ...] = CPU_AND_CUDA
    local: bool = False

    @property
    def library(self) -> str:
        """Distribution and version, or the distribution alone where it is not installed."""
        try:
            return f"{self.dist} {importlib.metadata.version(self.dist)}"
        except importlib.metadata.PackageNotFoundError:
            return self.dist

    @property
    def installed(self) -> bool:
        """Whether the library can be imported."""
        return importlib.util.find_spec(self.module) is not None

    @property
    def digest(self) -> str:
        """Identity for certificates: op, name, library version and the source of the module that builds
        it."""
        source = inspect.getsource(inspect.getmodule(self.make) or type(self))
        text = "\0".join((self.op, self.name, self.library, source))
        return hashlib.sha256(text.encode()).hexdigest()
