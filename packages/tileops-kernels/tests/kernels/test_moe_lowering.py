"""Routing programs on CUDA: no atomics, loads ahead of their use, padding before copies."""

from __future__ import annotations

import re

import pytest

from tileops_kernels.kernels import get_kernel, list_kernels
from tileops_kernels.targets.cuda.lowering import lower

ARCH = "sm_90a"
ROUTING = [name for name in list_kernels() if name.startswith(("MoePermute", "MoeAlign"))]


def source_of(name: str) -> str:
    kernel = get_kernel(name)
    static = dict(kernel.samples()[0])
    config = kernel.default_config(target="cuda", arch=ARCH, **static)
    return lower(kernel.program(**static, config=config), ARCH, kernel.PASS_CONFIGS).device


@pytest.mark.parametrize("name", ROUTING)
def test_places_do_not_depend_on_the_order_of_threads(name):
    assert "atomic" not in source_of(name).lower()


def test_experts_of_a_chunk_are_compared_four_at_a_time():
    assert re.search(r"\*\(int4\*\)\(quad .*everyone", source_of("MoePermuteRankKernel"))


def test_counts_of_many_chunks_are_read_before_any_is_written():
    source = source_of("MoePermuteStartKernel")
    read, written = re.search(r"= counts\[", source), re.search(r"counts\[.*\] = size", source)
    assert "}\n" in source[read.end() : written.start()]
    assert len(re.findall(r"= counts\[", source)) == 1


def test_rows_of_all_copies_are_read_before_they_are_added():
    source = source_of("MoeUnpermuteKernel")
    assert source.rindex("(rows + ") < source.index("__bfloat1622float2")
    assert "bfloat16_t values[64]" in source  # a vector of 8 for each of 8 copies


def test_the_row_is_read_before_its_places_are_known():
    source = source_of("MoePermuteKernel")
    assert source.index("(x + ") < source.index("topk_ids[") < source.index("__syncthreads()")


def test_padding_is_in_place_before_the_copies_are():
    source = source_of("MoeAlignKernel")
    fill, place = source.index("= copies;"), source.index("listed[(((int*)starts)")
    assert "__syncthreads()" in source[fill:place]
