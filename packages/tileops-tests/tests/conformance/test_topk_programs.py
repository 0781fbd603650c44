"""The program of the top-k selection with the block shapes that a GPU gets, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.topk import TopkConfig, TopkKernel
from tileops_kernels.targets import compile_program

KEYS = 9_004
GPU = TopkConfig(threads=512, elements=8, blocks=2)
# Each finds room in its own way: random scores seldom run out of it, rising ones at every tile.
SCORES = {
    "random": lambda x: x,
    "rising": lambda x: x.sort().values,
    "falling": lambda x: x.sort(descending=True).values,
    "equal": torch.ones_like,
    "few values": lambda x: x.round(),
    "negative": lambda x: -x.abs() - 1e-30,
    "infinite": lambda x: torch.where(x > 0, x * torch.inf, -torch.inf),
}
RANGES = [(0, KEYS), (3, KEYS - 1), (1, 4097), (5, 905), (7, 8)]


@pytest.fixture(scope="module", params=[{}, {"reverse_parallel": True}, {"poison": True}], ids=str)
def program(request):
    static = {"k": 1024, "vec": 4, "grouped": False}
    func = TopkKernel.program(**static, config=GPU)
    return compile_program(func, "cpu", pass_configs=TopkKernel.PASS_CONFIGS, **request.param)


@pytest.mark.parametrize("kind", SCORES)
def test_the_greatest_of_every_range_are_selected_once(program, kind):
    k, rows = 1024, len(RANGES)
    x = SCORES[kind](torch.randn(rows, KEYS, generator=torch.Generator().manual_seed(0))).contiguous()
    starts, ends = torch.tensor(RANGES, dtype=torch.int32).T.contiguous()
    indexes = torch.full((rows, k), -7, dtype=torch.int32)
    program(x.view(-1), starts, ends, indexes.view(-1), KEYS // 4, 1)
    for scores, (start, end), found in zip(x, RANGES, indexes, strict=True):
        count = min(k, end - start)
        chosen, rest = found[:count].long(), found[count:]
        assert (rest == -1).all()
        assert chosen.unique().numel() == count
        assert ((chosen >= start) & (chosen < end)).all()
        greatest = scores[start:end].topk(count).values
        assert torch.equal(scores[chosen].sort(descending=True).values, greatest)
