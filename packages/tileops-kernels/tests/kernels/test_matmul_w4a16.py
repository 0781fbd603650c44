"""Products with 4-bit weights: schedules, what is copied, what is launched."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.kernels.gemm_w4a16 import GemmW4A16Kernel, W4A16Config, piece_of
from tileops_kernels.ops import get_op

SHARED_MEMORY = {"sm_80": 163 << 10, "sm_90a": 227 << 10}
M, N, K, GROUP = 3, 8, 64, 32


def operands(m: int = M, n: int = N, k: int = K, group: int = GROUP) -> list[torch.Tensor]:
    return [
        torch.ones(m, k).half(),
        torch.zeros(n, k // 2, dtype=torch.uint8),
        torch.ones(n, k // group),
        torch.ones(n, k // group, dtype=torch.uint8),
    ]


def test_operands_are_read_in_place_and_other_layouts_copied_once(log: list) -> None:
    x, *weights = operands()
    op = get_op("GemmW4A16FwdOp")(group_size=GROUP)
    op(x, *weights)
    op(torch.ones(K, M).half().T, *weights)
    assert [launched.kernel for launched in log] == ["GemmW4A16Kernel"] * 2
    in_place, copied = (launched.tensors for launched in log)
    assert [t.data_ptr() for t in in_place[:4]] == [t.data_ptr() for t in (x, *weights)]
    assert copied[0].is_contiguous()
    assert copied[1] is weights[0]


def test_parts_of_the_sum_are_added_by_a_second_launch(log: list, monkeypatch: pytest.MonkeyPatch) -> None:
    config = W4A16Config(8, 64, 32, 128, 2, split_k=2)
    monkeypatch.setattr(GemmW4A16Kernel, "config_for", classmethod(lambda *args, **sizes: config))
    d = get_op("GemmW4A16FwdOp")(group_size=GROUP)(*operands(M + 1))
    assert [launched.kernel for launched in log] == ["GemmW4A16Kernel", "SplitKSumKernel"]
    parts = log[0].tensors[4]
    assert (parts.shape, parts.dtype) == ((2, M + 1, N), torch.float32)
    assert log[1].tensors[0] is parts
    assert log[1].tensors[1] is d


@pytest.mark.parametrize("sizes", [(0, N, K), (M, 0, K), (M, N, 0)])
def test_an_empty_product_launches_nothing(sizes: tuple[int, int, int], log: list) -> None:
    d = get_op("GemmW4A16FwdOp")(group_size=GROUP)(*operands(*sizes))
    assert d.shape == sizes[:2]
    assert not d.any()
    assert log == []


@pytest.mark.parametrize(("n", "k"), [(8192, 8192), (8192, 16384), (7168, 20480), (8192, 81920)])
def test_one_row_has_a_block_for_most_places(n: int, k: int) -> None:
    config = GemmW4A16Kernel.default_config(target="cuda", arch="sm_90a", n=n, k=k, m=1)
    blocks = n // config.block_n * config.split_k
    assert 0.8 * 4 * 132 <= blocks <= 4 * 132
    assert k % (config.block_k * config.split_k) == 0


def test_many_rows_are_not_split() -> None:
    sizes = {"n": 8192, "k": 8192, "m": 1024}
    assert GemmW4A16Kernel.default_config(target="cuda", arch="sm_90a", **sizes).split_k == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_blocks_of_few_rows_that_run_together_fit_shared_memory(arch: str) -> None:
    together = {"sm_80": 2, "sm_90a": 4}[arch]
    for _, tile in GemmW4A16Kernel.CONFIGS.devices[arch][:1]:
        row = tile.block_k // 2 + 16 + tile.block_k // 128 * 5  # weights, scales and zeros
        stage = tile.block_m * tile.block_k * 2 + tile.block_n * row
        assert together * (tile.num_stages * stage + tile.block_m * tile.block_n * 4) <= SHARED_MEMORY[arch]


def test_weights_that_share_a_factor_are_multiplied_together() -> None:
    assert piece_of(128, 512) == 128
    assert piece_of(16, 512) == 0  # too few for a product of their own
    assert piece_of(42, 512) == 0


def test_row_counts_share_one_program() -> None:
    GemmW4A16Kernel.clear()
    op = get_op("GemmW4A16FwdOp")(group_size=GROUP)
    for m in (2, 7, 65):
        assert op(*operands(m)).shape == (m, N)
    assert GemmW4A16Kernel.programs() == 1
