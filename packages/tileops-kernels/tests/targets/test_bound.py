"""Launchers whose sizes are fixed: they read addresses and nothing else of their tensors."""

import pytest
import tilelang.language as T
import torch

from tileops_kernels.targets import LaunchError, compile_program


def _negate():
    size = T.dynamic("size")

    @T.prim_func
    def negate(x: T.Tensor((size,), "float32"), y: T.Tensor((size,), "float32"), scale: T.float32):
        with T.Kernel(T.ceildiv(size, 64), threads=64) as block:
            for i in T.Parallel(64):
                if block * 64 + i < size:
                    y[block * 64 + i] = -x[block * 64 + i] * scale

    return negate


@pytest.fixture(scope="module")
def program():
    return compile_program(_negate(), "cpu")


def test_bound_launcher_takes_tensors_of_any_shape(program):
    launch = program.bound(torch.empty(24), torch.empty(24), 1.0)
    y = torch.zeros(4, 6)
    launch(torch.ones(2, 3, 4), y, 2.0)
    assert y.count_nonzero() == 24


def test_sizes_stay_those_of_the_example(program):
    launch = program.bound(torch.empty(3), torch.empty(3), 1.0)
    y = torch.zeros(5)
    launch(torch.ones(5), y, 1.0)
    assert y.ne(0).tolist() == [True, True, True, False, False]


def test_the_example_is_checked(program):
    with pytest.raises(LaunchError, match="x"):
        program.bound(torch.empty(24, dtype=torch.float16), torch.empty(24), 1.0)
    with pytest.raises(LaunchError):
        program.bound(torch.empty(24), torch.empty(23), 1.0)


def test_a_launch_with_too_few_arguments_reads_no_memory(program):
    x = torch.ones(3)
    for launch in (program.bound(x, x, 1.0), program.launcher):
        with pytest.raises(LaunchError, match="arguments and sizes, expected one of each"):
            launch(x, x)


def test_numbers_arrive_as_the_program_declares_them(program):
    y = torch.zeros(3)
    for number in (2, 2.0, True + 1):
        program.bound(y, y, 1.0)(torch.ones(3), y, number)
        assert y.tolist() == [-2.0] * 3


def test_tensors_may_stand_behind_numbers():
    @T.prim_func
    def fill(value: T.float32, y: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=8) as _:
            for i in T.Parallel(8):
                y[i] = value

    y = torch.zeros(8)
    compile_program(fill, "cpu").bound(1.0, y)(3.5, y)
    assert y.tolist() == [3.5] * 8
