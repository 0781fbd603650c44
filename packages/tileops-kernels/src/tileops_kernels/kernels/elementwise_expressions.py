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
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805
# From here on a float32 is a whole number that further digits do not change.
WHOLE = 1 << 24


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


# log(Phi(x) / (1 - Phi(x))) / x up to x = 5.5, by the powers of x^2. For a negative x gelu is then off by at
# most 2e-4 of itself, or by 4e-8 where it is below 1e-4; for a positive one, by less.
GELU_LOGIT = (1.59516373, 0.0735520254, -0.000434296879, -4.49752046e-05, 2.29729511e-06, -3.54612546e-08)
GELU_LOGIT_END = 5.5


def gelu(m: Math, x: Any) -> Any:
    """x * Phi(x), Phi the normal distribution function: x * sigmoid(x * P(x^2)) where the output allows."""
    if m is PRECISE:
        return T.float32(0.5) * x * (1 + T.erf(x * T.float32(SQRT_HALF)))
    square = T.min(x * x, T.float32(GELU_LOGIT_END**2))
    logit = T.float32(GELU_LOGIT[-1])
    for coefficient in reversed(GELU_LOGIT[:-1]):
        logit = logit * square + T.float32(coefficient)
    return m.divide(x, 1 + m.exp(-x * logit))


def gelu_tanh(m: Math, x: Any) -> Any:
    """The tanh approximation of gelu, through 0.5 * (1 + tanh(u)) == sigmoid(2 * u)."""
    u = T.float32(SQRT_2_OVER_PI) * (x + T.float32(GELU_CUBIC) * x * x * x)
    return m.divide(x, 1 + m.exp(T.float32(-2.0) * u))


def hardswish(m: Math, x: Any) -> Any:
    """x * min(max(x + 3, 0), 6) / 6; scaling the factor first keeps large x from overflowing."""
    return x * (T.min(T.max(x + 3, 0), 6) * T.float32(1 / 6))


def hardsigmoid(m: Math, x: Any) -> Any:
    """min(max(x + 3, 0), 6) / 6, and NaN for NaN."""
    return minimum(maximum(x + 3, T.float32(0)), T.float32(6)) * T.float32(1 / 6)


def mish(m: Math, x: Any) -> Any:
    """x * tanh(log(1 + e^x)), where the tangent is n / (n + 2) with n = e^x (e^x + 2).

    For positive x both are divided by e^(2 x): only e^-|x| is computed, which does not overflow.
    """
    e = m.exp(-T.abs(x))
    n = e * (e + 2)
    above = 1 + 2 * e
    return x * m.divide(select(x > 0, above, n), select(x > 0, above + 2 * e * e, n + 2))


def expm1_below(x: Any) -> Any:
    """exp(x) - 1 for x below about 1, by the tangent of half the angle: near 0 nothing cancels."""
    t = T.tanh(x * T.float32(0.5))
    return 2 * t / (1 - t)


def expm1(m: Math, x: Any) -> Any:
    """exp(x) - 1."""
    return select(x < T.float32(0.5), expm1_below(x), T.exp(x) - 1)


def elu(x: Any, alpha: Any) -> Any:
    """x where it is positive, else alpha (exp(x) - 1)."""
    return select(x > 0, x, alpha * expm1_below(x))


def softplus(m: Math, x: Any, beta: Any, threshold: Any) -> Any:
    """(max(u, 0) + log(1 + exp(-|u|))) / beta with u = beta x; x above the threshold."""
    u = x * beta
    smooth = (select(u < 0, T.float32(0), u) + T.log1p(m.exp(-T.abs(u)))) / beta
    return select(u > threshold, x, smooth)


def lerp(x: Any, y: Any, weight: Any) -> Any:
    """From the nearer end."""
    return select(T.abs(weight) < T.float32(0.5), x + weight * (y - x), y - (y - x) * (1 - weight))


def remainder(x: Any, y: Any) -> Any:
    """The rest of the truncated division, moved to the divisor's side of 0."""
    rest = T.fmod(x, y)
    moved = tirx.all(rest != 0, tirx.any(tirx.all(rest < 0, y > 0), tirx.all(rest > 0, y < 0)))
    return select(moved, rest + y, rest)


def round_scaled(x: Any, scaled: Any, error: Any, back: Callable[[Any], Any]) -> Any:
    """x rounded where `scaled + error` is exactly x times a power of ten, and `back` undoes the scaling.

    Rounding `scaled` alone is wrong only where it lies halfway and the exact product does not. Products that
    are large enough to be whole leave x as it is.
    """
    nearest = T.nearbyint(scaled)
    towards = select(error > 0, T.ceil(scaled), T.floor(scaled))
    halfway = tirx.all(T.abs(scaled - T.floor(scaled)) == T.float32(0.5), error != 0)
    return select(T.abs(scaled) >= T.float32(WHOLE), x, back(select(halfway, towards, nearest)))


def round_up_scaled(x: Any, power: Any) -> Any:
    """x to some decimal places; `power` is 10 to their number."""
    scaled = x * power
    return round_scaled(x, scaled, T.fma(x, power, -scaled), lambda r: r / power)


def round_down_scaled(x: Any, power: Any) -> Any:
    """x to tens, hundreds, ...; `power` says which."""
    scaled = x / power
    return round_scaled(x, scaled, T.fma(-scaled, power, x), lambda r: r * power)


def _whole(rounded: Callable[[Any], Any]) -> Callable[[Math, Any], Any]:
    """A rounding; integers are whole already."""
    return lambda m, x: rounded(x) if _is_float(x) else x


def _sign(m: Math, x: Any) -> Any:
    zero, one = tirx.const(0, x.dtype), tirx.const(1, x.dtype)
    return select(x > zero, one, zero) - select(x < zero, one, zero)


def nan_to_num(x: Any, nan: Any, posinf: Any, neginf: Any) -> Any:
    """A number for NaN and for each infinity."""
    infinity = T.infinity("float32")
    number = select(x == infinity, posinf, select(x == -infinity, neginf, x))
    return select(is_nan(x), nan, number)


def _is_true(x: Any) -> Any:
    return tirx.NE(x, tirx.const(0, x.dtype))


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
    "hardswish": _unary(hardswish),
    "hardsigmoid": _unary(hardsigmoid),
    "mish": _unary(mish),
    "selu": _unary(lambda m, x: T.float32(SELU_SCALE) * elu(x, T.float32(SELU_ALPHA))),
    "elu": Expression(lambda m, x, p: elu(x[0], p[0])),
    "softplus": Expression(lambda m, x, p: softplus(m, x[0], p[0], p[1])),
    "expm1": _unary(expm1),
    "log1p": _unary(lambda m, x: T.log1p(x)),
    "floor": _unary(_whole(T.floor)),
    "ceil": _unary(_whole(T.ceil)),
    "trunc": _unary(_whole(T.trunc)),
    "round": _unary(_whole(T.nearbyint)),
    "round_up_scaled": Expression(lambda m, x, p: round_up_scaled(x[0], p[0])),
    "round_down_scaled": Expression(lambda m, x, p: round_down_scaled(x[0], p[0])),
    "sign": _unary(_sign),
    "sin": _unary(lambda m, x: T.sin(x)),
    "cos": _unary(lambda m, x: T.cos(x)),
    "leaky_relu": Expression(lambda m, x, p: select(x[0] > 0, x[0], x[0] * p[0])),
    "clamp_scalar": Expression(lambda m, x, p: minimum(maximum(x[0], p[0]), p[1])),
    "isnan": _unary(lambda m, x: is_nan(x) if _is_float(x) else tirx.const(False, "bool")),
    "isinf": _unary(
        lambda m, x: tirx.EQ(T.abs(x), T.infinity("float32")) if _is_float(x) else tirx.const(False, "bool")
    ),
    "isfinite": _unary(
        lambda m, x: T.abs(x) < T.infinity("float32") if _is_float(x) else tirx.const(True, "bool")
    ),
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
    "ne": _binary(lambda a, b: tirx.NE(a, b)),
    "gt": _binary(lambda a, b: a > b),
    "ge": _binary(lambda a, b: a >= b),
    "le": _binary(lambda a, b: a <= b),
    "logical_and": _binary(lambda a, b: tirx.all(_is_true(a), _is_true(b))),
    "logical_or": _binary(lambda a, b: tirx.any(_is_true(a), _is_true(b))),
    "bitwise_and": _binary(lambda a, b: a & b),
    "bitwise_or": _binary(lambda a, b: a | b),
    "bitwise_xor": _binary(lambda a, b: a ^ b),
    "remainder": _binary(remainder),
    "pow": _binary(lambda a, b: T.pow(a, b)),
    "lerp": Expression(lambda m, x, p: lerp(x[0], x[1], p[0]), inputs=2),
    "nan_to_num": Expression(lambda m, x, p: nan_to_num(*x, *p), inputs=2),
    "prelu": _binary(lambda a, b: select(a > 0, a, b * a)),
    # ternary
    "lerp_tensor": Expression(lambda m, x, p: lerp(*x), inputs=3),
    "clamp": Expression(lambda m, x, p: minimum(maximum(x[0], x[1]), x[2]), inputs=3),
    "masked_fill": Expression(lambda m, x, p: select(x[1] != 0, x[2], x[0]), inputs=3, compute="native"),
    "where": Expression(lambda m, x, p: select(x[0] != 0, x[1], x[2]), inputs=3, compute="native"),
}
