"""Element types: names as PyTorch spells them, sizes and promotion."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: its name, its size in bytes and its category."""

    name: str
    itemsize: int
    category: str


DTYPES: dict[str, DType] = {
    name: DType(name, itemsize, category)
    for name, itemsize, category in (
        ("bool", 1, "bool"),
        ("uint8", 1, "unsigned"),
        ("uint16", 2, "unsigned"),
        ("uint32", 4, "unsigned"),
        ("uint64", 8, "unsigned"),
        ("int8", 1, "signed"),
        ("int16", 2, "signed"),
        ("int32", 4, "signed"),
        ("int64", 8, "signed"),
        ("float8_e4m3fn", 1, "float8"),
        ("float8_e5m2", 1, "float8"),
        ("float16", 2, "float"),
        ("bfloat16", 2, "float"),
        ("float32", 4, "float"),
        ("float64", 8, "float"),
        ("complex64", 8, "complex"),
        ("complex128", 16, "complex"),
    )
}

DEFAULT_FLOAT = "float32"
# Greatest finite number of each float dtype (of a part, where the dtype is complex).
_LARGEST = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float64": sys.float_info.max,
    "complex64": (2 - 2.0**-23) * 2.0**127,
    "complex128": sys.float_info.max,
}
_INFINITE = frozenset(_LARGEST) - {"float8_e4m3fn"}
_INTEGRAL = frozenset({"signed", "unsigned"})
_RANK = {"bool": 0, "unsigned": 1, "signed": 1, "float8": 2, "float": 2, "complex": 3}


def is_integral(dtype: str) -> bool:
    """True for signed and unsigned integers, not for bool."""
    return DTYPES[dtype].category in _INTEGRAL


def is_floating(dtype: str) -> bool:
    """True for every real floating-point type, 8-bit ones included."""
    return DTYPES[dtype].category in ("float", "float8")


def is_complex(dtype: str) -> bool:
    """True for complex types."""
    return DTYPES[dtype].category == "complex"


def itemsize(dtype: str) -> int:
    """Bytes per element."""
    return DTYPES[dtype].itemsize


def fits(value: float, dtype: str) -> bool:
    """True when a dtype holds a number: whole and in range (integers), 0 or 1 (bool), in range (floats).

    A float dtype rounds what is in its range, and has infinities (8-bit ones may not) and NaN.

    >>> fits(-1, "uint8"), fits(1.5, "int32"), fits(1e30, "float16"), fits(float("inf"), "float16")
    (False, False, False, True)
    """
    if not is_integral(dtype) and dtype != "bool":
        return (
            abs(value) <= _LARGEST[dtype] or value != value or (abs(value) == math.inf and dtype in _INFINITE)
        )
    if value != value or abs(value) == math.inf or value != int(value):
        return False
    bits = 1 if dtype == "bool" else 8 * itemsize(dtype)
    signed = DTYPES[dtype].category == "signed"
    return -(1 << bits - 1) * signed <= value < 1 << bits - signed


def int_to_float(dtype: str) -> str:
    """The type of a float-valued function of ``dtype``: integers and bool become the default float."""
    return dtype if _RANK[DTYPES[dtype].category] >= 2 else DEFAULT_FLOAT


def promote(first: str, *others: str) -> str:
    """The common type of tensors of these types, by PyTorch's promotion rules.

    Raises ValueError for a pair that PyTorch refuses to promote (8-bit floats, wide unsigned integers).

    >>> promote("float16", "bfloat16"), promote("int64", "float16"), promote("uint8", "int8")
    ('float32', 'float16', 'int16')
    """
    result = first
    for other in others:
        result = _promote_pair(result, other)
    return result


def _promote_pair(a: str, b: str) -> str:
    if a == b:
        return a
    low, high = sorted((DTYPES[a], DTYPES[b]), key=lambda dtype: _RANK[dtype.category])
    if "float8" in (low.category, high.category):
        raise ValueError(f"{a} and {b} have no common dtype")
    if high.category == "complex":
        return "complex128" if "complex128" in (a, b) or "float64" in (a, b) else "complex64"
    if _RANK[low.category] < _RANK[high.category]:
        return high.name
    if high.category == "float":
        small, large = sorted((low, high), key=lambda dtype: dtype.itemsize)
        return DEFAULT_FLOAT if small.itemsize == large.itemsize else large.name
    return _promote_integers(low, high)


def _promote_integers(a: DType, b: DType) -> str:
    if a.category == b.category:
        if a.category == "unsigned":
            raise ValueError(f"{a.name} and {b.name} have no common dtype")
        return max(a, b, key=lambda dtype: dtype.itemsize).name
    unsigned, signed = (a, b) if a.category == "unsigned" else (b, a)
    if unsigned.name != "uint8":
        raise ValueError(f"{a.name} and {b.name} have no common dtype")
    return signed.name if signed.itemsize > 1 else "int16"
