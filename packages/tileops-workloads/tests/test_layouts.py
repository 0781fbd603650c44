"""Layouts change the memory, not the values."""

from __future__ import annotations

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_workloads import LayoutError, UnknownNameError, make_workload
from tileops_workloads.layouts import can_take, lay_out

X = torch.arange(24.0).reshape(4, 6)


def test_strided_has_inner_stride_two():
    y = lay_out(X, "strided")
    assert y.stride() == (12, 2)
    assert torch.equal(y, X)


def test_transposed_has_unit_stride_along_the_last_dim_but_one():
    y = lay_out(X, "transposed")
    assert y.stride() == (1, 4)
    assert torch.equal(y, X)


def test_offset_starts_where_no_vector_load_is_aligned():
    y = lay_out(X.to(torch.bfloat16), "offset")
    assert y.storage_offset() == 1
    assert y.is_contiguous()
    assert y.data_ptr() % 4 != 0
    assert torch.equal(y, X.to(torch.bfloat16))


def test_expanded_repeats_the_first_slice_with_stride_zero():
    y = lay_out(X, "expanded")
    assert y.stride() == (0, 1)
    assert torch.equal(y, X[:1].expand(4, 6))


@pytest.mark.parametrize(
    ("shape", "layout"), [((5,), "transposed"), ((), "strided"), ((1, 1), "expanded"), ((0, 3), "offset")]
)
def test_a_tensor_that_cannot_take_a_layout_keeps_its_own(shape, layout):
    x = torch.zeros(shape)
    assert not can_take(shape, layout)
    assert lay_out(x, layout) is x


def workload(op, dims, layout, **kwargs):
    return make_workload(load_manifest()[op], None, "float32", dims=dims, layout=layout, **kwargs)


@pytest.mark.parametrize("layout", ["strided", "transposed", "offset"])
def test_a_laid_out_workload_has_the_values_of_the_contiguous_one(layout):
    dims = {"batch": (6,), "norm": (8,)}
    plain = workload("RMSNormFwdOp", dims, "contiguous").gen_inputs()
    other = workload("RMSNormFwdOp", dims, layout).gen_inputs()
    assert all(torch.equal(plain[name], other[name]) for name in plain)
    assert other["x"].stride() != plain["x"].stride() or other["x"].storage_offset() == 1


def test_zero_dim_workload_has_scalar_inputs():
    w = workload("SiluFwdOp", {"A": (3, 4)}, "zero-dim")
    assert w.shape == ()
    assert next(iter(w.gen_inputs().values())).dim() == 0


def test_empty_workload_has_an_empty_input():
    assert 0 in workload("SiluFwdOp", {"A": (3, 4)}, "empty").shape


def test_a_mutated_input_is_never_expanded():
    with pytest.raises(LayoutError, match="no input can be expanded"):
        workload("SiluFwdOp", {"A": (3, 4)}, "expanded", params={"inplace": True})
    assert workload("SiluFwdOp", {"A": (3, 4)}, "expanded").gen_inputs()["input"].stride() == (0, 1)


def test_an_index_table_is_never_expanded():
    entry = load_manifest()["GroupedQueryAttentionDecodePagedWithKVCacheFwdOp"]
    inputs = make_workload(entry, "ragged", "float16", layout="expanded").gen_inputs()
    assert inputs["block_table"].is_contiguous()
    assert 0 in inputs["k"].stride()


@pytest.mark.parametrize(
    ("op", "dims", "layout"),
    [
        ("SiluFwdOp", {"A": (3,)}, "transposed"),
        ("BmmFwdOp", {"B": 1, "M": 2, "N": 2, "K": 2}, "zero-dim"),
        ("RopeNeoxPositionIdsFwdOp", None, "zero-dim"),
    ],
)
def test_a_layout_that_no_input_can_take_is_an_error(op, dims, layout):
    row = None if dims else "ragged"
    with pytest.raises(LayoutError, match=op):
        make_workload(load_manifest()[op], row, "float32", dims=dims, layout=layout)


def test_unknown_layout_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'strided'"):
        workload("SiluFwdOp", {"A": (3,)}, "stridd")
