"""The cpu scale keeps what makes a row hard."""

from __future__ import annotations

import pytest

from tileops_manifest import load_manifest
from tileops_workloads import make_workload
from tileops_workloads.scale import MAX_ELEMENTS, MAX_FLOPS, elements

MANIFEST = load_manifest()
CASES = [(op, row.label) for op in MANIFEST for row in MANIFEST[op].workloads]


def scaled(op, label):
    entry = MANIFEST[op]
    row = entry.row(label)
    return row, make_workload(entry, row, row.dtypes[0], scale="cpu").binding


@pytest.mark.parametrize(("op", "label"), CASES)
def test_every_row_fits_the_budget(op, label):
    _, binding = scaled(op, label)
    assert elements(binding) <= MAX_ELEMENTS
    assert binding.flops <= MAX_FLOPS


@pytest.mark.parametrize(
    "op", [op for op in MANIFEST if any(r.label == "ragged" for r in MANIFEST[op].workloads)]
)
def test_a_small_row_is_left_alone(op):
    row, binding = scaled(op, "ragged")
    assert {**binding.dims, **binding.packs}.items() >= dict(row.dims).items()


ATTENTION = [
    (op, row.label) for op in MANIFEST if "GroupedQueryAttention" in op for row in MANIFEST[op].workloads
]


@pytest.mark.parametrize(("op", "label"), ATTENTION)
def test_queries_per_key_head_are_kept_and_heads_stay_plural(op, label):
    row, binding = scaled(op, label)
    assert binding.dims["H"] // binding.dims["H_kv"] == row.dims["H"] // row.dims["H_kv"]
    assert binding.dims["H_kv"] >= min(row.dims["H_kv"], 2)
    assert binding.dims["B"] >= min(row.dims["B"], 2)
    # Two requests of several pages each leave no room for a head of 256.
    assert binding.dims["D"] == row.dims["D"] or binding.dims["D"] >= 96 < row.dims["D"] > 128


@pytest.mark.parametrize(("op", "label"), [case for case in ATTENTION if "Paged" in case[0]])
def test_pages_keep_their_size_and_several_survive(op, label):
    row, binding = scaled(op, label)
    assert binding.params["page_size"] == row.params["page_size"]
    assert binding.dims["num_pages"] >= 3


@pytest.mark.parametrize(("op", "label"), [case for case in ATTENTION if "Sliding" in case[0]])
def test_a_window_stays_inside_the_sequence(op, label):
    _, binding = scaled(op, label)
    assert 0 < binding.params["window_size_left"] < binding.dims.get("S", binding.dims.get("total_q"))


def test_a_large_gemm_keeps_several_tiles_of_each_size():
    _, binding = scaled("GemmFwdOp", "wide-n-24576")
    assert all(binding.dims[name] >= 192 for name in "MNK")


def test_row_wise_ops_keep_the_innermost_size():
    for op, label in (("RMSNormFwdOp", "llama-8b-prefill"), ("SiluFwdOp", "llama-8b-ffn-prefill")):
        row, binding = scaled(op, label)
        width = (row.dims.get("norm") or row.dims["A"])[-1]
        assert next(iter(binding.inputs.values())).shape[-1] == width


def test_a_ragged_size_stays_ragged():
    entry = MANIFEST["GemmFwdOp"]
    row = entry.row("square-1k-nn")
    w = make_workload(entry, row, "float16", dims={"M": 4095, "N": 2049, "K": 4100}, scale="cpu")
    assert w.binding.dims["M"] % 64 == 63
    assert w.binding.dims["N"] % 64 == 1
    assert w.binding.dims["K"] % 64 == 4


def test_broadcast_packs_shrink_together():
    _, binding = scaled("AddFwdOp", "hidden-state-prefill")
    assert binding.packs["A"] == binding.packs["B"]


def test_sizes_that_are_equal_are_told_apart_by_where_they_stand():
    """Heads that are as many as a head's elements shrink; a head's elements are innermost and stay."""
    row, binding = scaled("Mamba2FwdOp", "mamba2-1p3b-b1-s8k")
    assert row.dims["H"] == row.dims["P"] > binding.dims["H"]
    assert binding.dims["P"] == row.dims["P"]
    assert binding.dims["S"] >= 192


CHUNKED = ("CBProducerFwdOp", "DaCumsumFwdOp", "SSDChunkStateFwdOp", "SSDChunkScanFwdOp")


@pytest.mark.parametrize(("op", "label"), [case for case in CASES if case[0] in CHUNKED])
def test_several_chunks_survive(op, label):
    _, binding = scaled(op, label)
    length = binding.params.get("chunk_len") or binding.dims["Q"]
    assert binding.dims["S"] > length
