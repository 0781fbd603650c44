"""The program of the rotary embedding with the block shapes that a GPU gets, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.rope import RopeKernel, pair_dtype
from tileops_kernels.targets import compile_program

TOKENS, SEQ, BASE = 11, 7, 100.0


def rotated(x: torch.Tensor, positions: torch.Tensor, rotary_dim: int, *, interleaved: bool) -> torch.Tensor:
    """x [tokens, heads, head_dim] in float64, its pairs as complex numbers."""
    half = rotary_dim // 2
    turn = torch.outer(positions.double(), BASE ** (-torch.arange(half, dtype=torch.float64) / half))
    first, rest = x.double().split([rotary_dim, x.shape[-1] - rotary_dim], dim=-1)
    pairs = first.unflatten(-1, (half, 2) if interleaved else (2, half))
    a, b = pairs.unbind(-1 if interleaved else -2)
    z = torch.complex(a, b) * torch.polar(torch.ones_like(turn), turn)[:, None]
    return torch.cat([torch.stack([z.real, z.imag], -1 if interleaved else -2).flatten(-2), rest], -1)


def quarter_turns(rotary_dim: int) -> torch.Tensor:
    half = rotary_dim // 2
    return BASE ** (-torch.arange(half, dtype=torch.float64) / half) * 2 / torch.pi


@pytest.mark.parametrize("config", [(1, 256), (4, 64), (16, 128), (2, 32)], ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("heads", "head_dim", "rotary_dim", "vec", "dtype"),
    [
        (1, 26, 10, 1, "float32"),
        (1, 32, 32, 8, "bfloat16"),
        (3, 26, 10, 1, "float32"),
        (5, 32, 32, 4, "float16"),
        (20, 32, 16, 2, "float32"),
    ],
)
def test_no_block_shape_misses_or_mixes_a_pair(
    config, interleaved, heads, head_dim, rotary_dim, vec, dtype
) -> None:
    program = compile_program(
        RopeKernel.program(
            heads=heads, head_dim=head_dim, rotary_dim=rotary_dim, interleaved=interleaved,
            position_dtype=None, dtype=dtype, vec=vec, config=RopeKernel.Config(*config),
        ),
        "cpu",
        pass_configs=RopeKernel.PASS_CONFIGS,
    )  # fmt: skip
    x = torch.randn(TOKENS, heads, head_dim, generator=torch.Generator().manual_seed(0)).to(
        getattr(torch, dtype)
    )
    y = torch.full_like(x, torch.nan)
    stored = getattr(torch, pair_dtype(dtype)) if interleaved else x.dtype
    flat = [t.view(TOKENS, -1).view(stored) for t in (x, y)]
    program(flat[0], quarter_turns(rotary_dim), flat[1], SEQ, 1.0)
    expected = rotated(x, torch.arange(TOKENS) % SEQ, rotary_dim, interleaved=interleaved)
    step = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    torch.testing.assert_close(y.double(), expected, rtol=step, atol=step)


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("config", [(1, 256), (4, 64), (16, 128)], ids=str)
def test_frequencies_may_be_divided_and_pairs_are_stretched(config, heads, divided) -> None:
    head_dim = 26
    half = head_dim // 2
    program = compile_program(
        RopeKernel.program(
            heads=heads, head_dim=head_dim, rotary_dim=head_dim, interleaved=False, position_dtype=None,
            divided=divided, dtype="float32", vec=1, config=RopeKernel.Config(*config),
        ),
        "cpu",
        pass_configs=RopeKernel.PASS_CONFIGS,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS, heads, head_dim, generator=generator)
    divisors = torch.rand(half, generator=generator) + 0.5
    table = quarter_turns(head_dim) * (divisors.double() if divided else 1)
    y = torch.full_like(x, torch.nan)
    given = [divisors] if divided else []
    program(x.view(TOKENS, -1), table, *given, y.view(TOKENS, -1), SEQ, 1.5)
    expected = 1.5 * rotated(x, torch.arange(TOKENS) % SEQ, head_dim, interleaved=False)
    torch.testing.assert_close(y.double(), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("heads", [1, 3])
def test_tokens_come_with_positions_of_their_own(heads) -> None:
    head_dim = 12
    program = compile_program(
        RopeKernel.program(
            heads=heads, head_dim=head_dim, rotary_dim=head_dim, interleaved=False, position_dtype="int64",
            dtype="float32", vec=2, config=RopeKernel.Config(4, 32),
        ),
        "cpu",
        pass_configs=RopeKernel.PASS_CONFIGS,
    )  # fmt: skip
    x = torch.randn(TOKENS, heads, head_dim, generator=torch.Generator().manual_seed(0))
    positions = (torch.arange(TOKENS) * 7919) % 1000
    y = torch.full_like(x, torch.nan)
    program(x.view(TOKENS, -1), positions, quarter_turns(head_dim), y.view(TOKENS, -1), 1.0)
    expected = rotated(x, positions, head_dim, interleaved=False)
    torch.testing.assert_close(y.double(), expected, rtol=2e-6, atol=2e-6)
