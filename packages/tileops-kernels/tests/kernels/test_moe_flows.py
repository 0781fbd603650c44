"""How flows around routed experts cut a call into launches, counted on a stub: nothing compiles."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.moe_routing import CHUNK
from tileops_kernels.ops.registry import FLOWS
from tileops_manifest import TensorMeta, load_manifest

EXPERTS, LOCAL, TOP_K, HIDDEN, BLOCK = 16, 6, 4, 64, 8


def call(op, *inputs, **params):
    entry = load_manifest()[op]
    metas = {
        name: None if t is None else TensorMeta(tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for name, t in zip(entry.inputs, inputs, strict=True)
    }
    return FLOWS[op].prepare(entry.bind(metas, params), inputs)(*inputs)


def permute(tokens, *, ids=None, hidden=None, mapped=True):
    ids = torch.zeros(tokens, TOP_K, dtype=torch.int32) if ids is None else ids
    hidden = torch.empty(tokens, HIDDEN, dtype=torch.bfloat16) if hidden is None else hidden
    expert_map = torch.zeros(EXPERTS, dtype=torch.int32) if mapped else None
    local = LOCAL if mapped else EXPERTS
    params = {"num_experts": EXPERTS, "num_experts_local": local}
    return call("MoePermuteNopadFwdOp", hidden, ids, expert_map, **params)


def align(tokens):
    ids = torch.zeros(tokens, TOP_K, dtype=torch.int32)
    params = {"total_tokens": tokens, "top_k": TOP_K, "num_experts": EXPERTS, "block_size": BLOCK}
    return call("MoePermuteAlignFwdOp", ids, **params)


HUGE = {
    "block": ({"block_size": 1 << 31}, r"sorted_token_ids.shape is \(\d+,\), expected at most 1073741824"),
    "block beyond 64 bits": ({"block_size": 1 << 62}, "sorted_token_ids.shape"),
    "experts": ({"num_experts": 1 << 31}, "num_experts is 2147483648, expected at most 4096"),
    "experts in blocks of one": ({"num_experts": 1 << 40, "block_size": 1}, "num_experts is"),
}


@pytest.mark.parametrize("tokens", [0, 1, CHUNK])
@pytest.mark.parametrize("case", HUGE)
def test_sizes_that_no_program_can_number_are_refused_before_they_are_allocated(log, tokens, case):
    changed, message = HUGE[case]
    ids = torch.zeros(tokens, TOP_K, dtype=torch.int32)
    params = {"total_tokens": tokens, "top_k": TOP_K, "num_experts": EXPERTS, "block_size": BLOCK, **changed}
    with pytest.raises(NotImplementedOpError, match=f"MoePermuteAlignFwdOp: {message}"):
        call("MoePermuteAlignFwdOp", ids, **params)
    assert not log


def test_more_local_experts_than_a_block_counts_are_refused(log):
    ids, rows = torch.zeros(1, TOP_K, dtype=torch.int32), torch.empty(1, HIDDEN, dtype=torch.bfloat16)
    with pytest.raises(
        NotImplementedOpError, match="num_experts_local is 1099511627776, expected at most 4096"
    ):
        call("MoePermuteNopadFwdOp", rows, ids, None, num_experts=1 << 40, num_experts_local=1 << 40)
    assert not log


def kernels(log):
    return [launch.kernel for launch in log]


FEW, MANY = CHUNK // TOP_K, CHUNK // TOP_K + 1


def test_places_of_few_copies_are_found_by_one_block(log):
    permute(FEW)
    assert kernels(log) == ["MoePermuteRouteKernel", "MoePermuteKernel"]
    assert log[1].static["alone"]


def test_places_of_many_copies_are_found_chunk_by_chunk(log):
    permute(MANY)
    assert kernels(log) == ["MoePermuteRankKernel", "MoePermuteStartKernel", "MoePermuteKernel"]
    assert log[1].args[-1] == 2
    assert not log[2].static["alone"]


def test_the_list_of_few_copies_is_one_launch_and_of_many_three(log):
    align(FEW)
    align(MANY)
    assert kernels(log) == [
        "MoeAlignKernel",
        "MoeAlignRankKernel",
        "MoeAlignStartKernel",
        "MoeAlignPlaceKernel",
    ]


def test_outputs_of_a_permutation_have_rows_of_all_copies_and_starts_of_local_experts(log):
    output, offsets, sizes, first, places = permute(FEW)
    assert output.shape == (FEW * TOP_K, HIDDEN)
    assert (offsets.shape, sizes.shape, first.shape) == ((LOCAL,), (LOCAL,), (LOCAL + 1,))
    assert (first.dtype, places.dtype, places.numel()) == (torch.int64, torch.int32, FEW * TOP_K)


def test_no_tokens_have_sizes_of_zero_and_no_launch(log):
    output, offsets, sizes, first, places = permute(0)
    assert (output.shape, places.numel()) == ((0, HIDDEN), 0)
    assert not any(t.any() for t in (offsets, sizes, first))
    listed, _, total = align(0)
    assert listed.numel() == EXPERTS * (BLOCK - 1)
    assert not listed.any()
    assert total.tolist() == [0]
    weights = torch.empty(0, TOP_K)
    assert call(
        "MoeUnpermuteFwdOp",
        torch.empty(3, HIDDEN, dtype=torch.bfloat16),
        torch.empty(0, dtype=torch.int32),
        weights,
        total_tokens=0,
        top_k=TOP_K,
        hidden_size=HIDDEN,
    ).shape == (0, HIDDEN)
    assert log == []


def test_rows_of_a_wider_tensor_are_read_in_place(log):
    hidden = torch.empty(FEW, 2 * HIDDEN, dtype=torch.bfloat16)[:, HIDDEN:]
    permute(FEW, hidden=hidden)
    assert log[-1].args[0] is hidden
    vec = log[-1].static["vec"]
    assert log[-1].args[-3:] == (FEW, 2 * HIDDEN // vec, HIDDEN // vec)


def test_ids_without_unit_stride_are_copied_once_for_all_launches(log):
    permute(FEW, ids=torch.zeros(TOP_K, FEW, dtype=torch.int32).t())
    route, move = log
    assert route.args[0].is_contiguous()
    assert route.args[0] is move.args[1]


def test_without_a_map_no_program_reads_one(log):
    permute(MANY, mapped=False)
    assert [launch.static["mapped"] for launch in log if "mapped" in launch.static] == [False, False]
    assert log[0].args[0] is log[0].args[1]


def test_an_unpermutation_is_one_launch(log):
    rows = torch.empty(9, HIDDEN, dtype=torch.float16)
    index, weights = torch.zeros(2 * TOP_K, dtype=torch.int32), torch.zeros(2, TOP_K)
    params = {"total_tokens": 2, "top_k": TOP_K, "hidden_size": HIDDEN}
    output = call("MoeUnpermuteFwdOp", rows, index, weights, **params)
    assert kernels(log) == ["MoeUnpermuteKernel"]
    assert log[0].static["copies"] == TOP_K
    assert (output.shape, output.dtype) == ((2, HIDDEN), torch.float16)
