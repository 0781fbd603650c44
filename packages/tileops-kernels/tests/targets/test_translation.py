"""What the CPU target generates: reassociation only where marked, a parallel grid only where allowed."""

from __future__ import annotations

import re

import pytest
import torch

from tileops_kernels.targets import TargetError, compile_program
from tileops_kernels.targets.cpu.compiler import FLAGS


def test_no_flag_changes_the_numerics_of_a_whole_program():
    forbidden = (
        "fast-math",
        "associative-math",
        "signed-zeros",
        "finite-math",
        "reciprocal-math",
        "unsafe-math",
        "Ofast",
    )
    assert [flag for flag in FLAGS if any(word in flag for word in forbidden)] == []


def test_only_a_reduction_is_marked_for_reassociation(programs):
    source = compile_program(programs.row_sums(), "cpu").source
    assert re.findall(r"#pragma omp simd.*", source) == ["#pragma omp simd reduction(+:acc)"]
    assert "omp simd" not in compile_program(programs.scaled(), "cpu").source


@pytest.mark.parametrize(
    ("name", "options", "parallel"),
    [("scaled", {}, True), ("scaled", {"parallel": False}, False), ("counted", {}, False)],
)
def test_the_grid_is_parallel_unless_blocks_meet_in_memory(programs, name, options, parallel):
    source = compile_program(getattr(programs, name)(), "cpu", **options).source
    assert f"#define TL_PARALLEL {int(parallel)}" in source


def test_bounds_are_checked_once_for_a_tile_that_lies_inside(programs):
    source = compile_program(programs.scaled(), "cpu").source
    inside, _, at_the_edge = source.partition("else")
    assert re.search(r"if \(\(\(int64_t\)\w+ \* 4\) \+ 3 < \(int64_t\)rows\)", inside)
    assert inside.count("< (int64_t)rows") == 1
    assert "< (int64_t)rows" in at_the_edge


def test_the_thread_count_is_torchs_at_the_time_of_the_launch(programs, monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: asked.append(1) or 1)
    program = compile_program(programs.scaled(factor=5.0), "cpu")
    x = torch.zeros(5, 32)
    program(x, torch.zeros_like(x), 1.0)
    program.bound(x, torch.zeros_like(x), 1.0)(x, torch.zeros_like(x), 1.0)
    assert len(asked) == 2


def test_running_parallel_loops_backwards_exposes_a_race(programs):
    forwards, backwards = (torch.zeros(64), torch.zeros(64))
    compile_program(programs.racing(), "cpu")(forwards)
    compile_program(programs.racing(), "cpu", reverse_parallel=True)(backwards)
    assert not torch.equal(forwards, backwards)


def test_poison_exposes_storage_that_is_read_before_it_is_written(programs):
    y = torch.zeros(64)
    compile_program(programs.forgetful(), "cpu", poison=True)(y)
    assert y.isnan().all()


def test_a_strict_program_ends_with_the_access_outside_a_tensor(programs):
    program = compile_program(programs.scaled(), "cpu", strict=True)
    x, y = torch.randn(8, 32), torch.zeros(8, 32)
    program(x, y, 1.0)
    assert torch.equal(y, 2 * x + 1)
    with pytest.raises(TargetError, match=r"conftest\.py:\d+: y\[bx \* 4 \+ i, j\] lies outside the tensor"):
        program(x[:7], y[:7], 1.0)  # four rows a block, and one too few


def test_copies_are_bounded_in_a_strict_program_too(programs):
    x, y = torch.randn(8, 32), torch.zeros(8, 32)
    compile_program(programs.copied(), "cpu", strict=True)(x[:7], y[:7])
    assert torch.equal(y[:7], x[:7])


def test_the_checks_leave_a_right_program_alone(programs):
    x, plain, checked = torch.randn(16, 64), torch.zeros(16), torch.zeros(16)
    compile_program(programs.row_sums(), "cpu")(x, plain)
    compile_program(programs.row_sums(), "cpu", poison=True, reverse_parallel=True, strict=True)(x, checked)
    assert torch.equal(plain, checked)
