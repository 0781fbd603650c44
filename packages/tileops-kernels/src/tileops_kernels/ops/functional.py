"""The functional form of an op: `rms_norm(x, weight, [4096])`, inputs in order, then params in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tileops_kernels.ops.plan import param_key
from tileops_kernels.ops.runtime import OpRuntime

_is_compiling = torch.compiler.is_compiling

__all__ = ["make_function"]


def make_function(runtime: OpRuntime, doc: str) -> Callable[..., Any]:
    """Return the functional form of an entry's op, with a real signature and docstring."""
    signature = runtime.signature
    count = len(signature.inputs)

    call = runtime.call

    def function(*args: Any, **kwargs: Any) -> Any:
        values = signature.fill(args, kwargs)
        if _is_compiling():
            return runtime.call_overload(values[:count], values[count:])
        # Without keywords, what is not in `args` has its default: the key may leave it out.
        given = values if kwargs else args
        return call(values[:count], values[count:], tuple([param_key(value) for value in given[count:]]))

    function.__name__ = function.__qualname__ = runtime.entry.function_name
    function.__module__ = "tileops_kernels.ops"
    function.__doc__ = doc
    function.__signature__ = signature.function  # type: ignore[attr-defined]
    return function
