"""The block shapes that reductions get on a GPU."""

from __future__ import annotations

import pytest

from tileops_kernels.kernels import get_kernel


@pytest.mark.parametrize(
    ("rows", "vectors", "lanes"),
    [
        (1, 200, 32),
        (37, 655, 256),
        (2048, 512, 128),
        (8192, 1024, 256),
        (1024, 4096, 256),
        (64, 4096, 512),
        (1, 1 << 20, 512),
    ],
)
def test_few_long_rows_get_more_threads_each(rows, vectors, lanes):
    kernel = get_kernel("ReduceKernel")
    config = kernel.default_config(target="cuda", arch="sm_90a", vectors=vectors, rows=rows)
    assert config.lanes == lanes


@pytest.mark.parametrize(("vectors", "lanes"), [(4096, 512), (4097, 256), (1 << 20, 256)])
def test_parts_of_long_variances_leave_room_for_more_blocks(vectors, lanes):
    kernel = get_kernel("VarianceKernel")
    assert kernel.default_config(target="cuda", arch="sm_90a", vectors=vectors, rows=64).lanes == lanes


@pytest.mark.parametrize("length", [2, 4, 5, 8])
def test_very_short_columns_are_one_thread_s(length):
    for name in ("ColumnReduceKernel", "ColumnVarianceKernel", "ColumnSoftmaxKernel"):
        sizes = {"outer": 1, "length": length, "inner": 1000}
        config = get_kernel(name).default_config(target="cuda", arch="sm_90a", **sizes)
        assert config.rows == 1


@pytest.mark.parametrize(
    ("outer", "inner", "lanes", "rows"),
    [(1, 512, 4, 128), (1, 1024, 8, 128), (1, 1 << 16, 32, 8), (4096, 2, 4, 64), (1, 2, 4, 128)],
)
def test_few_columns_get_narrow_blocks_of_many_threads(outer, inner, lanes, rows):
    kernel = get_kernel("ColumnReduceKernel")
    config = kernel.default_config(target="cuda", arch="sm_90a", inner=inner, outer=outer)
    assert (config.lanes, config.rows) == (lanes, rows)


@pytest.mark.parametrize(
    ("outer", "length", "inner"), [(1, 5, 4847), (5, 37, 131), (1, 185, 131), (1, 256, 128), (1, 2, 1 << 14)]
)
@pytest.mark.parametrize("name", ["ColumnReduceKernel", "ColumnVarianceKernel", "ColumnSoftmaxKernel"])
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_short_columns_of_small_tensors_are_one_chunk_of_few_blocks(name, outer, length, inner, target):
    kernel = get_kernel(name)
    arch = "sm_90a" if target == "cuda" else None
    config = kernel.default_config(target=target, arch=arch, outer=outer, length=length, inner=inner)
    assert length <= config.rows * config.unroll
    assert outer * -(-inner // config.lanes) <= 256


@pytest.mark.parametrize(("outer", "length", "inner"), [(1, 257, 64), (1, 256, 129)])
def test_longer_columns_and_larger_tensors_are_not(outer, length, inner):
    sizes = {"outer": outer, "length": length, "inner": inner}
    config = get_kernel("ColumnReduceKernel").default_config(target="cuda", arch="sm_90a", **sizes)
    assert (config.rows, config.lanes, config.unroll) == (128, 4, 8)
