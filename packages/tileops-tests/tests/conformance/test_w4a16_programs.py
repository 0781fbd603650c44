"""Products with 4-bit weights with the block shapes that a GPU gets, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.gemm_w4a16 import GemmW4A16Kernel, W4A16Config
from tileops_kernels.targets import compile_program

M, N = 11, 70
# Several groups a step, one, a part of one, and sizes whose weights are scaled one by one.
CASES = [
    (320, 32, W4A16Config(8, 64, 128, 128, 2)),
    (384, 128, W4A16Config(16, 32, 128, 128, 2, split_k=3)),
    (512, 256, W4A16Config(8, 64, 64, 128, 0)),
    (84, 42, W4A16Config(8, 64, 128, 128, 2)),
    (36, 6, W4A16Config(16, 64, 32, 128, 1, split_k=2)),
]


@pytest.mark.parametrize(("k", "group_size", "config"), CASES, ids=str)
def test_a_weight_is_its_distance_from_zero_times_its_scale(
    k: int, group_size: int, config: W4A16Config
) -> None:
    func = GemmW4A16Kernel.program(n=N, k=k, group_size=group_size, config=config)
    program = compile_program(func, "cpu", pass_configs=GemmW4A16Kernel.PASS_CONFIGS)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(M, k, generator=generator).half()
    nibbles = torch.randint(0, 16, (N, k), generator=generator)
    packed = (nibbles[:, ::2] + 16 * nibbles[:, 1::2]).to(torch.uint8)
    scale = torch.rand(N, k // group_size, generator=generator)
    zero = torch.randint(0, 16, scale.shape, generator=generator).to(torch.uint8)
    split = config.split_k
    d = torch.full((split, M, N), torch.nan) if split > 1 else torch.full((M, N), torch.nan).half()
    program(x, packed, scale, zero, d)

    steps = nibbles - zero.repeat_interleave(group_size, 1).long()
    weights = steps.double() * scale.double().repeat_interleave(group_size, 1)
    exact = x.double() @ weights.T
    got = d.double().sum(0) if split > 1 else d.double()
    # A rounding of each weight, and of the result.
    bound = 2**-11 * (x.double().abs() @ weights.abs().T + exact.abs()) + 1e-6
    assert bool(((got - exact).abs() <= bound).all())
