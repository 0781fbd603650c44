"""Intrinsic calls inside expressions: one table from TVM's name to the C++ that computes it.

Every printer takes the expression printer and the call, and gives a value in the call's C++ value type; a
narrow float result is rounded by the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tvm import tirx

from .numeric import CType, ctype


def _function(name: str, arguments: int | None = None) -> Callable:
    """A C++ function, overloaded for float and double, of the call's first arguments in its own type."""

    def printer(p, call):
        t = ctype(call.dtype)
        return f"{name}({', '.join(p.as_type(a, t) for a in list(call.args)[:arguments])})"

    return printer


def _predicate(name: str) -> Callable:
    return lambda p, call: f"{name}({p.value(call.args[0])})"


def _template(name: str) -> Callable:
    def printer(p, call):
        t = ctype(call.dtype)
        return f"{name}<{t.value}>({', '.join(p.as_type(a, t) for a in call.args)})"

    return printer


def _operator(symbol: str, arguments: int = 2) -> Callable:
    def printer(p, call):
        t = ctype(call.dtype)
        operands = [p.value(a) for a in list(call.args)[:arguments]]
        return f"({t.value})({f' {symbol} '.join(operands)})"

    return printer


def _nearest(printer: Callable) -> Callable:
    """An operation that names its rounding mode; only to nearest, ties to even, exists here."""

    def checked(p, call):
        mode = call.args[-1]
        if isinstance(mode, tirx.StringImm) and str(mode.value) != "rn":
            raise p.ctx.unsupported(call.op.name, f"the rounding mode {mode.value}")
        return printer(p, call)

    return checked


def _shift_left(p, call):
    # Through the unsigned type: a bit shifted into the sign is defined on the GPU.
    t = ctype(call.dtype)
    unsigned = t.value if t.value.startswith("u") else f"u{t.value}"
    return f"({t.value})(({unsigned})({p.value(call.args[0])}) << {p.value(call.args[1])})"


def _bitwise_not(p, call):
    t = ctype(call.dtype)
    return f"(!{p.value(call.args[0])})" if t.name == "bool" else f"({t.value})(~{p.value(call.args[0])})"


def _if_then_else(p, call):
    return f"({p.value(call.args[0])} ? {p.value(call.args[1])} : {p.value(call.args[2])})"


def _first_argument(p, call):
    return p.value(call.args[0])


def _reinterpret(p, call):
    source, target = ctype(call.args[0].dtype), ctype(call.dtype)
    bits = f"tl_bit_cast<{target.storage}>(({source.storage})({p.stored(call.args[0], source)}))"
    return f"tl_load_{target.name}({bits})" if target.narrow else bits


def _infinity(p, call):
    return f"({ctype(call.dtype).value})INFINITY"


def _integer_pow(p, call):
    t = ctype(call.dtype)
    return f"tl_integer_pow<{t.value}>({p.as_type(call.args[0], t)}, {p.value(call.args[1])})"


def _builtin(name: str) -> Callable:
    """popcount and clz: an int from the unsigned form of the argument."""

    def printer(p, call):
        source = ctype(call.args[0].dtype)
        unsigned = f"uint{8 * max(4, source.bytes)}_t"
        return f"({ctype(call.dtype).value})tl_{name}(({unsigned})({p.value(call.args[0])}))"

    return printer


def _pointer(p, expr: object) -> tuple[object, str, str]:
    """The element that an ``access_ptr`` or ``address_of`` names: its storage, lvalue and guard."""
    if isinstance(expr, tirx.Call) and expr.op.name in ("tl.access_ptr", "tirx.address_of"):
        load = expr.args[0]
        storage = p.ctx.storage_of(load.buffer)
        element, guard = p.access(storage, list(load.indices))
        return storage, element, guard
    raise p.ctx.unsupported("a pointer expression", str(expr))


def _load_narrow(t: CType, element: str) -> str:
    return f"tl_load_{t.name}({element})" if t.narrow else element


def exchange(operation: str) -> Callable:
    """An atomic read-modify-write. A program that uses one runs its grid in order."""

    def printer(p, call):
        storage, element, guard = _pointer(p, call.args[0])
        p.ctx.uses_atomics = True
        t = storage.ctype
        value = p.as_type(call.args[1], t)
        if t.narrow:
            functions = f"tl_load_{t.name}, tl_store_{t.name}, tl_combine_{operation}"
            code = f"tl_exchange_narrow(&{element}, {value}, {functions})"
        else:
            code = f"tl_exchange_{operation}<{t.storage}>(&{element}, {value})"
        return f"({guard} ? {code} : ({t.value})0)" if guard else code

    return printer


def _atomic_load(p, call):
    storage, element, guard = _pointer(p, call.args[0])
    p.ctx.uses_atomics = True
    code = _load_narrow(storage.ctype, element)
    return f"({guard} ? {code} : ({storage.ctype.value})0)" if guard else code


_UNARY = [
    "exp",
    "exp2",
    "exp10",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sigmoid",
    "tanh",
    "tan",
    "sin",
    "cos",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "floor",
    "ceil",
    "trunc",
    "round",
    "nearbyint",
]

CALLS: Final[dict[str, Callable]] = {
    **{f"tirx.{name}": _function(f"tl_{name}") for name in _UNARY},
    **{
        f"tl.__{name}": _function(f"tl_{name}")
        for name in ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan")
    },
    **{
        f"tirx.{name}": _function(f"tl_{name}")
        for name in ("pow", "atan2", "fmod", "hypot", "copysign", "nextafter")
    },
    **{f"tirx.{name}": _predicate(f"tl_{name}") for name in ("isnan", "isinf", "isfinite")},
    **{
        f"tirx.bitwise_{name}": _operator(symbol)
        for name, symbol in {"and": "&", "or": "|", "xor": "^"}.items()
    },
    **{
        f"tl.ieee_{name}": _nearest(_operator(symbol))
        for name, symbol in {"add": "+", "sub": "-", "mul": "*", "fdiv": "/"}.items()
    },
    **{
        f"tl.atomic_{op}{form}_elem_op": exchange(op)
        for op in ("add", "max", "min", "or")
        for form in ("", "_ret")
    },
    "tl.atomic_load_elem_op": _atomic_load,
    "tl.fmul": _operator("*"),
    "tl.fma": _function("tl_fma"),
    "tl.ieee_fmaf": _nearest(_function("tl_fma", 3)),
    "tl.ieee_fsqrt": _nearest(_function("tl_sqrt", 1)),
    "tl.ieee_frsqrt": _function("tl_rsqrt", 1),
    "tl.ieee_frcp": _nearest(_function("tl_reciprocal", 1)),
    "tl.fast_rcp": _function("tl_reciprocal", 1),
    "tl.round_ties_away_from_zero": _function("tl_round_away"),
    "tl.clamp": _template("tl_clamp"),
    "tl.max_nan": _template("tl_max_nan"),
    "tl.min_nan": _template("tl_min_nan"),
    "tl.pow_of_int": _integer_pow,
    "tl.infinity": _infinity,
    "tirx.fabs": _function("tl_abs"),
    "tirx.shift_left": _shift_left,
    "tirx.shift_right": _operator(">>"),
    "tirx.bitwise_not": _bitwise_not,
    "tirx.if_then_else": _if_then_else,
    "tirx.likely": _first_argument,
    "tl.__ldg": _first_argument,
    "tirx.reinterpret": _reinterpret,
    "tirx.popcount": _builtin("popcount"),
    "tirx.clz": _builtin("clz"),
}
