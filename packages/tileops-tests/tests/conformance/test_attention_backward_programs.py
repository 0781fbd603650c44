"""Programs of attention's gradients with a GPU's block shapes, run on the CPU target."""

from __future__ import annotations

import math

import pytest
import torch

from tileops_kernels.kernels import get_kernel
from tileops_kernels.targets import compile_program

CASES = [
    ("sm_90a", "bfloat16", 40, 3, True),
    ("sm_90a", "bfloat16", 40, 1, False),
    ("sm_80", "float16", 36, 2, True),
    ("sm_90a", "float32", 24, 2, True),
    ("sm_90a", "float16", 136, 1, True),
]
LENGTH, KEY_HEADS = 197, 2


def program(arch: str, name: str, **static: object):
    kernel = get_kernel(name)
    config = kernel.default_config(target="cuda", arch=arch, **static)
    return compile_program(
        kernel.program(**static, config=config), "cpu", pass_configs=kernel.PASS_CONFIGS, poison=True
    )


def saved(dtype: torch.dtype, head_dim: int, group: int, causal: bool) -> dict[str, torch.Tensor]:
    """Inputs of a backward pass whose weights are those of a forward one, 0 where a mask hides a key."""
    generator = torch.Generator().manual_seed(0)
    shapes = dict.fromkeys("kv", (1, LENGTH, KEY_HEADS, head_dim))
    shapes |= dict.fromkeys(("q", "o", "do"), (1, LENGTH, KEY_HEADS * group, head_dim))
    made = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    return made | {"lse": scores(made, causal).logsumexp(dim=-1).float()}


def scores(made: dict[str, torch.Tensor], causal: bool) -> torch.Tensor:
    q, k = made["q"].double(), made["k"].double()
    found = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(q.shape[2] // KEY_HEADS, dim=2))
    found /= math.sqrt(q.shape[3])
    return found.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -math.inf) if causal else found


def gradients(made: dict[str, torch.Tensor], causal: bool) -> tuple[torch.Tensor, ...]:
    q, k, v, o, do, lse = (made[name].double() for name in ("q", "k", "v", "o", "do", "lse"))
    group, scale = q.shape[2] // KEY_HEADS, 1 / math.sqrt(q.shape[3])
    p = torch.exp(scores(made, causal) - lse[..., None])
    change = torch.einsum("bihd,bjhd->bhij", do, v.repeat_interleave(group, dim=2))
    ds = p * (change - (do * o).sum(dim=-1).mT[..., None])
    dq = torch.einsum("bhij,bjhd->bihd", ds, k.repeat_interleave(group, dim=2)) * scale
    by_key_head = (1, LENGTH, KEY_HEADS, group, -1)
    dk = torch.einsum("bhij,bihd->bjhd", ds, q).view(by_key_head).sum(dim=3) * scale
    dv = torch.einsum("bhij,bihd->bjhd", p, do).view(by_key_head).sum(dim=3)
    return dq, dk, dv


@pytest.mark.parametrize(("arch", "dtype", "head_dim", "group", "causal"), CASES)
def test_every_query_reaches_the_keys_that_it_sees(arch, dtype, head_dim, group, causal):
    made = saved(getattr(torch, dtype), head_dim, group, causal)
    heads = KEY_HEADS * group
    static = {"heads": heads, "head_dim": head_dim, "dtype": dtype}
    both = static | {"kv_heads": KEY_HEADS, "causal": causal}
    statistics = torch.full((1, heads, -(-LENGTH // 64), 2, 64), torch.nan)
    program(arch, "AttentionStatisticsKernel", **static)(made["o"], made["do"], made["lse"], statistics)
    found = [torch.full_like(made[name], torch.nan) for name in "qkv"]
    operands = *(made[name] for name in ("q", "k", "v", "do")), statistics
    program(arch, "AttentionQueryGradientKernel", **both)(*operands, found[0])
    for which in get_kernel("AttentionKeyGradientKernel").launches(head_dim):
        program(arch, "AttentionKeyGradientKernel", **both, gradients=which)(*operands, *found[1:])
    step = 1e-5 if dtype == "float32" else torch.finfo(getattr(torch, dtype)).eps
    for gradient, expected in zip(found, gradients(made, causal), strict=True):
        assert not gradient.isnan().any()
        error = (gradient.double() - expected).norm() / expected.norm()
        assert error < 2 * step


def test_a_query_past_the_end_weighs_nothing():
    made = saved(torch.float16, 24, 1, True)
    statistics = torch.full((1, KEY_HEADS, 4, 2, 64), torch.nan)
    program("sm_90a", "AttentionStatisticsKernel", heads=KEY_HEADS, head_dim=24, dtype="float16")(
        made["o"], made["do"], made["lse"], statistics
    )
    past = LENGTH - 3 * 64
    assert (statistics[..., 3, 0, past:] == math.inf).all()
    assert (statistics[..., 3, 1, past:] == 0).all()
