"""Ops that subtract a mean get `shifted` values that one shift of the whole input cannot centre."""

from __future__ import annotations

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_workloads import CENTRED, make_workload
from tileops_workloads.centred import in_groups
from tileops_workloads.distributions import least_shift

MANIFEST = load_manifest()
DTYPES = ("float32", "float16", "bfloat16")


def grouped(op: str, dtype: str) -> torch.Tensor:
    """What the op subtracts means from, as rows of the elements that share one: [groups, elements]."""
    workload = make_workload(MANIFEST[op], "ragged", {"T": dtype}, distribution="shifted")
    centred = CENTRED[op]
    shape, axes = centred.groups(workload.binding)
    x = workload.gen_inputs()[centred.input].reshape(shape).double()
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    return x.permute(*kept, *axes).reshape(torch.Size(shape[axis] for axis in kept).numel(), -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", CENTRED)
def test_the_mean_of_a_group_is_far_larger_than_its_spread(op, dtype):
    x = grouped(op, dtype)
    least = least_shift(getattr(torch, dtype))
    assert (x.mean(1).abs() > 0.9 * least).all()
    assert ((x.std(1) > 0.5) & (x.std(1) < 1.6)).all()
    assert least >= {"float32": 1024, "float16": 512, "bfloat16": 64}[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", CENTRED)
def test_a_group_keeps_several_distinct_values(op, dtype):
    assert all(row.unique().numel() >= 5 for row in grouped(op, dtype))


@pytest.mark.parametrize("op", CENTRED)
def test_groups_have_means_of_their_own(op):
    means = grouped(op, "float32").mean(1)
    assert means.min() < -1000 < 1000 < means.max()
    assert (means.diff().abs() > 100).all()


def test_the_only_group_of_a_full_reduction_has_one_mean():
    workload = make_workload(
        MANIFEST["VarFwdOp"], None, "float32", dims={"A": (40, 50)}, distribution="shifted"
    )
    x = workload.gen_inputs()["x"]
    assert abs(x.mean().item()) > 1000
    assert x.std().item() < 1.1


def test_groups_lie_where_the_axes_say():
    binding = make_workload(
        MANIFEST["VarFwdOp"], None, "float32", dims={"A": (2, 3, 4)}, params={"dim": (0, 2)}
    ).binding
    numbered = in_groups(
        binding,
        CENTRED["VarFwdOp"].groups,
        lambda shape: torch.arange(shape[0])[:, None].expand(shape).clone(),
    )
    assert numbered.shape == (2, 3, 4)
    assert torch.equal(numbered, torch.arange(3)[None, :, None].expand(2, 3, 4))


@pytest.mark.parametrize("op", CENTRED)
def test_other_inputs_stay_around_zero(op):
    inputs = make_workload(MANIFEST[op], "ragged", "float32", distribution="shifted").gen_inputs()
    others = {
        name: x for name, x in inputs.items() if x is not None and name not in (CENTRED[op].input, "mean")
    }
    assert all(x.abs().max() < 20 for x in others.values())


def test_an_op_that_subtracts_no_mean_gets_normal_values():
    x = make_workload(MANIFEST["SiluFwdOp"], "ragged", "float32", distribution="shifted").gen_inputs()[
        "input"
    ]
    assert abs(x.mean().item()) < 0.1


def test_the_mean_that_a_backward_is_given_is_its_channels():
    inputs = make_workload(
        MANIFEST["BatchNormBwdOp"], "ragged", "float32", distribution="shifted"
    ).gen_inputs()
    assert ((inputs["x"].mean((0, 2, 3)) - inputs["mean"]).abs() < 4).all()
