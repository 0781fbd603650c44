"""Products of groups of rows with the block shapes that a GPU gets, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.grouped_gemm import GroupedConfig, GroupedGemmKernel, GroupedGemmRowsKernel
from tileops_kernels.targets import compile_program

N, K = 53, 70
# Several tiles, no row, one row, whole tiles; and rows past the last group: fewer and more than a tile.
SIZES = torch.tensor([37, 0, 1, 32, 0, 9], dtype=torch.int32)
OFFSETS = (SIZES.cumsum(0) - SIZES).to(torch.int32)
PAST = (0, 5, 40)
CONFIGS = [
    GroupedConfig(16, 32, 32, 128, 2),
    GroupedConfig(32, 64, 32, 128, 2),
    GroupedConfig(64, 32, 64, 128, 0),
]


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def assert_close(got: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_row_meets_the_matrix_of_its_group(config: GroupedConfig, trans_b: bool) -> None:
    func = GroupedGemmKernel.program(n=N, k=K, dtype="bfloat16", trans_b=trans_b, config=config)
    program = compile_program(func, "cpu")
    b = values(len(SIZES), *((N, K) if trans_b else (K, N)), seed=1)
    matrices = (b.mT if trans_b else b).double()
    used = int(SIZES.sum())
    for past in PAST:
        a = values(used + past, K)
        d = torch.full((used + past, N), torch.nan).bfloat16()
        program(a, b, SIZES, OFFSETS, d)
        exact = torch.zeros(d.shape, dtype=torch.float64)
        for matrix, size, start in zip(matrices, SIZES.tolist(), OFFSETS.tolist(), strict=True):
            exact[start : start + size] = a[start : start + size].double() @ matrix
        assert_close(d, exact)


@pytest.mark.parametrize("trans_b", [False, True])
def test_a_group_sums_its_own_rows_alone(trans_b: bool) -> None:
    config = GroupedConfig(32, 32, 16, 128, 1)
    func = GroupedGemmRowsKernel.program(m=K, n=N, dtype="bfloat16", trans_b=trans_b, config=config)
    program = compile_program(func, "cpu")
    used = int(SIZES.sum())
    a, b = values(used + 3, K), values(used + 3, N, seed=1)
    a[used:] = torch.nan
    a[36], b[37] = torch.inf, torch.nan  # in the first group and in the third
    d = torch.full((len(SIZES), K, N), torch.nan).bfloat16()
    program(a, b.T.contiguous() if trans_b else b, SIZES, OFFSETS, d)
    for group, (size, start) in enumerate(zip(SIZES.tolist(), OFFSETS.tolist(), strict=True)):
        exact = a[start : start + size].double().T @ b[start : start + size].double()
        torch.testing.assert_close(d[group].double(), exact, rtol=2**-8, atol=1e-4, equal_nan=True)
