"""Tile programs whose arguments are data.

`T.prim_func` reads a signature from Python source. A program that comes with or without some tensors (a
residual, a bias, a second output) would be written out once for every combination; here the arguments are a
table, and what runs is one macro.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tilelang.language as T
from tilelang.language.eager.builder import Builder

__all__ = ["flat_tensors", "prim_func"]


def prim_func(name: str, parameters: Mapping[str, Any], body: Callable[..., None]) -> Any:
    """Return the tile program `name` that hands its arguments to `body`, by name.

    Args:
        name: of the program, which is that of the function in generated code.
        parameters: argument -> its annotation as `T.prim_func` takes it, in order.
        body: emits the program, by macros.

    >>> program = prim_func("nothing", {"x": T.Tensor((4,), "float32"), "n": T.int32}, lambda x, n: None)
    >>> program.attrs["global_symbol"], [str(p.dtype) for p in program.params]
    ('nothing', ['handle', 'int32'])
    """
    builder = Builder()
    with builder.prim_func(name):
        # A dtype makes a number's variable when it is called.
        body(
            **{
                argument: builder.arg(argument, kind() if callable(kind) else kind)
                for argument, kind in parameters.items()
            }
        )
    return builder.get()


def flat_tensors(dtype: str, **sizes: Any) -> dict[str, Any]:
    """Return the annotations of flat tensors of one dtype: argument -> number of elements."""
    return {name: T.Tensor((size,), dtype) for name, size in sizes.items()}
