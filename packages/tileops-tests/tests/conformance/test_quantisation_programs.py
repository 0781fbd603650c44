"""The program of the 8-bit quantisation with the block shapes that a GPU gets, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.fp8_quant import Fp8QuantKernel
from tileops_kernels.kernels.rowwise_norm import NormConfig
from tileops_kernels.targets import compile_program

ROWS = 37
# Several rows of a block; one row of several warps; a row that is read twice.
SHAPES = [
    (8, 8, NormConfig(rows=16, lanes=8, resident=64)),
    (41, 1, NormConfig(rows=4, lanes=32, resident=64)),
    (300, 4, NormConfig(rows=1, lanes=128, resident=64)),
    (300, 4, NormConfig(rows=1, lanes=32, resident=8)),
]


@pytest.mark.parametrize(("vectors", "vec", "config"), SHAPES, ids=str)
def test_every_row_has_the_scale_of_its_greatest_element(vectors, vec, config):
    func = Fp8QuantKernel.program(vectors=vectors, vec=vec, dtype="float32", config=config)
    program = compile_program(func, "cpu", pass_configs=Fp8QuantKernel.PASS_CONFIGS)
    x = torch.randn(ROWS, vectors * vec, generator=torch.Generator().manual_seed(0))
    x[::3, -1] = -9.0
    x[1] = 0.0
    x[2, 5] = torch.nan
    x[4, 5] = torch.inf
    scale, output = torch.full((ROWS,), -1.0), torch.zeros(x.shape).to(torch.float8_e4m3fn)
    program(x.view(-1), scale, output.view(-1), ROWS, vectors)

    expected = x.abs().amax(1).clamp(min=1e-4) / 448
    torch.testing.assert_close(scale, expected, equal_nan=True, rtol=1e-6, atol=0)
    wanted = x / expected[:, None]
    # Half a step of 3 bits of mantissa, or of the least number.
    torch.testing.assert_close(output.float(), wanted, equal_nan=True, rtol=0.0626, atol=2.0**-10)
