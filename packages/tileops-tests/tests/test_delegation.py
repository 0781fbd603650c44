"""An op of tileops-kernels computes with its own programs: what it asks of the framework is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tileops_tests import verify
from tileops_tests.codes import ReasonCode
from tileops_tests.judge import delegated_calls, judge_case


@pytest.fixture
def as_own_op(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold a candidate to what the op of tileops-kernels is held to."""

    def judge(*arguments: Any, own: bool) -> verify.Verdict:
        return judge_case(*arguments, own=True)

    monkeypatch.setattr(verify, "judge_case", judge)


@pytest.mark.usefixtures("as_own_op")
@pytest.mark.parametrize("candidate", ["softmax.py:right", "softmax.py:kernel_or_torch"])
def test_an_op_that_has_the_framework_compute_is_delegated(judge: Callable, candidate: str) -> None:
    record = judge("SoftmaxFwdOp", candidate, ("ragged-float16-*s0",))
    assert {failure.code for failure in record.failures} == {ReasonCode.DELEGATED}, record.failures
    assert "softmax" in record.failures[0].message or "aten::exp" in record.failures[0].message


def test_a_foreign_candidate_may_be_made_of_anything(judge: Callable) -> None:
    record = judge("SoftmaxFwdOp", "softmax.py:kernel_or_torch", ("ragged-float16-*s0",))
    assert not [f for f in record.failures if f.code is ReasonCode.DELEGATED]


@pytest.mark.parametrize("name", ["_softmax", "mm", "bmm", "exp", "_scaled_dot_product_attention", "tanh"])
def test_no_product_and_no_elementary_function_is_handling_or_checking(name: str) -> None:
    for integers in (False, True):
        assert delegated_calls([f"aten::{name}"], integers=integers) == [f"aten::{name}"]


def test_tables_of_integers_may_be_looked_at_by_ops_that_have_some() -> None:
    assert delegated_calls(["aten::sort", "aten::any"], integers=True) == []
    assert delegated_calls(["aten::sort"], integers=False) == ["aten::sort"]
