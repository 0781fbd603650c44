"""Constants of a model stay moderate, data keeps its specials; rows of spectra add up."""

from __future__ import annotations

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_workloads import make_workload
from tileops_workloads.scale import elements

MANIFEST = load_manifest()
CONSTANTS = {
    "Conv2dFwdOp": ("weight",),
    "BatchNormFwdOp": ("running_mean", "running_var", "weight", "bias"),
    "BatchNormBwdOp": ("weight", "mean", "rstd"),
    "InstanceNormFwdOp": ("running_mean", "running_var", "weight", "bias"),
    "RopeLongRopeFwdOp": ("rescale_factors",),
}


def ragged(op: str, **arguments: object) -> dict[str, torch.Tensor | None]:
    return make_workload(MANIFEST[op], "ragged", "float32", **arguments).gen_inputs()


@pytest.mark.parametrize("op", CONSTANTS)
def test_constants_are_moderate_where_data_is_adversarial(op):
    inputs = ragged(op, distribution="adversarial")
    for name, tensor in inputs.items():
        if name in CONSTANTS[op]:
            assert tensor.abs().max() < 8, name
    data = next(tensor for name, tensor in inputs.items() if name not in CONSTANTS[op])
    assert data.isnan().any()
    assert data.isinf().any()


@pytest.mark.parametrize("distribution", ["normal", "exact", "sparse-exact", "adversarial", "structured"])
def test_constants_have_the_sign_of_what_they_are(distribution):
    norm = ragged("BatchNormFwdOp", distribution=distribution)
    assert (norm["running_var"] >= 0).all()
    assert (norm["weight"] < 0).any()
    assert (ragged("BatchNormBwdOp", distribution=distribution)["rstd"] > 0).all()
    assert (ragged("RopeLongRopeFwdOp", distribution=distribution)["rescale_factors"] >= 1).all()


def test_a_search_meets_two_nans_side_by_side():
    x = ragged("MaxPool2dIndicesFwdOp", distribution="adversarial")["input"]
    nan = x.isnan()
    assert (nan & nan.roll(1, -1)).any()
    assert not nan.all()


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_adversarial_spectra_have_finite_sums(dtype):
    w = make_workload(MANIFEST["FFTC2CFwdOp"], "ragged", dtype, distribution="adversarial")
    x = torch.view_as_real(w.gen_inputs()["input"])
    assert x.isfinite().all()
    assert x.abs().sum().isfinite()
    assert x.abs().max() > 1e20


def test_double_precision_spectra_are_no_float32_numbers():
    x = make_workload(MANIFEST["FFTC2CFwdOp"], "ragged", "complex128").gen_inputs()["input"]
    assert (x.to(torch.complex64) != x).float().mean() > 0.9


def test_a_complex_element_counts_as_two():
    binding = MANIFEST["FFTC2CFwdOp"].bind_dims({"batch": [4], "n": 8}, {}, "complex64")
    assert elements(binding) == 2 * 2 * 4 * 8
