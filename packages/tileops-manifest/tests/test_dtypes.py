"""Dtype names, sizes and promotion."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileops_manifest.dtypes import DTYPES, fits, int_to_float, is_complex, is_floating, is_integral, promote

ordinary = st.sampled_from(
    [
        name
        for name, d in DTYPES.items()
        if d.category != "float8" and name not in ("uint16", "uint32", "uint64")
    ]
)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("float16", "bfloat16"), "float32"),
        (("float16", "float32"), "float32"),
        (("int64", "float16"), "float16"),
        (("bool", "uint8"), "uint8"),
        (("uint8", "int8"), "int16"),
        (("uint8", "int32"), "int32"),
        (("int8", "int64"), "int64"),
        (("float64", "complex64"), "complex128"),
        (("float16", "complex64"), "complex64"),
        (("int8", "float16", "bfloat16"), "float32"),
    ],
)
def test_promotion_follows_pytorch(dtypes, expected):
    assert promote(*dtypes) == expected


@given(ordinary, ordinary)
def test_promotion_is_commutative_and_never_narrows(a, b):
    result = promote(a, b)
    assert result == promote(b, a)
    assert promote(result, a) == result


@given(ordinary)
def test_promotion_with_itself_is_itself(a):
    assert promote(a, a) == a


@pytest.mark.parametrize("pair", [("float8_e4m3fn", "float16"), ("uint16", "int32"), ("uint16", "uint32")])
def test_pairs_without_a_common_dtype_are_refused(pair):
    with pytest.raises(ValueError, match="no common dtype"):
        promote(*pair)


def test_integers_become_the_default_float():
    assert [int_to_float(d) for d in ("int8", "bool", "bfloat16")] == ["float32", "float32", "bfloat16"]


def test_categories():
    assert is_integral("uint8")
    assert not is_integral("bool")
    assert is_floating("float8_e5m2")
    assert is_complex("complex64")


LARGEST = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "float32": float.fromhex("0x1.fffffep127"),
}


@pytest.mark.parametrize("dtype", LARGEST)
def test_floats_hold_what_is_in_their_range_and_what_is_no_finite_number(dtype):
    largest = LARGEST[dtype]
    assert all(fits(value, dtype) for value in (0, 0.1, -largest, largest, math.inf, -math.inf, math.nan))
    assert not fits(math.nextafter(largest, math.inf), dtype)
    assert not fits(-1e39, dtype)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("uint8", 0, 255), ("int8", -128, 127), ("int64", -(1 << 63), (1 << 63) - 1), ("bool", 0, 1)],
)
def test_integers_hold_whole_numbers_in_their_range(dtype, low, high):
    assert all(fits(value, dtype) for value in (low, high, 0.0, 1.0, True))
    assert not any(fits(value, dtype) for value in (low - 1, high + 1, 0.5, math.inf, math.nan))


def test_an_8_bit_float_without_infinity_holds_none():
    assert not fits(math.inf, "float8_e4m3fn")
    assert fits(math.inf, "float8_e5m2")
    assert fits(448, "float8_e4m3fn")
    assert not fits(449, "float8_e4m3fn")
