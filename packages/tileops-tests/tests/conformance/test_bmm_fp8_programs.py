"""8-bit products of batches, and matrices turned, with the block shapes of a GPU, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.bmm_fp8 import BmmFp8Kernel, TurnFp8Kernel
from tileops_kernels.targets import compile_program

BATCH, M, N, K = 3, 37, 70, 150


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize(
    "config", [BmmFp8Kernel.Config(128, 64, 128, 256), BmmFp8Kernel.Config(64, 64, 64, 128)]
)
def test_a_product_is_scaled_by_both_factors(config: BmmFp8Kernel.Config, trans_b: bool) -> None:
    func = BmmFp8Kernel.program(n=N, k=K, out_dtype="float16", trans_b=trans_b, config=config)
    program = compile_program(func, "cpu")
    a, b = values(BATCH, M, K), values(BATCH, *((N, K) if trans_b else (K, N)), seed=1)
    d = torch.full((BATCH, M, N), torch.nan).half()
    program(a, b, torch.full((1, 1), 3.0), torch.full((1, 1), 0.25), d)
    exact = a.double() @ (b.double().mT if trans_b else b.double()) * 0.75
    torch.testing.assert_close(d.double(), exact, rtol=2**-10, atol=1e-4)


@pytest.mark.parametrize("config", [TurnFp8Kernel.Config(128, 64, 256), TurnFp8Kernel.Config(16, 32, 32)])
def test_turned_matrices_have_the_same_bytes(config: TurnFp8Kernel.Config) -> None:
    program = compile_program(TurnFp8Kernel.program(n=N, k=K, config=config), "cpu")
    everything = (torch.arange(BATCH * K * N) % 256).to(torch.uint8).view(BATCH, K, N)
    turned = torch.zeros(BATCH, N, K, dtype=torch.uint8)
    program(everything.view(torch.float8_e4m3fn), turned.view(torch.float8_e4m3fn))
    assert torch.equal(turned, everything.mT)
