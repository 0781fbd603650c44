"""`TestBase`: the seed's class, for tests written by hand."""

from __future__ import annotations

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_tests.test_base import CheckError, TestBase
from tileops_workloads import WorkloadBase, make_workload


@pytest.fixture
def test() -> TestBase:
    return TestBase.at(load_manifest()["RMSNormFwdOp"], "ragged", dtypes="bfloat16", scale="cpu")


def test_it_is_a_workload_with_a_reference(test: TestBase) -> None:
    assert isinstance(test, WorkloadBase)
    (ref,) = test.ref_program()
    assert ref.dtype is torch.float64
    assert tuple(ref.shape) == test.shape
    plain = make_workload(load_manifest()["RMSNormFwdOp"], "ragged", "bfloat16", scale="cpu")
    assert torch.equal(test.inputs["x"], plain.gen_inputs()["x"])
    assert test.digest


def test_check_accepts_the_right_result_and_names_what_is_wrong(test: TestBase) -> None:
    (right,) = (out.to(torch.bfloat16) for out in test.ref_program(torch.float32))
    test.check(right)
    wrong = right.clone()
    wrong.view(-1)[0] += 1
    with pytest.raises(CheckError, match=r"RMSNormFwdOp: wrong_value: output\[0, 0, 0, 0\]") as caught:
        test.check(wrong)
    assert caught.value.finding.ratio > 1
    with pytest.raises(CheckError, match="wrong_dtype"):
        test.check(right.float())
    with pytest.raises(ValueError, match="got 2 outputs, expected 1"):
        test.check(right, right)


def test_a_check_can_run_with_python_assertions_off(test: TestBase) -> None:
    assert issubclass(CheckError, AssertionError)
    with pytest.raises(CheckError):
        test.check(torch.zeros(test.shape, dtype=torch.bfloat16))
