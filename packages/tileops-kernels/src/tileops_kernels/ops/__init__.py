"""L2: the operators a caller sees, derived from the manifest at run time.

Every entry of the manifest is here twice: as a class and as a function.

>>> import torch
>>> from tileops_kernels.ops import SoftmaxFwdOp, softmax
>>> x = torch.zeros(1, 4)
>>> torch.equal(SoftmaxFwdOp(dim=-1)(x), softmax(x, -1))
True

Importing this module registers every op as `torch.ops.tileops.<function name>`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tileops_kernels.ops.base import Op
from tileops_kernels.ops.catalog import CATALOG
from tileops_kernels.ops.values import check_values
from tileops_manifest.errors import suggest

__all__ = ["Op", "check_values", "get_function", "get_op", "list_ops"]


def get_op(name: str) -> type[Op]:
    """Return the class of an op, by its name in the manifest.

    Raises:
        UnknownOpError: no entry has this name; the message suggests the nearest.

    >>> get_op("SoftmaxFwdOp").entry.function_name
    'softmax'
    """
    return CATALOG.op(name)


def get_function(name: str) -> Callable[..., Any]:
    """Return the functional form of an op, by its function name.

    Raises:
        UnknownOpError: no entry has this name; the message suggests the nearest.

    >>> get_function("softmax").__name__
    'softmax'
    """
    return CATALOG.function(name)


def list_ops(*, implemented: bool | None = None) -> list[str]:
    """Return the names of the ops in the manifest, sorted.

    Args:
        implemented: True for those that have kernels, False for those that are spec-only, None for all.
    """
    return CATALOG.names(implemented=implemented)


def __getattr__(name: str) -> Any:
    make = (
        CATALOG.op
        if name in CATALOG.manifest
        else CATALOG.function
        if name in CATALOG.op_of_function
        else None
    )
    if make is not None:
        # Kept as an attribute, so that the next access does not come here. Some shadow builtins (sum, any):
        # nothing in this module may use those.
        return globals().setdefault(name, make(name))
    hint = suggest(name, [*CATALOG.manifest.entries, *CATALOG.op_of_function])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name, obj=None)


def __dir__() -> list[str]:
    return sorted({*globals(), *CATALOG.manifest.entries, *CATALOG.op_of_function})


CATALOG.register_all()
