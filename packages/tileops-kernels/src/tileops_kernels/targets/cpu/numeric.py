"""How the C++ that we generate holds each dtype.

*storage* is the type in memory, *value* the type in expressions. A narrow float (fp16, bf16, fp8) is bits
in memory and a ``float`` in expressions; a value is always already rounded to its dtype, so every rounding
of the tile program is one explicit call.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ..errors import UnsupportedTileOpError


@dataclass(frozen=True)
class CType:
    """One dtype in C++."""

    name: str
    storage: str
    value: str
    bytes: int
    narrow: bool = False

    @property
    def is_float(self) -> bool:
        return self.value in ("float", "double")

    @property
    def is_integer(self) -> bool:
        return self.value.endswith("_t")

    @property
    def is_signed(self) -> bool:
        return self.value.startswith("int")


def _table() -> dict[str, CType]:
    table = {
        f"{sign}int{8 * n}": CType(f"{sign}int{8 * n}", f"{sign}int{8 * n}_t", f"{sign}int{8 * n}_t", n)
        for sign in ("", "u")
        for n in (1, 2, 4, 8)
    }
    table["bool"] = CType("bool", "uint8_t", "bool", 1)
    table["float32"] = CType("float32", "float", "float", 4)
    table["float64"] = CType("float64", "double", "double", 8)
    for name, bits in {
        "float16": 16,
        "bfloat16": 16,
        "float8_e4m3fn": 8,
        "float8_e5m2": 8,
        "float8_e8m0fnu": 8,
    }.items():
        table[name] = CType(name, f"uint{bits}_t", "float", bits // 8, narrow=True)
    table["float8_e4m3"] = table["float8_e4m3fn"]
    table["custom[tfloat32]"] = table["float32"]  # the tensor core's truncated mantissa is not modelled
    return table


CTYPES: Final = MappingProxyType(_table())

# (lowest, highest) float that converts to the integer type without overflow, per floating value type
INTEGER_RANGE: Final = MappingProxyType(
    {
        ("float", "int32_t"): ("-2147483648.0f", "2147483520.0f", "INT32_MIN", "INT32_MAX"),
        ("float", "int64_t"): ("-9223372036854775808.0f", "9223371487098961920.0f", "INT64_MIN", "INT64_MAX"),
        ("float", "uint32_t"): ("0.0f", "4294967040.0f", "0u", "UINT32_MAX"),
        ("float", "uint64_t"): ("0.0f", "18446742974197923840.0f", "(uint64_t)0", "UINT64_MAX"),
        ("double", "int32_t"): ("-2147483648.0", "2147483647.0", "INT32_MIN", "INT32_MAX"),
        ("double", "int64_t"): ("-9223372036854775808.0", "9223372036854774784.0", "INT64_MIN", "INT64_MAX"),
        ("double", "uint32_t"): ("0.0", "4294967295.0", "0u", "UINT32_MAX"),
        ("double", "uint64_t"): ("0.0", "18446744073709549568.0", "(uint64_t)0", "UINT64_MAX"),
    }
)


def ctype(dtype: object) -> CType:
    """The C++ form of a TVM dtype.

    Raises `UnsupportedTileOpError` for one that the target cannot hold: fp4, vectors, handles.
    """
    try:
        return CTYPES[str(dtype)]
    except KeyError:
        raise UnsupportedTileOpError(f"dtype {dtype}") from None
