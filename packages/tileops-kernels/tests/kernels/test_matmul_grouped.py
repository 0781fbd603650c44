"""Products of groups of rows: which program a call gets, what is copied, what is launched."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

from tileops_kernels.kernels.grouped_gemm import GroupedConfig, GroupedGemmKernel, GroupedGemmRowsKernel
from tileops_kernels.kernels.grouped_gemm_hopper import GroupedGemmHopperKernel
from tileops_kernels.ops import get_op

SHARED_MEMORY = {"sm_80": 163 << 10, "sm_90a": 227 << 10}
SIZES = (3, 0, 5, 2)
ROWS, N, K = 12, 24, 16  # two rows past the last group


def groups(sizes: tuple[int, ...] = SIZES) -> tuple[torch.Tensor, torch.Tensor]:
    starts = [0, *accumulate(sizes[:-1])]
    return torch.tensor(sizes, dtype=torch.int32), torch.tensor(starts, dtype=torch.int32)


def operands(flip_a: bool, flip_b: bool, rows: int = ROWS, n: int = N) -> list[torch.Tensor]:
    if flip_a:
        b_shape = (n, rows) if flip_b else (rows, n)
    else:
        b_shape = (len(SIZES), n, K) if flip_b else (len(SIZES), K, n)
    return [torch.ones(rows, K).half(), torch.ones(b_shape).half(), *groups()]


@pytest.mark.parametrize("flip_b", [False, True])
@pytest.mark.parametrize(
    ("flip_a", "kernel", "shape"),
    [(False, GroupedGemmKernel, (ROWS, N)), (True, GroupedGemmRowsKernel, (len(SIZES), K, N))],
)
def test_a_program_reads_operands_as_they_lie(
    flip_a: bool, flip_b: bool, kernel: type, shape: tuple[int, ...], log: list
) -> None:
    given = operands(flip_a, flip_b)
    d = get_op("GroupedGemmFwdOp")(transpose_a=flip_a, transpose_b=flip_b)(*given)
    assert d.shape == shape
    (launched,) = log
    assert (launched.kernel, launched.static["trans_b"], launched.static["n"]) == (kernel.__name__, flip_b, N)
    assert [x.data_ptr() for x in launched.tensors[:4]] == [x.data_ptr() for x in given]
    assert launched.tensors[4] is d


def test_matrices_that_are_views_are_read_the_other_way_round(log: list) -> None:
    a, b, sizes, offsets = operands(False, True)
    get_op("GroupedGemmFwdOp")(transpose_b=False)(a, b.mT, sizes, offsets)
    assert log[0].static["trans_b"]


def test_indices_of_another_layout_are_copied(log: list) -> None:
    a, b, sizes, offsets = operands(False, True)
    apart = torch.stack((sizes, sizes), dim=1)[:, 0]
    get_op("GroupedGemmFwdOp")()(a, b, apart, offsets)
    assert log[0].tensors[2].is_contiguous()


@pytest.mark.parametrize("flip_a", [False, True])
def test_a_product_without_columns_launches_nothing(flip_a: bool, log: list) -> None:
    d = get_op("GroupedGemmFwdOp")(transpose_a=flip_a)(*operands(flip_a, True, n=0))
    assert d.shape == ((len(SIZES), K, 0) if flip_a else (ROWS, 0))
    assert log == []


def test_experts_have_the_program_of_groups(log: list) -> None:
    a, b, sizes, offsets = operands(False, True)
    moe = get_op("MoeGroupedGemmNopadFwdOp")(numel=ROWS, num_experts=len(SIZES), n=N, k=K)
    assert moe(a, b, sizes, offsets).shape == (ROWS, N)
    assert (log[0].kernel, log[0].static["trans_b"]) == ("GroupedGemmKernel", True)


@pytest.mark.parametrize("flip_a", [False, True])
def test_numbers_of_rows_share_one_program(flip_a: bool) -> None:
    GroupedGemmKernel.clear()
    GroupedGemmRowsKernel.clear()
    op = get_op("GroupedGemmFwdOp")(transpose_a=flip_a)
    for rows in (10, 12, 70):
        op(*operands(flip_a, True, rows=rows))
    assert GroupedGemmKernel.programs() + GroupedGemmRowsKernel.programs() == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_groups_of_few_rows_have_low_tiles_that_most_of_them_fit(arch: str) -> None:
    heights = [
        GroupedGemmKernel.default_config(target="cuda", arch=arch, n=4096, k=4096, group_rows=mean).block_m
        for mean in (1, 8, 16, 32, 48, 64, 128)
    ]
    assert heights == sorted(heights)
    assert all(height > mean for height, mean in zip(heights, (1, 8, 16, 32, 48, 64), strict=False))
    unknown = GroupedGemmKernel.default_config(target="cuda", arch=arch, n=4096, k=4096)
    assert unknown.block_m == heights[-1]


@pytest.mark.parametrize(
    ("kernel", "arch"),
    [(GroupedGemmKernel, "sm_80"), (GroupedGemmRowsKernel, "sm_80"), (GroupedGemmRowsKernel, "sm_90a")],
)
def test_a_tile_fits_shared_memory(kernel: type, arch: str) -> None:
    for _, tile in kernel.CONFIGS.devices[arch]:
        assert isinstance(tile, GroupedConfig)
        stages = max(tile.num_stages, 1)
        written = tile.block_m * tile.block_n if kernel is GroupedGemmKernel else 0
        assert 2 * (stages * (tile.block_m + tile.block_n) * tile.block_k + written) <= SHARED_MEMORY[arch]


@pytest.mark.parametrize(
    ("m", "n", "trans_b", "one_stage"),
    [(64, 64, False, False), (77, 64, False, True), (64, 53, False, True), (64, 53, True, False)],
)
def test_a_sum_over_rows_without_the_copy_engine_has_one_stage(m, n, trans_b, one_stage):
    static = {"m": m, "n": n, "dtype": "float16", "trans_b": trans_b}
    config = GroupedGemmRowsKernel.default_config(target="cuda", arch="sm_90a", **static)
    assert (config.num_stages == 1) is one_stage


@pytest.mark.usefixtures("nvcc")
@pytest.mark.parametrize("static", [s for s in GroupedGemmRowsKernel.samples() if s["m"] % 8], ids=str)
def test_odd_columns_lower(static):
    assert GroupedGemmRowsKernel.lower("sm_90a", **static).spill_store_bytes == 0


@pytest.mark.parametrize(("n", "kernel"), [(40, GroupedGemmHopperKernel), (44, GroupedGemmKernel)])
def test_hopper_forms_what_its_copy_engine_can_fetch(n, kernel, log, monkeypatch):
    monkeypatch.setattr(GroupedGemmHopperKernel, "serves_device", classmethod(lambda cls, device: True))
    monkeypatch.setattr(
        GroupedGemmHopperKernel,
        "config_for",
        classmethod(lambda cls, device, **sizes: cls.default_config(target="cuda", arch="sm_90a", **sizes)),
    )
    get_op("GroupedGemmFwdOp")()(*operands(False, True, n=n))
    get_op("GroupedGemmFwdOp")(transpose_a=True)(*operands(True, True, n=n))
    assert [launched.kernel for launched in log] == [kernel.__name__, "GroupedGemmRowsKernel"]


def test_groups_of_few_rows_have_low_tiles_on_hopper():
    heights = []
    for mean in (1, 8, 16, 24, 48, 64, 128):
        tile = GroupedGemmHopperKernel.default_config(
            target="cuda", arch="sm_90a", n=64, k=64, group_rows=mean
        )
        heights.append(tile.block_n if tile.swap_ab else tile.block_m)
        assert tile.block_m == 64 * tile.groups
        assert tile.block_n % tile.chunk == 0 or tile.swap_ab
        results = 0 if tile.swap_ab else 2 * tile.block_m * tile.chunk
        buffers = tile.num_stages * (tile.block_m + tile.block_n) * tile.block_k
        assert 2 * (buffers + results) <= SHARED_MEMORY["sm_90a"]
    assert heights == sorted(heights)
    assert all(height >= mean for height, mean in zip(heights, (1, 8, 16, 24, 48, 64, 128), strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("nvcc")
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("group_rows", [8, 24, 48])
def test_low_tiles_compile_on_hopper(group_rows, trans_b):
    static = {"n": 520, "k": 264, "dtype": "float16", "trans_b": trans_b}
    config = GroupedGemmHopperKernel.default_config(
        target="cuda", arch="sm_90a", group_rows=group_rows, **static
    )
    found = GroupedGemmHopperKernel.lower("sm_90a", config, **static)
    assert found.spill_store_bytes + found.spill_load_bytes == 0
    assert {"wgmma", "tma", "mbarrier"} <= found.instructions
