"""Programs around routed experts with the block shapes that a GPU gets, run on the CPU target."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels import get_kernel
from tileops_kernels.kernels.moe_routing import CHUNK
from tileops_kernels.targets import compile_program

ORDERS = pytest.mark.parametrize("order", [{}, {"reverse_parallel": True}], ids=["forward", "backward"])


def program(name: str, order: dict[str, bool], **static: object):
    """The program with the config of a GPU."""
    kernel = get_kernel(name)
    config = kernel.default_config(target="cuda", arch="sm_90a", **static)
    func = kernel.program(**static, config=config)
    return compile_program(func, "cpu", pass_configs=kernel.PASS_CONFIGS, **order)


def int32(*values: int | tuple[int, ...]) -> torch.Tensor:
    return torch.full(values, -7, dtype=torch.int32)


def experts_of(copies: int, experts: int) -> torch.Tensor:
    """Most copies go to few experts, some experts have none."""
    skewed = torch.rand(copies, generator=torch.Generator().manual_seed(0)) ** 3
    return (skewed * experts).to(torch.int32)


@ORDERS
def test_ranks_keep_the_order_of_copies_within_a_chunk(order):
    copies, local = 2 * CHUNK + 77, 40
    ids = experts_of(copies, local)
    rank, counts = int32(copies), int32(3, local + 1)
    program("MoePermuteRankKernel", order, local=local, mapped=False)(ids, ids, rank, counts.view(-1))
    for chunk, part in enumerate(ids.split(CHUNK)):
        expected = torch.bincount(part, minlength=local + 1)
        assert torch.equal(counts[chunk].long(), expected)
        for expert in part.unique():
            places = torch.nonzero(part == expert).flatten() + chunk * CHUNK
            assert rank[places].tolist() == list(range(len(places)))


@ORDERS
@pytest.mark.parametrize("local", [5, 384, 1500])
def test_counts_of_more_chunks_than_are_read_at_once_add_up(local, order):
    chunks = 37
    counts = torch.randint(
        0, 9, (chunks, local + 1), dtype=torch.int32, generator=torch.Generator().manual_seed(0)
    )
    given = counts.clone()
    offsets, sizes, first = int32(local), int32(local), int32(local + 1).long()
    program("MoePermuteStartKernel", order, local=local)(counts.view(-1), offsets, sizes, first, chunks)
    total = given.sum(0)
    starts = total.cumsum(0) - total
    assert torch.equal(counts.long(), given.cumsum(0) - given)
    assert torch.equal(sizes.long(), total[:-1])
    assert torch.equal(first, starts)
    assert torch.equal(offsets.long(), starts[:-1])


@ORDERS
@pytest.mark.parametrize(("copies", "hidden", "vec"), [(13, 2 * 128 * 8 + 8, 8), (3, 131, 1)])
def test_rows_of_every_group_of_copies_are_added(copies, hidden, vec, order):
    tokens, generator = 3, torch.Generator().manual_seed(0)
    rows = torch.randn(tokens * copies, hidden, generator=generator).bfloat16()
    weights = torch.randn(tokens, copies, generator=generator)
    index = torch.randperm(tokens * copies, generator=generator).to(torch.int32)
    index[::5] = -1
    weights.view(-1)[::5] = torch.inf  # of what is not there
    output = torch.full((tokens, hidden), torch.nan, dtype=torch.bfloat16)
    program("MoeUnpermuteKernel", order, copies=copies, dtype="bfloat16", vec=vec)(
        rows.view(-1), index, weights.view(-1), output.view(-1), tokens, hidden // vec, hidden // vec
    )
    there = (index >= 0)[:, None]
    parts = torch.where(there, rows[index.clamp(min=0)].double() * weights.view(-1, 1), 0.0)
    expected = parts.view(tokens, copies, hidden).sum(1)
    torch.testing.assert_close(output.double(), expected, rtol=4e-3, atol=1e-5)
