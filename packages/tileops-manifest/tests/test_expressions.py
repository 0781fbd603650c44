"""The expression language: what it says, and everything that it refuses."""

from __future__ import annotations

import ast
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileops_manifest import ExpressionError, TensorMeta
from tileops_manifest.expr import Scope, compile_dtype, compile_expression
from tileops_manifest.functions import FUNCTIONS

SCOPE = Scope(frozenset({"a", "b", "shape", "max", "T"}), frozenset({"x", "y"}))
ENV = {
    "a": 7,
    "b": 3,
    "shape": (2, 3, 4),
    "max": 5,
    "T": "float16",
    "x": TensorMeta((2, 3), "float16"),
    "y": None,
}


def value(source: str):
    return compile_expression(source, SCOPE).evaluate(ENV)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a // b + a % b - 2 * a", 2 + 1 - 14),
        ("-a", -7),
        ("a & 3", 3),
        ("a > b and not a == 3 or False", True),
        ("1 < b < 4", True),
        ("a if b == 3 else 0", 7),
        ("shape[-1] + shape[1:][0]", 7),
        ("prod(shape) + sum(shape) + len(shape)", 24 + 9 + 3),
        ("T in ('float16', 'float32')", True),
        ("[*shape, a]", (2, 3, 4, 7)),
        ("y is None and x is not None", True),
        ("present(x) and not present(y)", True),
        ("rank(x) + numel(x) + numel(y)", 2 + 6 + 0),
        ("shape_of(x)", (2, 3)),
        ("dtype_of(x) == T", True),
        ("max + max(a, b)", 12),  # a param may have the name of a function
        ("itemsize('float32') * a", 28),
    ],
)
def test_an_expression_has_its_value(source, expected):
    assert value(source) == expected


@pytest.mark.parametrize(
    ("source", "message", "offset"),
    [
        ("a.b", "attributes are not part", 0),
        ("a / b", "use // or ceil_div", 1),
        ("a ** b", "powers are not part", 1),
        ("a | b", "joins dtypes only", 1),
        ("[i for i in shape]", "ListComp is not part", 0),
        ("lambda: 1", "Lambda is not part", 0),
        ("(a := 3)", "NamedExpr is not part", 1),
        ("{1: 2}", "Dict is not part", 0),
        ("f'{a}'", "JoinedStr is not part", 0),
        ("b'x'", "constant b'x' is not part", 0),
        ("__import__('os')", "unknown function '__import__'", 0),
        ("shape.index(1)", "unknown function 'shape.index'", 0),
        ("max(a, key=b)", "keyword arguments are not part", 0),
        ("prod(shape, a)", "prod takes 1 argument, got 2", 0),
        ("max(a)", "max takes at least 2 arguments, got 1", 0),
        ("axes(a)", "axes takes 2 to 3 arguments, got 1", 0),
        ("rank(shape)", "'shape' is not an input or output", 5),
        ("rank(1)", "rank takes the name of an input", 5),
        ("a + x", "'x' is a tensor", 4),
        ("a + c", "name 'c' is not bound", 4),
        ("a is b", "'is' compares with None only", 0),
        ("a is None is b", "'is' compares with None only", 0),
        ("sum_of(x)", "known to the roofline only", 7),
        ("a +", "invalid syntax", 3),
        ("", "invalid syntax", 0),
        ("a\0b", "cannot be parsed|null", 3),
    ],
)
def test_what_is_outside_the_language_is_refused_with_its_place(source, message, offset):
    with pytest.raises(ExpressionError) as caught:
        compile_expression(source, SCOPE)
    assert any(part in str(caught.value) for part in message.split("|"))
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    "source", ["shape[9]", "a // 0", "shape + 1", "prod(a)", "itemsize('float17')", "expand((1, 2), 3)"]
)
def test_an_expression_without_a_value_says_so(source):
    with pytest.raises(ExpressionError):
        value(source)


@pytest.mark.parametrize("source", ["(" * 500 + "a" + ")" * 500, "+".join(["a"] * 20000), "9" * 6000])
def test_text_that_is_too_large_is_refused(source):
    with pytest.raises(ExpressionError):
        value(source)


def test_a_value_that_is_too_large_is_refused():
    with pytest.raises(ExpressionError):
        value("[1] * 999999999999999")


def test_a_name_without_a_value_says_so():
    with pytest.raises(ExpressionError, match="a has no value here"):
        compile_expression("a + 1", SCOPE).evaluate({})


def test_expressions_cannot_reach_builtins():
    compiled = compile_expression("a", SCOPE)
    assert eval(compiled.code, {"__builtins__": {}}, {"a": 1}) == 1
    with pytest.raises(ExpressionError):
        compile_expression("open", SCOPE)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("float16 | float32", ("float16", "float32")),
        ("T", "float16"),
        ("same_as(x)", "float16"),
        ("promote(x, float32)", "float32"),
        ("int_to_float(x)", "float16"),
        ("bool if a > b else T", "bool"),
    ],
)
def test_dtype_expressions(source, expected):
    assert compile_dtype(source, SCOPE).evaluate(ENV) == expected


names = st.sampled_from(["a", "b", "3", "11"])
arithmetic = st.recursive(
    names,
    lambda inner: st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(
        lambda t: f"({t[0]} {t[1]} {t[2]})"
    ),
)


@given(arithmetic)
def test_arithmetic_agrees_with_python(source):
    expected = eval(compile(ast.parse(source, mode="eval"), "", "eval"), {"a": ENV["a"], "b": ENV["b"]})
    assert value(source) == expected


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_an_expression_error(source):
    with contextlib.suppress(ExpressionError):
        value(source)


def test_every_function_is_documented():
    assert [name for name, function in FUNCTIONS.items() if not function.doc] == []
