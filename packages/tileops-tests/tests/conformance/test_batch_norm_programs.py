"""Programs of batch normalisation and of its gradients with a GPU's block shapes, run on the CPU target."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tileops_kernels.kernels import get_kernel
from tileops_kernels.ops import batch_norm, instance_norm
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


def statistics_by(shares: int, x: torch.Tensor, vec: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Deviations and means of `shares` parts of every channel, merged."""
    batch, channels, space = x.shape
    total, count = batch * space // vec, batch * space
    static = {"dtype": "float32", "vec": vec}
    config = get_kernel("BatchNormStatisticsKernel").default_config(target="cuda", arch="sm_90a", **static)
    tile = config.threads * config.unroll
    share = -(-total // (shares * tile)) * tile
    parts = -(-total // share)
    partial = [torch.full((parts * channels,), torch.nan) for _ in range(2)]
    program("BatchNormStatisticsKernel", **static)(
        x.view(-1), *partial, channels, space // vec, total, share, parts
    )
    variance, mean = (torch.full((channels,), torch.nan) for _ in range(2))
    program("VarianceMergeKernel", out_dtype="float32", root=False, mean=True)(
        *partial, variance, mean, 1, parts, channels, share * vec, count, float(count)
    )
    return mean, variance


@pytest.mark.parametrize(("shape", "vec"), [((3, 5, 4096), 4), ((7, 3, 1331), 1), ((2500, 4, 1), 1)], ids=str)
@pytest.mark.parametrize("shares", [1, 3])
def test_statistics_of_parts_are_those_of_the_channel(shape, vec, shares):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) + 1000
    mean, variance = statistics_by(shares, x, vec)
    torch.testing.assert_close(mean.double(), x.double().mean((0, 2)), rtol=1e-6, atol=0)
    torch.testing.assert_close(variance.double(), x.double().var((0, 2), unbiased=False), rtol=1e-4, atol=0)


def test_running_statistics_take_the_mean_over_instances():
    generator = torch.Generator().manual_seed(2)
    means, variances = (torch.rand(3, 70, generator=generator) for _ in range(2))
    running = [torch.rand(70, generator=generator) for _ in range(2)]
    expected = [
        0.7 * old + 0.3 * new
        for old, new in zip(running, (means.mean(0), 1.5 * variances.mean(0)), strict=True)
    ]
    program("RunningStatisticsKernel")(means.view(-1), variances.view(-1), *running, 3, 1.5, 0.3)
    torch.testing.assert_close(running, expected)


@pytest.mark.parametrize("stride", [1, 2], ids=["dense", "strided"])
def test_a_shared_channel_is_normalised_as_torch_does(stride):
    """More vectors than one block is given: statistics by parts, a merge, running statistics, a pass."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, 320, 256, generator=generator).half()
    mean, variance = (torch.rand(3 * stride, generator=generator)[::stride] for _ in range(2))
    weight, bias = torch.rand(3, generator=generator), torch.rand(3, generator=generator)
    wanted = [mean.clone(), variance.clone()]
    expected = F.batch_norm(x.float(), *wanted, weight, bias, training=True, momentum=0.3)
    assert x.numel() // 3 // 8 >= get_kernel("BatchNormStatisticsKernel").config_for(x.device).least
    found = batch_norm(x, mean, variance, weight, bias, training=True, momentum=0.3)
    torch.testing.assert_close(found.float(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close([mean, variance], wanted)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("shape", "vec"), [((3, 5, 64), 4), ((7, 3, 33), 1), ((600, 4, 1), 1)], ids=str)
def test_every_vector_finds_the_statistics_of_its_channel(shape, vec, affine):
    x, mean, variance, *weights = normal_and_statistics(shape, affine=affine)
    output = torch.full(shape, torch.nan)
    kernel = program(
        "BatchNormInferenceKernel", dtype="float32", affine_dtype="float32" if affine else None, vec=vec
    )
    operands = (t.reshape(-1) for t in (x, mean, variance, *weights))
    kernel(*operands, output.view(-1), shape[2] // vec, x.numel() // vec, 1e-5)
    torch.testing.assert_close(output, F.batch_norm(x, mean, variance, *weights), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape", [(5, 3), (1, 2500), (900, 7), (3, 5, 7), (300, 3, 31), (2, 3, 32), (2, 3, 37, 41)]
)
def test_rows_of_memory_of_any_length_are_normalised(shape, dtype, affine):
    x, mean, variance, *weights = normal_and_statistics(shape, affine=affine)
    x = x.to(dtype)
    expected = F.batch_norm(x.float(), mean, variance, *weights).to(dtype)
    if affine:
        result = batch_norm(x, mean, variance, *weights)
    else:
        result = instance_norm(
            x.reshape(*shape, *(1,) * (3 - len(shape))), mean, variance, use_input_stats=False
        )
    torch.testing.assert_close(result.view(shape), expected)


def normal_and_statistics(shape, *, affine: bool) -> list[torch.Tensor]:
    """x, mean, variance, and if asked for weight and bias."""
    generator = torch.Generator().manual_seed(0)
    x, vectors = torch.randn(shape, generator=generator), torch.rand(4, shape[1], generator=generator) + 0.5
    return [x, *vectors[: 4 if affine else 2]]
