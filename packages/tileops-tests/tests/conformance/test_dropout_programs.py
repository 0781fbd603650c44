"""The program of dropout with a GPU's block shapes, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.dropout import DropoutKernel
from tileops_kernels.targets import compile_program
from tileops_tests.oracles.dropout import philox_of_integers

SEED, FIRST, THRESHOLD = 0x1234_5678_9ABC_DEF0, (1 << 32) - 3, 1 << 30


def words(count: int) -> list[int]:
    """Words of the counters from `FIRST` on, whose number passes from the lower half into the upper one."""
    numbers = range(FIRST, FIRST - (-count // 4))
    key = SEED & 0xFFFFFFFF, SEED >> 32
    return [w for n in numbers for w in philox_of_integers((n & 0xFFFFFFFF, n >> 32, 0, 0), key)][:count]


@pytest.mark.parametrize("count", [1, 7, 2048, 2500])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_every_element_is_dropped_by_its_own_word(dtype: torch.dtype, count: int) -> None:
    static = {"dtype": str(dtype).removeprefix("torch.")}
    config = DropoutKernel.default_config(target="cuda", arch="sm_90a", **static)
    program = compile_program(DropoutKernel.program(**static, config=config), "cpu", poison=True)
    x = torch.ones(count, dtype=dtype)
    y = torch.full_like(x, torch.nan)
    program(x, y, FIRST, SEED & 0xFFFFFFFF, SEED >> 32, THRESHOLD, 1.5)
    expected = torch.tensor([1.5 if word >= THRESHOLD else 0.0 for word in words(count)], dtype=dtype)
    assert torch.equal(y, expected)
