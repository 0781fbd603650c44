"""The programs of softmax and of the cumulative sum and product with the block shapes that a GPU gets, on
CPUs."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.scan import ColumnScanKernel, ScanConfig, ScanKernel
from tileops_kernels.kernels.softmax import SoftmaxApplyKernel, SoftmaxConfig, SoftmaxKernel
from tileops_kernels.targets import compile_program

ROWS, LENGTH, PITCH, VEC = 11, 300, 324, 4


def rows(seed: int) -> torch.Tensor:
    """Rows that do not follow each other without a gap."""
    return torch.randn(ROWS, PITCH, generator=torch.Generator().manual_seed(seed))


def integers(*shape: int) -> torch.Tensor:
    """Whole numbers, whose sums are exact in every order."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(2)).float()


def filled(x: torch.Tensor) -> torch.Tensor:
    return torch.full(x.shape, torch.nan)


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log"])
@pytest.mark.parametrize(("block_rows", "lanes", "steps"), [(1, 128, 1), (4, 32, 4), (16, 8, 16)])
def test_rows_of_softmax_stay_apart(block_rows: int, lanes: int, steps: int, log: bool) -> None:
    x = rows(0)
    static = {"dtype": "float32", "vec": VEC, "steps": steps, "log": log}
    program = SoftmaxKernel.program(**static, config=SoftmaxConfig(block_rows, lanes, resident=64))
    y = filled(x[:, :LENGTH])
    compile_program(program, "cpu")(x.view(-1), y.view(-1), ROWS, PITCH // VEC, LENGTH // VEC)
    reference = torch.log_softmax if log else torch.softmax
    torch.testing.assert_close(y.double(), reference(x[:, :LENGTH].double(), 1), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log"])
@pytest.mark.parametrize(("splits", "split_vectors"), [(1, 80), (3, 32), (5, 16)])
def test_every_split_of_a_row_of_softmax_is_written(splits: int, split_vectors: int, log: bool) -> None:
    """Statistics of each split, as the launch before gathers them."""
    x = rows(1)
    parts = x[:, :LENGTH].split(split_vectors * VEC, dim=1)
    assert len(parts) == splits
    maxima = torch.stack([part.amax(1) for part in parts], 1)
    totals = torch.stack([(part - part.amax(1, keepdim=True)).exp().sum(1) for part in parts], 1)
    config = SoftmaxConfig(rows=1, lanes=8, resident=8)
    program = SoftmaxApplyKernel.program(dtype="float32", vec=VEC, log=log, config=config)
    y = filled(x[:, :LENGTH])
    compile_program(program, "cpu")(
        x.view(-1), y.view(-1), maxima.view(-1), totals.view(-1),
        ROWS, PITCH // VEC, LENGTH // VEC, splits, split_vectors,
    )  # fmt: skip
    reference = torch.log_softmax if log else torch.softmax
    torch.testing.assert_close(y.double(), reference(x[:, :LENGTH].double(), 1), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("geometry", [(1, 32, 1), (4, 32, 1), (1, 128, 2), (2, 64, 1)], ids=str)
def test_sums_of_rows_carry_over_warps_and_chunks(geometry: tuple[int, int, int]) -> None:
    x = integers(ROWS, PITCH)
    program = ScanKernel.program(op="sum", dtype="float32", vec=VEC, config=ScanConfig(*geometry))
    y = filled(x[:, :LENGTH])
    compile_program(program, "cpu")(x.view(-1), y.view(-1), ROWS, PITCH // VEC, LENGTH // VEC)
    assert torch.equal(y, x[:, :LENGTH].cumsum(1))


@pytest.mark.parametrize("geometry", [(1, 16, 1), (32, 8, 4), (3, 4, 2)], ids=str)
def test_sums_of_columns_carry_over_threads_and_chunks(geometry: tuple[int, int, int]) -> None:
    outer, length, inner = 3, 301, 40
    x = integers(outer, length, inner)
    program = ColumnScanKernel.program(op="sum", dtype="float32", vec=VEC, config=ScanConfig(*geometry))
    y = filled(x)
    compile_program(program, "cpu")(x.view(-1), y.view(-1), outer, length, inner // VEC)
    assert torch.equal(y, x.cumsum(1))


def factors(*shape: int) -> torch.Tensor:
    """Signed powers of two: no product is rounded. Running products stay within 2^-108 and 2^108, those of 24
    factors between are 2^216."""
    sign = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(4)) * 2 - 1
    steps = torch.where((torch.arange(shape[1]) + 12) % 48 < 24, 2.0**-9, 2.0**9)
    return sign * steps.reshape(1, -1, *(1,) * (len(shape) - 2))


@pytest.mark.parametrize("geometry", [(1, 32, 1), (4, 32, 1), (1, 128, 2), (2, 64, 1)], ids=str)
def test_products_of_rows_carry_over_warps_and_chunks(geometry: tuple[int, int, int]) -> None:
    x = factors(ROWS, PITCH)
    program = ScanKernel.program(op="prod", dtype="float32", vec=VEC, config=ScanConfig(*geometry))
    y = filled(x[:, :LENGTH])
    compile_program(program, "cpu", poison=True)(x.view(-1), y.view(-1), ROWS, PITCH // VEC, LENGTH // VEC)
    assert torch.equal(y, x[:, :LENGTH].cumprod(1))


@pytest.mark.parametrize("geometry", [(1, 16, 1), (32, 8, 4), (3, 4, 2)], ids=str)
def test_products_of_columns_carry_over_threads_and_chunks(geometry: tuple[int, int, int]) -> None:
    outer, length, inner = 3, 301, 40
    x = factors(outer, length, inner)
    program = ColumnScanKernel.program(op="prod", dtype="float32", vec=VEC, config=ScanConfig(*geometry))
    y = filled(x)
    compile_program(program, "cpu", poison=True)(x.view(-1), y.view(-1), outer, length, inner // VEC)
    assert torch.equal(y, x.cumprod(1))
