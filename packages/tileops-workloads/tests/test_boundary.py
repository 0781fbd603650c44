"""Boundary shapes are legal, derived, and cover the edges."""

from __future__ import annotations

import pytest

from tileops_manifest import load_manifest
from tileops_workloads import boundary_dims, boundary_report, make_workload
from tileops_workloads.boundary import MAX_ELEMENTS
from tileops_workloads.scale import elements

MANIFEST = load_manifest()


@pytest.mark.parametrize("op", tuple(MANIFEST))
def test_every_case_is_legal_and_small_and_distinct(op):
    entry = MANIFEST[op]
    report = boundary_report(entry)
    assert report.cases
    assert report.tried == len(report.cases) + report.filtered
    seen = set()
    for dims, params, with_ in report.cases:
        binding = entry.bind_dims(dims, params, entry.workloads[0].dtypes[0], with_)
        assert elements(binding) <= MAX_ELEMENTS
        seen.add(repr((sorted(dims.items()), sorted(params.items()), with_)))
    assert len(seen) == len(report.cases)


def sizes(op, name):
    return {dims[name] for dims, _, _ in boundary_dims(MANIFEST[op])}


def test_named_dims_take_one_primes_and_powers_of_two_plus_minus_one():
    for name in "MNK":
        assert {1, 2, 3, 7, 31, 33, 127, 129} <= sizes("GemmFwdOp", name)


def test_packs_are_scalar_empty_and_of_many_dims():
    packs = sizes("SiluFwdOp", "A")
    assert () in packs
    assert any(0 in pack for pack in packs)
    assert max(len(pack) for pack in packs) == 10


def test_tied_dims_move_together():
    heads = {
        (dims["H"], dims["H_kv"]) for dims, _, _ in boundary_dims(MANIFEST["GroupedQueryAttentionFwdOp"])
    }
    assert (7, 7) in heads
    assert any(h // kv > 1 for h, kv in heads)


def test_params_take_their_choices():
    assert {params.get("dim") for _, params, _ in boundary_dims(MANIFEST["SoftmaxFwdOp"])} >= {None, 0, -1}
    approximations = {params.get("approximate") for _, params, _ in boundary_dims(MANIFEST["GeluFwdOp"])}
    assert approximations >= {"none", "tanh"}


def test_cases_can_be_generated():
    entry = MANIFEST["GroupedQueryAttentionDecodePagedWithKVCacheFwdOp"]
    for dims, params, with_ in list(boundary_dims(entry))[::10]:
        inputs = make_workload(entry, None, "float32", dims=dims, params=params, with_=with_).gen_inputs()
        assert inputs["block_table"].shape == (dims["B"], dims["num_pages"])
