"""Fixtures enumerate an entry's cases without importing a test runner."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tileops_manifest import UnknownOpError
from tileops_workloads import FixtureBase, UnknownNameError, WorkloadBase


class RMSNormFixture(FixtureBase):
    op = "RMSNormFwdOp"
    labels = ("ragged",)
    distributions = ("normal", "exact")


@pytest.mark.parametrize(**RMSNormFixture.parametrize())
def test_a_fixture_parametrises_a_test(workload):
    assert isinstance(workload, WorkloadBase)
    assert workload.entry.name == "RMSNormFwdOp"


def test_the_product_of_cases_distributions_layouts_and_seeds_is_taken():
    class Wide(RMSNormFixture):
        layouts = ("contiguous", "strided")
        seeds = (0, 1, 2)

    assert len(RMSNormFixture) == 3 * 2
    assert len(Wide) == 3 * 2 * 2 * 3
    assert len({workload.digest for workload in Wide}) == len(Wide)


def test_without_labels_every_row_is_taken():
    class Everything(FixtureBase):
        op = "RMSNormFwdOp"
        scale = "cpu"

    labels = {workload.row.label for workload in Everything}
    assert labels == {row.label for row in Everything.entry().workloads}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("distributions", ("gaussian",), "unknown distribution 'gaussian'"),
        ("layouts", ("strided", "tranposed"), "did you mean 'transposed'"),
        ("scale", "cpus", "did you mean 'cpu'"),
    ],
)
def test_a_wrong_declaration_fails_when_the_class_is_made(field, value, message):
    with pytest.raises(UnknownNameError, match=message):
        type(FixtureBase)("Wrong", (FixtureBase,), {"op": "SumFwdOp", field: value})


def test_a_label_or_op_that_does_not_exist_is_an_error():
    class NoSuchRow(FixtureBase):
        op = "RMSNormFwdOp"
        labels = ("raged",)

    class NoSuchOp(FixtureBase):
        op = "RMSNormOp"

    with pytest.raises(UnknownNameError, match="did you mean 'ragged'"):
        NoSuchRow.parametrize()
    with pytest.raises(UnknownOpError):
        NoSuchOp.parametrize()


def test_the_package_imports_neither_a_test_runner_nor_the_kernels():
    code = (
        "import sys, tileops_workloads; unwanted = {'pytest', 'tilelang', 'tileops_' + 'kernels'}; "
        "print(sorted(unwanted & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
