"""The reduction table: what each op accumulates. Adding a reduction with one accumulator is adding a line.

An element is lifted to a state, states are combined, the last state is finished. States are what intermediate
results are stored as, so a reduction that runs in several launches loses no precision between them.

Maxima and minima of floats are taken over order-preserving integers: 32-bit integers compare like the floats
they come from, -0 and +0 are one value, and NaN is made the greatest (or least) of all, so that it propagates
through every reduction primitive, including those that would drop it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilelang.language as T
from tvm import tirx

INT32_MAX = (1 << 31) - 1
# One above the least integer, which C has no literal for; no float but NaN maps to either end.
INT32_MIN = -INT32_MAX
INT64_MIN = -((1 << 63) - 1)


@dataclass(frozen=True)
class Reduction:
    """One reduction.

    Attributes:
        state: dtype of the accumulator.
        combine: "sum", "prod", "max" or "min" of states.
        identity: the state of no elements.
        lift: `(element, index along the reduced axis) -> state`; floats narrower than 64 bits arrive as
            float32.
        finish: `(state, number of elements) -> result`, the number as float32.
        empty: the result for no elements.
        neutral: the element that changes no state of elements before it.
        elements: how 16-bit floats are combined before one of them is lifted, if their extreme is one of
            them: "max_nan" or "min_nan".
        before: `element -> element` that this is the extreme of.
    """

    state: str
    combine: str
    identity: float | int
    lift: Callable[[Any, Any], Any]
    finish: Callable[[Any, Any], Any]
    empty: float | None
    neutral: float | int
    elements: str | None = None
    before: Callable[[Any], Any] = lambda x: x


def _const(value: int, dtype: str = "int32") -> Any:
    return tirx.const(value, dtype)


def order_key(x: Any) -> Any:
    """Return an int32 that compares as the float32 `x` does; NaN is undefined here, see `_nan_or`."""
    bits = T.reinterpret(x, "int32")
    # Sign and magnitude to two's complement; -0 becomes 0.
    magnitude = T.bitwise_and(bits, _const(INT32_MAX))
    return tirx.Select(bits < _const(0), _const(0) - magnitude, magnitude)


def from_order_key(key: Any) -> Any:
    """Return the float32 of a key; INT32_MAX and INT32_MIN, which only NaN maps to, give NaN."""
    magnitude = T.reinterpret(tirx.Select(key < _const(0), _const(0) - key, key), "float32")
    # The magnitude of both NaN keys is the bit pattern of a NaN.
    return tirx.Select(key < _const(0), -magnitude, magnitude)


def _nan_or(x: Any, nan_key: int, key: Any) -> Any:
    return tirx.Select(T.isnan(x), _const(nan_key), key)


def _indexed(key: Any, index: Any) -> Any:
    """Return an int64 whose order is that of the key, and among equal keys the reverse order of the index."""
    return T.shift_left(T.cast(key, "int64"), _const(32, "int64")) + T.cast(
        _const(INT32_MAX) - index, "int64"
    )


def _index_of(state: Any) -> Any:
    return _const(INT32_MAX, "int64") - T.bitwise_and(state, _const((1 << 32) - 1, "int64"))


def _non_zero(x: Any, index: Any) -> Any:
    return tirx.Select(x != tirx.const(0, x.dtype), _const(1), _const(0))


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction("float32", "sum", 0.0, lambda x, i: x, lambda s, n: s, 0.0, 0.0),
    "mean": Reduction("float32", "sum", 0.0, lambda x, i: x, lambda s, n: s / n, math.nan, 0.0),
    "l2_norm": Reduction("float32", "sum", 0.0, lambda x, i: x * x, lambda s, n: T.sqrt(s), 0.0, 0.0),
    "l1_norm": Reduction("float32", "sum", 0.0, lambda x, i: T.abs(x), lambda s, n: s, 0.0, 0.0),
    "prod": Reduction("float32", "prod", 1.0, lambda x, i: x, lambda s, n: s, 1.0, 1.0),
    "amax": Reduction(
        "int32",
        "max",
        INT32_MIN,
        lambda x, i: _nan_or(x, INT32_MAX, order_key(x)),
        lambda s, n: from_order_key(s),
        None,
        -math.inf,
        "max_nan",
    ),
    "inf_norm": Reduction(
        "int32",
        "max",
        INT32_MIN,
        lambda x, i: _nan_or(x, INT32_MAX, order_key(T.abs(x))),
        lambda s, n: from_order_key(s),
        None,
        0.0,
        "max_nan",
        lambda x: T.abs(x),
    ),
    "amin": Reduction(
        "int32",
        "min",
        INT32_MAX,
        lambda x, i: _nan_or(x, INT32_MIN, order_key(x)),
        lambda s, n: from_order_key(s),
        None,
        math.inf,
        "min_nan",
    ),
    "count_nonzero": Reduction(
        "int64", "sum", 0, lambda x, i: T.cast(_non_zero(x, i), "int64"), lambda s, n: s, 0.0, 0
    ),
    "any": Reduction("int32", "max", 0, _non_zero, lambda s, n: s, 0.0, 0),
    "all": Reduction("int32", "min", 1, _non_zero, lambda s, n: s, 1.0, 1),
    "argmax": Reduction(
        "int64",
        "max",
        INT64_MIN,
        lambda x, i: _indexed(_nan_or(x, INT32_MAX, order_key(x)), i),
        lambda s, n: _index_of(s),
        None,
        -math.inf,
    ),
    "argmin": Reduction(
        "int64",
        "max",
        INT64_MIN,
        lambda x, i: _indexed(_nan_or(x, INT32_MAX, T.bitwise_not(order_key(x))), i),
        lambda s, n: _index_of(s),
        None,
        math.inf,
    ),
}


def _intrinsic(name: str) -> Callable[[Any, Any], Any]:
    return lambda a, b: tirx.call_intrin(a.dtype, tirx.op.Op.get(name), a, b)


# Those that propagate NaN exist for 16-bit floats alone.
COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": lambda a, b: T.max(a, b),
    "min": lambda a, b: T.min(a, b),
    "max_nan": _intrinsic("tl.max_nan"),
    "min_nan": _intrinsic("tl.min_nan"),
}
REDUCE_OP = {"sum": T.reduce_sum, "max": T.reduce_max, "min": T.reduce_min}

FLOATS = frozenset({"float16", "bfloat16", "float32"})


def lifted(op: str, dtype: str, x: Any, index: Any) -> Any:
    """Return the state of one stored element: a state already if it is stored as one (a later launch)."""
    if dtype == "state":
        return x
    return REDUCTIONS[op].lift(T.cast(x, "float32") if dtype in FLOATS else x, index)
