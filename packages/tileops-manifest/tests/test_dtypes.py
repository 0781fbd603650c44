"""Dtype names, sizes and promotion."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileops_manifest.dtypes import DTYPES, int_to_float, is_complex, is_floating, is_integral, promote

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
