"""Programs of tables of positions with a GPU's block shapes, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.position_tables import AlibiKernel, SinusoidalKernel, TableConfig
from tileops_kernels.targets import compile_program

CONFIGS = [TableConfig(4, 32), TableConfig(4, 256), TableConfig(1, 8)]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize(("size", "vec"), [(131, 1), (24, 4), (2, 2)])
def test_every_bias_is_its_heads_slope_times_the_distance(config: TableConfig, size: int, vec: int) -> None:
    program = compile_program(
        AlibiKernel.program(dtype="float32", vec=vec, config=config), "cpu", poison=True
    )
    slopes = torch.tensor([0.5, 0.25, 4.0])
    y = torch.full((3, size, size), torch.nan)
    program(slopes, y.view(-1), size, size // vec)
    place = torch.arange(size)
    assert torch.equal(y, -(place[:, None] - place).abs() * slopes[:, None, None])


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize(("positions", "columns", "vec"), [(9, 38, 2), (130, 24, 4), (1, 2, 2)])
def test_columns_are_sines_and_cosines_in_turn(
    config: TableConfig, positions: int, columns: int, vec: int
) -> None:
    static = {"dtype": "float32", "vec": vec}
    program = compile_program(SinusoidalKernel.program(**static, config=config), "cpu", poison=True)
    radians = 3.0 ** torch.linspace(4, -4, columns // 2, dtype=torch.float64)
    y = torch.full((positions, columns), torch.nan)
    program(radians * 2 / torch.pi, y.view(-1), positions, columns // vec)
    angles = torch.arange(positions)[:, None] * radians
    expected = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=3e-7)
