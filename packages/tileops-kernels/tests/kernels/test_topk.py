"""The selection of the greatest scores: how calls become launches, and what its program does on CUDA."""

from __future__ import annotations

import re

import pytest
import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.topk import TopkKernel
from tileops_kernels.ops.flows import _rows
from tileops_kernels.ops.registry import FLOWS
from tileops_kernels.targets.cuda.lowering import lower
from tileops_manifest import TensorMeta, load_manifest

ARCH = "sm_90a"
OP = "TopkSelectorFwdOp"


def call(scores, topk):
    starts, ends = (torch.zeros(scores.shape[:2], dtype=torch.int32) for _ in range(2))
    entry, inputs = load_manifest()[OP], (scores, starts, ends)
    metas = {
        name: TensorMeta(tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for name, t in zip(entry.inputs, inputs, strict=True)
    }
    return FLOWS[OP].prepare(entry.bind(metas, {"topk": topk}), inputs)(*inputs)


def test_scores_of_one_group_are_read_four_at_a_time_and_of_several_one_by_one(log):
    call(torch.empty(1, 3, 64, 1), 8)
    call(torch.empty(1, 3, 64, 2), 8)
    assert [launch.static for launch in log] == [
        {"k": 8, "vec": 4, "grouped": False},
        {"k": 8, "vec": 1, "grouped": True},
    ]
    assert [launch.numbers for launch in log] == [(16, 1), (128, 2)]


def test_rows_of_a_wider_tensor_are_read_in_place(log):
    scores = torch.empty(1, 3, 96, 1)[:, :, 32:]
    call(scores, 8)
    assert log[0].tensors[0] is scores
    assert log[0].numbers == (24, 1)


def test_huge_scores_are_cut_into_launches_that_cover_them(log, monkeypatch):
    monkeypatch.setattr(_rows, "MAX_ELEMENTS", 2 * 64)
    assert call(torch.empty(1, 5, 64, 1), 8).shape == (1, 5, 1, 8)
    assert [launch.sizes for launch in log] == [[128, 2, 2, 16], [128, 2, 2, 16], [64, 1, 1, 8]]


def test_no_queries_and_no_groups_have_no_launch(log):
    assert call(torch.empty(2, 0, 64, 1), 8).shape == (2, 0, 1, 8)
    assert call(torch.empty(2, 3, 64, 0), 8).shape == (2, 3, 0, 8)
    assert log == []


def test_more_indices_than_a_block_has_room_for_are_refused():
    most = TopkKernel.MAX_K
    with pytest.raises(NotImplementedOpError, match=f"topk.*{most + 1}.*at most {most}"):
        call(torch.empty(1, 1, most + 1, 1), most + 1)


@pytest.fixture(scope="module")
def source():
    static = {"k": 1024, "vec": 4, "grouped": False}
    config = TopkKernel.default_config(target="cuda", arch=ARCH, **static)
    return lower(TopkKernel.program(**static, config=config), ARCH, TopkKernel.PASS_CONFIGS).device


def test_a_selection_does_not_depend_on_the_order_of_threads(source):
    assert "atomic" not in source.lower()


def test_the_next_tile_is_under_way_while_one_is_counted(source):
    reads = [found.start() for found in re.finditer(r"\*\(float4\*\)\(scores", source)]
    first_tile, next_tile = reads
    loop, scan = source.index("for (int step"), source.index("CumSum2D")
    assert first_tile < loop < next_tile < scan


def test_two_blocks_share_a_multiprocessor(source):
    assert "__launch_bounds__(512, 2)" in source
