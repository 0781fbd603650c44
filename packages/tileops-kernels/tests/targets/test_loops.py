"""Loop nests are rewritten for the compiler: conditions move out, lanes merge, the rest stays."""

# No `from __future__ import annotations`: TileLang reads the annotations of a tile program as it is defined.
import re

import pytest
import tilelang.language as T
import torch

from tileops_kernels.targets import compile_program


def loops(source: str) -> list[str]:
    """The heads of the loops inside blocks."""
    return re.findall(r"for \(int32_t (.*)\) \{", source.partition('extern "C"')[0])


def lanes(index):
    @T.prim_func
    def walk(x: T.Tensor((256,), "float32"), y: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=64):
            for t, v in T.Parallel(64, 4):
                y[index(t, v)] = x[index(t, v)]

    return walk


def test_lanes_of_a_row_are_one_loop():
    assert loops(compile_program(lanes(lambda t, v: t * 4 + v), "cpu").source) == ["v = 0; v < 256; v += 1"]


@pytest.mark.parametrize("index", [lambda t, v: v * 64 + t, lambda t, v: t + v, lambda t, v: t * 4 + v // 2])
def test_loops_that_do_not_walk_memory_in_step_stay_two(index):
    heads = loops(compile_program(lanes(index), "cpu").source)
    assert any(head.startswith("t = 0; t < 64") for head in heads)
    assert any(head.startswith("v = 0; v < 4") for head in heads)


def test_a_condition_on_the_row_is_tested_once_and_one_on_the_lane_bounds_the_loop():
    rows = T.dynamic("rows")

    @T.prim_func
    def masked(x: T.Tensor((rows, 64), "float32"), y: T.Tensor((rows, 64), "float32"), limit: T.int32):
        with T.Kernel(T.ceildiv(rows, 4), threads=64) as block:
            for i, j in T.Parallel(4, 64):
                if block * 4 + i < rows and j < limit:
                    y[block * 4 + i, j] = x[block * 4 + i, j] + 1.0

    source = compile_program(masked, "cpu").source
    assert "tl_min<int32_t>(64, limit)" in source
    assert not re.search(r"if \(.*< limit\)", source)


def test_a_condition_on_data_stays_where_it_is():
    @T.prim_func
    def selected(x: T.Tensor((64,), "float32"), y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                if x[i] > 0:
                    y[i] = x[i]

    assert loops(compile_program(selected, "cpu").source) == ["i = 0; i < 64; i += 1"]


def test_a_division_by_a_size_is_done_once_per_block():
    n = T.dynamic("n")

    @T.prim_func
    def divided(x: T.Tensor((n, 64), "float32"), y: T.Tensor((n, 64), "float32"), parts: T.int32):
        with T.Kernel(n, threads=64) as block:
            for j in T.Parallel(64):
                y[T.truncdiv(block, parts), j] = x[T.truncmod(block, parts), j]

    body = compile_program(divided, "cpu").source.partition('extern "C"')[0]
    assert len(re.findall(r"const auto once\w* = tl_(?:div|mod)", body)) == 2
    assert len(re.findall(r"tl_(?:div|mod)<", body)) == 2


def test_a_run_whose_start_is_read_from_memory_is_guarded_as_a_whole():
    n = T.dynamic("n")

    @T.prim_func
    def gathered(
        x: T.Tensor((n,), "float32"), starts: T.Tensor((8,), "int32"), y: T.Tensor((8, 16), "float32")
    ):
        with T.Kernel(1, threads=128):
            for t, v in T.Parallel(8, 16):
                y[t, v] = x[starts[t] + v]

    program = compile_program(gathered, "cpu")
    inner = program.source.partition("if (")[2].partition("else {")[0]
    assert "v = 0; v < 16" in inner
    assert "?" not in inner.partition("{")[2], "an element is guarded although its run is known to be inside"

    x = torch.arange(40, dtype=torch.float32) + 1
    starts = torch.tensor([0, 24, 25, -1, 39, 40, -16, 7], dtype=torch.int32)
    y = torch.full((8, 16), torch.nan)
    program(x, starts, y)
    at = starts[:, None] + torch.arange(16)
    inside = (at >= 0) & (at < 40)
    assert torch.equal(y, torch.where(inside, x[at.clamp(0, 39)], 0.0))
