"""Programs of the gradients of batch normalisation with a GPU's block shapes, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels import get_kernel
from tileops_kernels.targets import compile_program


def program(name: str, **static: object):
    kernel = get_kernel(name)
    config = kernel.default_config(target="cuda", arch="sm_90a", **static)
    return compile_program(
        kernel.program(**static, config=config), "cpu", pass_configs=kernel.PASS_CONFIGS, poison=True
    )


@pytest.mark.parametrize(("shape", "vec"), [((3, 5, 4096), 4), ((7, 3, 331), 1), ((2500, 4, 1), 1)], ids=str)
def test_parts_of_channels_add_up_and_every_element_is_written(shape, vec):
    batch, channels, space = shape
    generator = torch.Generator().manual_seed(0)
    grad, x = (torch.randn(shape, generator=generator) for _ in range(2))
    weight, mean, rstd = (torch.rand(channels, generator=generator) + 0.5 for _ in range(3))
    static = {"dtype": "float32", "vec": vec}
    total = batch * space // vec
    config = get_kernel("BatchNormSumsKernel").default_config(target="cuda", arch="sm_90a", **static)
    share = config.threads * config.unroll
    parts = -(-total // share)
    assert parts > 1
    shares = [torch.full((parts * channels,), torch.nan) for _ in range(2)]
    program("BatchNormSumsKernel", **static)(
        grad.view(-1), x.view(-1), mean, rstd, *shares, space // vec, total, share, parts
    )
    sums = [torch.full((channels,), torch.nan) for _ in range(2)]
    program("BatchNormSumsMergeKernel")(*shares, *sums, parts)
    grad_x = torch.full(shape, torch.nan)
    program("BatchNormBackwardKernel", **static)(
        grad.view(-1), x.view(-1), weight, mean, rstd, *sums, grad_x.view(-1),
        space // vec, x.numel() // vec, 1 / (batch * space),
    )  # fmt: skip

    dy, normal = grad.double(), (x.double() - mean.double()[:, None]) * rstd.double()[:, None]
    expected = dy.sum((0, 2)), (dy * normal).sum((0, 2))
    mean_dy, mean_product = (s[:, None] / (batch * space) for s in expected)
    expected_x = (weight * rstd)[:, None] * (dy - mean_dy - normal * mean_product)
    for found, wanted in zip((*sums, grad_x), (*expected, expected_x), strict=True):
        torch.testing.assert_close(found.double(), wanted.double(), rtol=1e-5, atol=1e-3)
