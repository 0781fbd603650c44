"""Elementwise and row-wise programs read and write 16 bytes at a time, and masks do not take that away."""

from __future__ import annotations

import re

import pytest

from tileops_kernels.kernels import get_kernel
from tileops_kernels.targets.cuda.lowering import lower

ARCH = "sm_90a"
ADD = {"expression": "add", "dtypes": ("bfloat16", "bfloat16"), "out_dtype": "bfloat16", "vec": 8}
VARIANCE = {"root": False, "mean": False}
NORM = {"vectors": 500, "vec": 8, "dtype": "bfloat16"}
SHARE = {"local": 128, "mapped": True, "top_k": 8, "dtype": "bfloat16", "vec": 8}
ROPE = {"heads": 32, "head_dim": 128, "rotary_dim": 128, "position_dtype": None}
ROPE["dtype"] = "float16"

# Kernel, static arguments, tensors read through 16-byte accesses, tensors written through them.
WIDE = [
    ("ElementwiseKernel", ADD, {"a", "b"}, {"y"}),
    ("StridedElementwiseKernel", {**ADD, "kinds": ("flat", "scalar"), "dims": 3}, {"a"}, {"y"}),
    ("StridedElementwiseKernel", {**ADD, "kinds": ("vector", "flat"), "dims": 2}, {"a", "b"}, {"y"}),
    ("GatedKernel", {"activation": "silu", "dtype": "bfloat16", "vec": 8}, {"x"}, {"output"}),
    ("RMSNormKernel", {**NORM, "residual": False}, {"x", "weight"}, {"output"}),
    ("LayerNormKernel", {**NORM, "residual": True}, {"x", "residual_in", "bias"}, {"output", "residual_out"}),
    ("SoftmaxKernel", {"dtype": "float16", "vec": 8, "steps": 2, "log": False}, {"x"}, {"output"}),
    ("ReduceKernel", {"op": "sum", "dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 8}, {"x"}, set()),
    ("ColumnReduceKernel", {"op": "sum", "dtype": "bfloat16", "out_dtype": "state", "vec": 8}, {"x"}, set()),
    ("VarianceKernel", {**VARIANCE, "dtype": "float32", "out_dtype": "state", "vec": 4}, {"x"}, set()),
    ("RopeKernel", {**ROPE, "interleaved": False, "vec": 8}, {"x"}, {"out"}),
    ("RopeKernel", {**ROPE, "interleaved": True, "vec": 4}, {"x"}, {"out"}),
    ("RopeKernel", {**ROPE, "heads": 1, "interleaved": False, "vec": 8}, {"x"}, {"out"}),
    ("ScanKernel", {"op": "sum", "dtype": "bfloat16", "vec": 8}, {"x"}, {"output"}),
    ("ColumnScanKernel", {"op": "sum", "dtype": "bfloat16", "vec": 8}, {"x"}, {"output"}),
    ("Fp8QuantKernel", {"vectors": 8, "vec": 8, "dtype": "bfloat16"}, {"x"}, set()),
    ("MoePermuteKernel", {**SHARE, "alone": False}, {"x"}, {"output"}),
    ("MoeUnpermuteKernel", {"copies": 8, "dtype": "bfloat16", "vec": 8}, {"rows"}, {"output"}),
]


def source_of(name: str, static: dict) -> str:
    kernel = get_kernel(name)
    config = kernel.default_config(target="cuda", arch=ARCH, **static)
    return lower(kernel.program(**static, config=config), ARCH, kernel.PASS_CONFIGS).device


def wide(source: str, tensor: str, *, written: bool) -> bool:
    access = rf"\*\((?:uint4|float4)\*\)\({tensor} \+ .*"
    return re.search(access + (r"\)+ = " if written else ""), source) is not None


@pytest.mark.parametrize(("name", "static", "read", "written"), WIDE, ids=[case[0] for case in WIDE])
def test_global_accesses_are_sixteen_bytes_wide(name, static, read, written):
    source = source_of(name, static)
    assert {t for t in read if wide(source, t, written=False)} == read
    assert {t for t in written if wide(source, t, written=True)} == written


def test_eight_quantised_elements_are_written_at_once():
    source = source_of("Fp8QuantKernel", {"vectors": 8, "vec": 8, "dtype": "bfloat16"})
    assert re.search(r"\*\(fp8_e4_8_t\*\)\(output \+ .*\)+ = ", source)


def test_unaligned_rows_are_read_element_by_element():
    source = source_of("RMSNormKernel", {**NORM, "vectors": 4095, "vec": 1, "residual": False})
    assert not wide(source, "x", written=False)


def test_angles_of_one_head_are_not_shared():
    static = {**ROPE, "interleaved": False, "vec": 8}
    assert "__syncthreads" in source_of("RopeKernel", static)
    assert "__syncthreads" not in source_of("RopeKernel", {**static, "heads": 1})


@pytest.mark.parametrize(("op", "combine"), [("amax", "max"), ("amin", "min"), ("inf_norm", "max")])
@pytest.mark.parametrize("name", ["ReduceKernel", "ColumnReduceKernel"])
def test_extremes_of_16_bits_are_taken_before_an_element_becomes_a_key(name, op, combine):
    source = source_of(name, {"op": op, "dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 8})
    assert f"__h{combine}_nan(" in source
    single = source_of(name, {"op": op, "dtype": "float32", "out_dtype": "float32", "vec": 4})
    assert f"__h{combine}_nan(" not in single


def test_columns_of_one_thread_meet_no_other():
    static = {"result": "softmax", "dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 1, "whole": True}
    kernel = get_kernel("ColumnSoftmaxKernel")
    for rows, shared in ((1, False), (2, True)):
        program = kernel.program(**static, config=kernel.Config(rows, 64, 4, 1))
        source = lower(program, ARCH, kernel.PASS_CONFIGS).device
        assert ("__syncthreads" in source) == shared


@pytest.mark.parametrize(
    ("name", "static", "ahead"),
    [
        ("RMSNormKernel", {"vectors": 1024, "vec": 8, "dtype": "bfloat16", "residual": False}, True),
        ("RMSNormKernel", {"vectors": 1024, "vec": 8, "dtype": "bfloat16", "residual": True}, True),
        ("LayerNormKernel", {"vectors": 655, "vec": 1, "dtype": "bfloat16", "residual": False}, True),
        # No registers are left: two operands beside a residual, or a register per element; rows read twice.
        ("LayerNormKernel", {"vectors": 1024, "vec": 8, "dtype": "bfloat16", "residual": True}, False),
        ("LayerNormKernel", {"vectors": 32767, "vec": 1, "dtype": "bfloat16", "residual": False}, False),
        ("RMSNormKernel", {"vectors": 16384, "vec": 8, "dtype": "bfloat16", "residual": False}, False),
    ],
)
def test_weights_are_read_ahead_of_the_statistics_where_registers_are_left(name, static, ahead):
    body = source_of(name, static)
    first_exchange, weight = (
        body.index("AllReduce<"),
        body.index("(weight + " if static["vec"] > 1 else "weight["),
    )
    assert (weight < first_exchange) == ahead


def test_short_rows_are_reduced_within_a_warp():
    kernel = get_kernel("ReduceKernel")
    config = kernel.default_config(target="cuda", arch=ARCH, vectors=100)
    program = kernel.program(op="sum", dtype="bfloat16", out_dtype="bfloat16", vec=8, config=config)
    source = lower(program, ARCH, kernel.PASS_CONFIGS).device
    assert config.lanes == 32
    assert "AllReduce<tl::SumOp, 32," in source
    assert "__shared__" not in source


REDUCED = {"dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 1}


@pytest.mark.parametrize(
    ("name", "static"),
    [
        ("ReduceKernel", {"op": "sum"}),
        ("VarianceKernel", VARIANCE),
        ("LogSumExpKernel", {}),
        ("ColumnReduceKernel", {"op": "prod"}),
        ("ColumnVarianceKernel", VARIANCE),
        ("ColumnSoftmaxKernel", {"result": "softmax"}),
    ],
)
def test_a_whole_chunk_is_loaded_at_once_and_no_more(name, static):
    chunked = source_of(name, {**REDUCED, **static})
    whole = source_of(name, {**REDUCED, **static, "whole": True})
    assert "for (int chunk" in chunked
    assert "for (int chunk" not in whole
    assert len(re.findall(r"= x\[", whole)) == 1
    # What is not there is filled in, so that no arithmetic waits on the condition of its load.
    assert re.search(r"= x\[.*\n\s+} else {", whole)


def test_rows_joined_from_runs_divide_in_32_bits():
    source = source_of("ReduceKernel", {**REDUCED, "op": "sum", "joined": True, "whole": True})
    assert len(re.findall(r" ?/ ?v__1", source)) == 4
    assert not re.search(r"int64_t[^;]* / ", source)


@pytest.mark.parametrize("name", ["ReduceKernel", "VarianceKernel", "LogSumExpKernel"])
def test_warps_of_a_row_meet_at_one_barrier_per_fold(name):
    static = {"dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 8}
    static |= {"ReduceKernel": {"op": "sum"}, "VarianceKernel": VARIANCE}.get(name, {})
    source = source_of(name, static)
    folds = len(re.findall(r"AllReduce<tl::\w+, 32,", source))
    assert folds == {"ReduceKernel": 1}.get(name, 2)
    assert "AllReduce<tl::SumOp, 256" not in source
    # A second fold waits once more, before it writes where the first one was read.
    assert source.count("__syncthreads()") == 2 * folds - 1


@pytest.mark.parametrize(
    "name", ["ColumnReduceKernel", "ColumnVarianceKernel", "ColumnSoftmaxKernel", "ColumnScanKernel"]
)
def test_columns_find_their_place_in_32_bits_once(name):
    kernel = get_kernel(name)
    source = source_of(name, dict(kernel.samples()[0]))
    assert len(re.findall(r"blockIdx\.x\)+ [/%]", source)) == 2
    assert not re.search(r"int64_t\)\(\(int\)blockIdx\.x\)\) [/%]", source)


def test_two_blocks_of_wide_rows_fit_a_multiprocessor():
    static = {**NORM, "vectors": 2048, "residual": False}
    assert "__launch_bounds__(256, 2)" in source_of("LayerNormKernel", static)
