"""The expression table of the elementwise ops: adding an op is adding a line.

An expression takes a `Math` (how to spell exp and division at the precision the output can show), its inputs
and its run-time scalars, and returns the result. Float inputs arrive as float32 and are rounded once, at the
output; integers stay in their own type and wrap as C does. Expressions propagate NaN exactly where PyTorch
does: a comparison with NaN is false, so `Select(a > b or isnan(a), a, b)` returns whichever of the two is
NaN.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilelang.language as T
from tvm import tirx

LOG2_E = math.log2(math.e)
SQRT_HALF = math.sqrt(0.5)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
GELU_CUBIC = 0.044715


@dataclass(frozen=True)
class Math:
    """Spellings of the expensive functions.

    Attributes:
        exp: e**x.
        divide: a / b, for b of ordinary magnitude.
    """

    exp: Callable[[Any], Any]
    divide: Callable[[Any, Any], Any]


PRECISE = Math(exp=lambda x: T.exp(x), divide=lambda a, b: a / b)

# For 16-bit outputs. exp2(x * log2 e) is off by |x| * 6e-8 relative, rcp by 1 ulp of float32: both far below
# half an ulp of the output (2^-12 for float16), at half the instructions; at full rate these are what limits
# a memory-bound op.
FAST = Math(exp=lambda x: T.exp2(x * T.float32(LOG2_E)), divide=lambda a, b: a * T.fast_rcp(b))


def math_for(out_dtype: str) -> Math:
    """Return the spellings whose error an output of this dtype cannot show."""
    return FAST if out_dtype in ("float16", "bfloat16") else PRECISE


def select(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`; both are evaluated."""
    return tirx.Select(condition, a, b)


def is_nan(x: Any) -> Any:
    """True for NaN. (`x != x` would be simplified to false by the compiler.)"""
    return T.isnan(x)


def maximum(a: Any, b: Any) -> Any:
    """NaN-propagating maximum."""
    if _is_float(a):
        return select(tirx.any(a > b, is_nan(a)), a, b)
    return T.max(a, b)


def minimum(a: Any, b: Any) -> Any:
    """NaN-propagating minimum."""
    if _is_float(a):
        return select(tirx.any(a < b, is_nan(a)), a, b)
    return T.min(a, b)


def silu(m: Math, x: Any) -> Any:
    """x * sigmoid(x)."""
    return m.divide(x, 1 + m.exp(-x))


def gelu(m: Math, x: Any) -> Any:
    """x * Phi(x), Phi the normal distribution function."""
    return T.float32(0.5) * x * (1 + T.erf(x * T.float32(SQRT_HALF)))


def gelu_tanh(m: Math, x: Any) -> Any:
    """The tanh approximation of gelu, through 0.5 * (1 + tanh(u)) == sigmoid(2 * u)."""
    u = T.float32(SQRT_2_OVER_PI) * (x + T.float32(GELU_CUBIC) * x * x * x)
    return m.divide(x, 1 + m.exp(T.float32(-2.0) * u))


def _is_float(x: Any) -> bool:
    return str(x.dtype).startswith(("float", "bfloat"))


def _absolute(x: Any) -> Any:
    if str(x.dtype).startswith("uint"):
        return x
    return T.abs(x) if _is_float(x) else select(x < tirx.const(0, x.dtype), _negative(x), x)


def _negative(x: Any) -> Any:
    return -x if _is_float(x) else tirx.const(0, x.dtype) - x


def _floor_divide(a: Any, b: Any) -> Any:
    """Python's floor division. Rounding a / b can only reach the integer above, never fall below the one
    beneath: the sign of the exact remainder (one fma) tells, and then one is taken off. Infinite and zero
    divisors as PyTorch.
    """
    infinity = T.infinity("float32")
    quotient = T.floor(a / b)
    remainder = select(T.abs(b) == infinity, a, T.fma(-quotient, b, a))
    too_large = tirx.all(
        remainder != 0, tirx.any(tirx.all(remainder < 0, b > 0), tirx.all(remainder > 0, b < 0))
    )
    floored = select(too_large, quotient - 1, quotient)
    return select(b == 0, a / b, select(T.abs(a) == infinity, T.float32(math.nan), floored))


@dataclass(frozen=True)
class Expression:
    """One elementwise op.

    Attributes:
        value: `(math, inputs, scalars) -> result`.
        inputs: number of tensors.
        compute: "arithmetic" (floats as float32, integers as they are), "float" (float32 always) or "native"
            (as
            stored: bits are moved, not computed with).
        on_bool: the expression for bool tensors (stored as 0 and 1) where it is another one.
    """

    value: Callable[[Math, list, list], Any]
    inputs: int = 1
    compute: str = "arithmetic"
    on_bool: Callable[[Math, list, list], Any] | None = None


def _unary(fn: Callable[[Math, Any], Any], **kwargs: Any) -> Expression:
    return Expression(lambda m, x, p: fn(m, x[0]), **kwargs)


def _binary(fn: Callable[[Any, Any], Any], **kwargs: Any) -> Expression:
    return Expression(lambda m, x, p: fn(x[0], x[1]), inputs=2, **kwargs)


EXPRESSIONS: dict[str, Expression] = {
    # unary
    "relu": _unary(lambda m, x: select(x < 0, T.float32(0), x)),
    "gelu": _unary(gelu),
    "gelu_tanh": _unary(gelu_tanh),
    "silu": _unary(silu),
    "exp": _unary(lambda m, x: m.exp(x)),
    "log": _unary(lambda m, x: T.log(x)),
    "sqrt": _unary(lambda m, x: T.sqrt(x)),
    "rsqrt": _unary(lambda m, x: T.rsqrt(x)),
    "abs": _unary(lambda m, x: _absolute(x)),
    "neg": _unary(lambda m, x: _negative(x)),
    "reciprocal": _unary(lambda m, x: T.float32(1) / x, compute="float"),
    "sigmoid": _unary(lambda m, x: m.divide(T.float32(1), 1 + m.exp(-x))),
    "tanh": _unary(lambda m, x: T.tanh(x)),
    "erf": _unary(lambda m, x: T.erf(x)),
    "floor": _unary(lambda m, x: T.floor(x) if _is_float(x) else x),
    "sin": _unary(lambda m, x: T.sin(x)),
    "cos": _unary(lambda m, x: T.cos(x)),
    "leaky_relu": Expression(lambda m, x, p: select(x[0] > 0, x[0], x[0] * p[0])),
    "clamp_scalar": Expression(lambda m, x, p: minimum(maximum(x[0], p[0]), p[1])),
    "isnan": _unary(lambda m, x: is_nan(x) if _is_float(x) else tirx.const(False, "bool")),
    "logical_not": _unary(lambda m, x: tirx.EQ(x, tirx.const(0, x.dtype))),
    "bitwise_not": _unary(lambda m, x: ~x, on_bool=lambda m, x, p: tirx.const(1, "uint8") - x[0]),
    # binary
    "add": Expression(
        lambda m, x, p: x[0] + p[0] * x[1],
        inputs=2,
        on_bool=lambda m, x, p: x[0] | select(p[0] != 0, x[1], tirx.const(0, "uint8")),
    ),
    "sub": Expression(lambda m, x, p: x[0] - p[0] * x[1], inputs=2),
    "mul": _binary(lambda a, b: a * b, on_bool=lambda m, x, p: x[0] & x[1]),
    "div": _binary(lambda a, b: a / b),
    "div_trunc": _binary(lambda a, b: T.trunc(a / b)),
    "div_floor": _binary(_floor_divide),
    "maximum": _binary(maximum),
    "minimum": _binary(minimum),
    "eq": _binary(lambda a, b: tirx.EQ(a, b)),
    "lt": _binary(lambda a, b: a < b),
    "bitwise_and": _binary(lambda a, b: a & b),
    # ternary
    "where": Expression(lambda m, x, p: select(x[0] != 0, x[1], x[2]), inputs=3, compute="native"),
}
