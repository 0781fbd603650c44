"""The functional form of an op: `rms_norm(x, weight, [4096])`, inputs in order, then params in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tileops_kernels.ops.plan import param_key
from tileops_kernels.ops.runtime import OpRuntime

__all__ = ["make_function"]


def make_function(runtime: OpRuntime, doc: str) -> Callable[..., Any]:
    """Return the functional form of an entry's op, with a real signature and docstring."""
    signature = runtime.signature
    count = len(signature.inputs)

    def function(*args: Any, **kwargs: Any) -> Any:
        values = signature.fill(args, kwargs)
        inputs, params = values[:count], values[count:]
        if torch.compiler.is_compiling():
            return runtime.call_overload(inputs, params)
        return runtime.call(inputs, params, tuple([param_key(value) for value in params]))

    function.__name__ = function.__qualname__ = runtime.entry.function_name
    function.__module__ = "tileops_kernels.ops"
    function.__doc__ = doc
    function.__signature__ = signature.function  # type: ignore[attr-defined]
    return function
