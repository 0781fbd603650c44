"""What an entry forbids is named: by the rule, the input, the param or the dim that forbids it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tileops_manifest import (
    DTYPES,
    DtypeError,
    Entry,
    MissingInputError,
    ParamError,
    RuleError,
    ShapeError,
    SpecError,
    UnknownInputError,
    load_manifest,
)
from tileops_tests.forbidden import NO_VALUE, broken_rules, forbidden_calls, small_shapes
from tileops_workloads.shapes import Shape

MANIFEST = load_manifest()
NAMES = list(MANIFEST)


def refusal(entry: Entry, inputs: dict, params: dict) -> SpecError:
    with pytest.raises(SpecError) as caught:
        entry.bind(inputs, params)
    return caught.value


@cache
def first_shape(name: str) -> Shape:
    return next(small_shapes(MANIFEST[name]))


def small_call(name: str) -> tuple[dict, dict]:
    binding = first_shape(name).bind(MANIFEST[name])
    return dict(binding.inputs), dict(binding.params)


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_is_broken_by_some_call_and_named_there(name: str) -> None:
    entry = MANIFEST[name]
    broken = broken_rules(entry)
    for rule in entry.rules:
        assert rule.expr.source in broken, f"no call breaks `{rule.expr}`: is it said elsewhere?"
        with pytest.raises(RuleError) as caught:
            broken[rule.expr.source].bind(entry)
        assert str(caught.value).startswith(f"{name}: {rule.message}")
        assert caught.value.rule == rule.expr.source


@pytest.mark.parametrize("name", NAMES)
def test_every_dtype_that_an_input_cannot_have_is_named_with_the_input(name: str) -> None:
    entry = MANIFEST[name]
    inputs, params = small_call(name)
    for given, meta in inputs.items():
        if meta is None:
            continue
        for dtype in DTYPES:
            if dtype in entry.inputs[given].dtypes:
                continue
            error = refusal(entry, {**inputs, given: type(meta)(meta.shape, dtype)}, params)
            assert isinstance(error, DtypeError), error
            assert error.got in (dtype, meta.dtype)
            assert given in str(error)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_input_and_an_unknown_one_are_named(name: str) -> None:
    entry = MANIFEST[name]
    inputs, params = small_call(name)
    for given, spec in entry.inputs.items():
        if not spec.optional:
            error = refusal(entry, {**inputs, given: None}, params)
            assert isinstance(error, MissingInputError)
            assert error.argument == given
    error = refusal(entry, {**inputs, "stranger": None}, params)
    assert isinstance(error, UnknownInputError)
    assert error.argument == "stranger"


@pytest.mark.parametrize("name", NAMES)
def test_a_param_that_is_missing_unknown_or_of_another_type_is_named(name: str) -> None:
    entry = MANIFEST[name]
    inputs, params = small_call(name)
    wrong = object()
    for given, spec in entry.params.items():
        calls = [{**params, given: wrong}]
        calls += [{**params, given: NO_VALUE}] if "str" not in str(spec.type) or spec.choices else []
        calls += [{k: v for k, v in params.items() if k != given}] if spec.required else []
        for call in calls:
            error = refusal(entry, inputs, call)
            assert isinstance(error, ParamError)
            assert error.argument == given
    error = refusal(entry, inputs, {**params, "stranger": 1})
    assert isinstance(error, ParamError)
    assert error.argument == "stranger"


@pytest.mark.parametrize("name", NAMES)
def test_sizes_below_their_least_are_named(name: str) -> None:
    entry = MANIFEST[name]
    calls = [call for call in forbidden_calls(entry, per_kind=None) if call.id.startswith("forbidden-size-")]
    least = {dim for dim, spec in entry.dims.items() if spec.min or spec.min_rank or spec.rank}
    assert {call.id.split("-")[2] for call in calls} == least & set(first_shape(name).dims)
    for call in calls:
        assert call.error in (ShapeError.__name__, RuleError.__name__), call.message


@pytest.mark.parametrize("name", NAMES)
def test_forbidden_calls_are_told_apart_and_forbidden_by_the_entry(name: str) -> None:
    entry = MANIFEST[name]
    calls = forbidden_calls(entry, per_kind=None)
    assert len({call.id for call in calls}) == len(calls)
    kinds = {call.id.split("-")[1] for call in calls}
    assert kinds >= ({"dtype", "missing"} if entry.inputs else {"param"})
    assert sum(call.id.startswith("forbidden-rule-") for call in calls) == len(entry.rules)
    for call in calls:
        error = refusal(entry, dict(zip(entry.inputs, call.inputs, strict=True)), dict(call.params))
        assert (type(error).__name__, str(error)) == (call.error, call.message)
    first = forbidden_calls(entry)
    assert [call.id for call in first] == [call.id for call in calls if call in first]
    assert len(first) == len(kinds)


def test_a_rule_that_no_call_can_break_is_not_reported_as_broken(tmp_path: Path) -> None:
    text = (
        "grammar: 1\nfamily: toy\nops:\n  ToyFwdOp:\n    summary: toy\n    ref_api: none\n"
        "    dtypes: {T: float16}\n    dims: {N: {doc: size, min: 1}}\n"
        "    inputs:\n      x: {dtype: T, shape: '[N]'}\n    outputs:\n      y: {dtype: T, shape: '[N]'}\n"
        "    rules:\n      - {expr: 'N > 0', message: N must be positive}\n"
        "      - {expr: 'N < 99', message: N must be small}\n"
        "      - {expr: 'N != 4', message: N must not be 4}\n"
        "    numerics: {accumulate: none, nan: copied}\n    roofline: {flops: N}\n"
        "    workloads:\n      - {label: one, dims: {N: 3}, dtypes: [float16]}\n"
    )
    path = tmp_path / "toy.yaml"
    path.write_text(text, encoding="utf-8")
    assert list(broken_rules(load_manifest(path)["ToyFwdOp"])) == ["N != 4"]


def test_a_call_that_breaks_a_rule_can_be_made_of_tensors() -> None:
    """A negative group size alone would give the scales of 4-bit weights a negative number of columns."""
    entry = MANIFEST["GemmW4A16FwdOp"]
    shape = broken_rules(entry)["group_size > 0"]
    assert shape.params["group_size"] < 0
    calls = [call for call in forbidden_calls(entry, per_kind=None) if "must be positive" in call.message]
    assert calls
    assert all(size >= 0 for call in calls for meta in call.inputs for size in meta.shape)
