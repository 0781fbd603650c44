"""The programs of the reductions with the block shapes that a GPU gets, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels import ops
from tileops_kernels.kernels import get_kernel
from tileops_kernels.kernels.reduction_programs import ReduceConfig
from tileops_kernels.targets import compile_program

ROWS, LENGTH, INNER = 5, 203, 48
VARIANCE = {"root": False, "mean": False}


def program(kernel: str, geometry: tuple[int, int, int], **static: object):
    config = ReduceConfig(*geometry, target_blocks=1)
    return compile_program(get_kernel(kernel).program(**static, config=config), "cpu")


def product(x: torch.Tensor, dims: int | tuple[int, ...]) -> torch.Tensor:
    for dim in sorted([dims] if isinstance(dims, int) else dims, reverse=True):
        x = x.prod(dim)
    return x


# Kernel, static arguments, the reference over a dim, the number the program is given.
REDUCTIONS = {
    "sum": ("Reduce", {"op": "sum"}, lambda x, d: x.sum(d), 0.0),
    "mean": ("Reduce", {"op": "mean"}, lambda x, d: x.mean(d), None),
    "prod": ("Reduce", {"op": "prod"}, product, 0.0),
    "amax": ("Reduce", {"op": "amax"}, lambda x, d: x.amax(d), 0.0),
    "var": ("Variance", VARIANCE, lambda x, d: x.var(d, correction=0), None),
}
LOG_SUM = ("LogSumExp", {}, lambda x, d: x.logsumexp(d), 0.0)


def values(*shape: int) -> torch.Tensor:
    """Values around 1, whose products neither vanish nor overflow."""
    return 1 + torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.1


@pytest.mark.parametrize("geometry", [(1, 128, 2), (4, 32, 1), (2, 64, 4)], ids=str)
@pytest.mark.parametrize("name", [*REDUCTIONS, "logsumexp"])
def test_rows_meet_across_threads_and_warps(name, geometry):
    x = values(ROWS, LENGTH * 4)
    static = {"dtype": "float32", "out_dtype": "float32", "vec": 4}
    kernel, extra, reference, number = {**REDUCTIONS, "logsumexp": LOG_SUM}[name]
    y = torch.full((ROWS,), torch.nan)
    number = float(x.shape[1]) if number is None else number
    program(f"{kernel}Kernel", geometry, **static, **extra)(
        x.view(-1), y, ROWS, LENGTH, LENGTH, 1, LENGTH, number
    )
    torch.testing.assert_close(y, reference(x.double(), 1).float(), rtol=2e-5, atol=0)


@pytest.mark.parametrize("geometry", [(64, 4, 2), (8, 32, 1), (1, 64, 8)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_columns_meet_across_threads(name, geometry):
    x = values(ROWS, LENGTH, INNER)
    kernel, extra, reference, number = REDUCTIONS[name]
    y = torch.full((ROWS, INNER), torch.nan)
    number = float(LENGTH) if number is None else number
    inner = INNER // 4
    program(f"Column{kernel}Kernel", geometry, dtype="float32", out_dtype="float32", vec=4, **extra)(
        x.view(-1), y.view(-1), ROWS, LENGTH, inner, LENGTH * inner, inner, 1, LENGTH, number
    )
    torch.testing.assert_close(y, reference(x.double(), 1).float(), rtol=2e-5, atol=0)


@pytest.mark.parametrize("geometry", [(1, 128, 2), (4, 64, 4)], ids=str)
@pytest.mark.parametrize("name", [*REDUCTIONS, "logsumexp"])
def test_one_chunk_holds_whole_rows(name, geometry):
    x = values(ROWS, LENGTH * 4)
    kernel, extra, reference, number = {**REDUCTIONS, "logsumexp": LOG_SUM}[name]
    y = torch.full((ROWS,), torch.nan)
    number = float(x.shape[1]) if number is None else number
    static = {"dtype": "float32", "out_dtype": "float32", "vec": 4, "whole": True}
    program(f"{kernel}Kernel", geometry, **static, **extra)(
        x.view(-1), y, ROWS, LENGTH, LENGTH, 1, LENGTH, number
    )
    torch.testing.assert_close(y, reference(x.double(), 1).float(), rtol=2e-5, atol=0)


@pytest.mark.parametrize("geometry", [(64, 8, 4), (1, 16, 256)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_one_chunk_holds_whole_columns(name, geometry):
    x = values(ROWS, LENGTH, INNER)
    kernel, extra, reference, number = REDUCTIONS[name]
    y = torch.full((ROWS, INNER), torch.nan)
    number = float(LENGTH) if number is None else number
    static = {"dtype": "float32", "out_dtype": "float32", "vec": 4, "whole": True}
    inner = INNER // 4
    program(f"Column{kernel}Kernel", geometry, **static, **extra)(
        x.view(-1), y.view(-1), ROWS, LENGTH, inner, LENGTH * inner, inner, 1, LENGTH, number
    )
    torch.testing.assert_close(y, reference(x.double(), 1).float(), rtol=2e-5, atol=0)


@pytest.mark.parametrize(("geometry", "whole"), [((2, 64, 2), True), ((1, 8, 2), False)], ids=str)
@pytest.mark.parametrize("name", [*REDUCTIONS, "logsumexp"])
def test_rows_are_joined_from_runs(name, geometry, whole):
    outer, runs, run = 3, 7, 60
    x = values(outer, runs, ROWS, run)
    kernel, extra, reference, number = {**REDUCTIONS, "logsumexp": LOG_SUM}[name]
    y = torch.full((outer, ROWS), torch.nan)
    number = float(runs * run) if number is None else number
    static = {"dtype": "float32", "out_dtype": "float32", "vec": 4, "joined": True, "whole": whole}
    vectors = runs * run // 4
    program(f"{kernel}Kernel", geometry, **static, **extra)(
        x.view(-1), y.view(-1), ROWS, run // 4, vectors, outer, vectors * ROWS, number
    )
    torch.testing.assert_close(y, reference(x.double(), (1, 3)).float(), rtol=2e-5, atol=0)


# The least an op can be told: what stands in for elements that do not exist must not win over it.
EXTREMES = {
    "amax": (-torch.inf, -torch.inf),
    "amin": (torch.inf, torch.inf),
    "argmax": (-torch.inf, 0),
    "argmin": (torch.inf, 0),
    "all": (1.0, True),
    "any": (0.0, False),
    "count_nonzero": (1.0, 3),
    "inf_norm": (0.0, 0.0),
    "prod": (2.0, 8.0),
    "sum": (-0.0, 0.0),
    "l1_norm": (-1.0, 3.0),
}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("op", EXTREMES)
def test_what_stands_in_for_absent_elements_changes_nothing(op, whole):
    value, expected = EXTREMES[op]
    dtype = {"arg": "int64", "cou": "int64", "all": "bool", "any": "bool"}.get(op[:3], "bfloat16")
    static = {"op": op, "dtype": "bfloat16", "out_dtype": dtype, "vec": 1, "whole": whole}
    x = torch.full((2, 3), value, dtype=torch.bfloat16)
    y = torch.full((2,), 77, dtype=getattr(torch, dtype) if dtype != "bool" else torch.uint8)
    program("ReduceKernel", (4, 8, 2), **static)(x.view(-1), y, 2, 3, 3, 1, 3, 3.0)
    assert y.tolist() == [expected] * 2
    columns = torch.full((2,), 77, dtype=y.dtype)
    program("ColumnReduceKernel", (8, 4, 2), **static)(
        x.t().contiguous().view(-1), columns, 1, 3, 2, 6, 2, 1, 3, 3.0
    )
    assert columns.tolist() == [expected] * 2


def test_the_mean_of_a_whole_row_is_finite_where_its_sum_is_not():
    x = torch.full((1, 256), 2.0**127)
    y, mean = torch.empty(1), torch.empty(1)
    static = {"dtype": "float32", "out_dtype": "float32", "vec": 1, "whole": True}
    program("VarianceKernel", (1, 256, 1), **static, root=False, mean=True)(
        x.view(-1), y, mean, 1, 256, 256, 1, 256, 256.0
    )
    torch.testing.assert_close(mean, x[:, 0])
    assert y.tolist() == [0.0]


def test_variance_survives_a_mean_far_above_the_deviation():
    x = 1e4 + torch.randn(ROWS, LENGTH * 4, generator=torch.Generator().manual_seed(1))
    y = torch.empty(ROWS)
    program("VarianceKernel", (1, 128, 4), dtype="float32", out_dtype="float32", vec=4, **VARIANCE)(
        x.view(-1), y, ROWS, LENGTH, LENGTH, 1, LENGTH, float(x.shape[1] - 1)
    )
    exact = x.double().var(1)
    two_moments = x.square().mean(1) - x.mean(1).square()
    assert ((two_moments.double() - exact).abs() / exact).max() > 0.1
    torch.testing.assert_close(y.double(), exact, rtol=1e-4, atol=0)


@pytest.mark.parametrize("geometry", [(64, 1, 1), (8, 16, 1)], ids=str)
def test_states_of_unequal_size_merge_by_their_weight(geometry):
    inner, chunk, states = 3 if geometry[1] > 1 else 1, 50, 70
    total = chunk * (states - 1) + 7
    x = 3 + torch.randn(2, total, inner, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    parts = x.split(chunk, dim=1)
    means = torch.stack([p.mean(1) for p in parts], 1).float()
    deviations = torch.stack([(p - p.mean(1, keepdim=True)).square().sum(1) for p in parts], 1).float()
    y = torch.empty(2, inner)
    mean = torch.empty(2, inner)
    program("VarianceMergeKernel", geometry, out_dtype="float32", root=True, mean=True)(
        deviations.view(-1), means.view(-1), y.view(-1), mean.view(-1),
        2, states, inner, chunk, total, float(total - 1),
    )  # fmt: skip
    torch.testing.assert_close(y.double(), x.std(1), rtol=1e-5, atol=0)
    torch.testing.assert_close(mean.double(), x.mean(1), rtol=1e-5, atol=0)


def test_an_infinite_mean_stays_infinite_over_chunks_and_states():
    x = torch.zeros(4, 256)
    x[0, 3], x[1, 200], x[2, 3], x[2, 200] = torch.inf, -torch.inf, torch.inf, torch.inf
    x[3, 3], x[3, 200] = torch.inf, -torch.inf
    deviations, means = torch.empty(4, 1), torch.empty(4, 1)
    states = program("VarianceKernel", (1, 8, 2), dtype="float32", out_dtype="state", vec=4, **VARIANCE)
    states(x.view(-1), deviations.view(-1), means.view(-1), 4, 64, 64, 1, 64, 1.0)
    torch.testing.assert_close(means[:, 0], x.mean(1), equal_nan=True)
    y, mean = torch.empty(1), torch.empty(1)
    merge = program("VarianceMergeKernel", (1, 1, 1), out_dtype="float32", root=False, mean=True)
    merge(deviations[:2, 0].abs(), torch.tensor([torch.inf, 1.0]), y, mean, 1, 2, 1, 256, 512, 1.0)
    assert mean.tolist() == [torch.inf]


@pytest.mark.parametrize(("shape", "dim"), [((3, 5000), 1), ((700, 6), 0), ((8, 3, 70), [0, 2])], ids=str)
def test_a_variance_out_of_range_is_infinite(shape, dim):
    x = 1e30 * torch.randn(*shape, generator=torch.Generator().manual_seed(3))
    assert ops.var(x, dim=dim).isinf().all()
    assert ops.std(x, dim=dim).isinf().all()
