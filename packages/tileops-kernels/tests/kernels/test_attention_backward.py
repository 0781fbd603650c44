"""Gradients of attention: how calls become launches, one program for all lengths, how it reads on CUDA."""

from __future__ import annotations

import re

import pytest
import torch

from tileops_kernels.errors import ConfigError, NotImplementedOpError
from tileops_kernels.kernels.attention_backward import (
    STATISTICS_ROWS,
    AttentionKeyGradientKernel,
    AttentionQueryGradientKernel,
)
from tileops_kernels.kernels.attention_backward_hopper import (
    AttentionBackwardHopperConfig,
    AttentionGradientHopperKernel,
)
from tileops_kernels.ops import get_op
from tileops_kernels.targets.cuda.lowering import lower

OP = "GroupedQueryAttentionBwdOp"
GRADIENTS = (AttentionQueryGradientKernel, AttentionKeyGradientKernel)


def operands(seq: int, head_dim: int = 32, heads: int = 4, batch: int = 1, dtype=torch.float16):
    query, key = (batch, seq, heads, head_dim), (batch, seq, 2, head_dim)
    tensors = [torch.zeros(shape, dtype=dtype) for shape in (query, key, key, query, query)]
    return *tensors, torch.zeros(batch, heads, seq)


def test_statistics_are_made_once_for_both_gradients(log):
    dq, dk, dv = get_op(OP)()(*operands(70))
    statistics, of_queries, of_keys = log
    assert (statistics.kernel, of_queries.kernel, of_keys.kernel) == (
        "AttentionStatisticsKernel",
        "AttentionQueryGradientKernel",
        "AttentionKeyGradientKernel",
    )
    made = statistics.args[-1]
    assert (made.shape, made.dtype) == ((1, 4, 2, 2, STATISTICS_ROWS), torch.float32)
    assert made is of_queries.args[4] is of_keys.args[4]
    assert of_queries.args[5] is dq
    assert of_keys.args[5:] == (dk, dv)


@pytest.mark.parametrize(
    ("head_dim", "launched"), [(128, ["both"]), (136, ["dk", "dv"]), (100, ["dk", "dv"])]
)
def test_accumulators_of_wide_heads_are_a_launch_each(log, head_dim, launched):
    get_op(OP)()(*operands(3, head_dim))
    assert [call.static["gradients"] for call in log[2:]] == launched


def test_hopper_takes_its_own_schedule_for_the_heads_it_is_written_for(log, monkeypatch):
    serves = classmethod(lambda cls, device: True)
    monkeypatch.setattr(AttentionGradientHopperKernel, "serves_device", serves)
    calls = [(64, torch.bfloat16), (80, torch.float16), (128, torch.float16), (128, torch.float32)]
    for head_dim, dtype in calls:
        get_op(OP)()(*operands(11, head_dim, dtype=dtype))
    hopper = ["AttentionGradientHopperKernel"]
    general = ["AttentionQueryGradientKernel", "AttentionKeyGradientKernel"]
    launched = [call.kernel for call in log if call.kernel != "AttentionStatisticsKernel"]
    assert launched == [*hopper, *general, *hopper, *general]
    assert not AttentionGradientHopperKernel.serves("cpu", None)


def test_hopper_writes_all_gradients_in_one_launch(log, monkeypatch):
    serves = classmethod(lambda cls, device: True)
    monkeypatch.setattr(AttentionGradientHopperKernel, "serves_device", serves)
    gradients = get_op(OP)()(*operands(11, 64))
    statistics, launch = log
    assert launch.args[4] is statistics.args[-1]
    assert [found is given for found, given in zip(launch.args[5:], gradients, strict=True)] == [True] * 3


def test_a_block_that_would_wait_for_itself_is_refused():
    with pytest.raises(ConfigError, match="num_stages is 2, expected at least 3"):
        AttentionBackwardHopperConfig(112, 64, 2)


def test_the_mask_is_the_only_param(log):
    for is_causal in (True, False):
        log.clear()
        get_op(OP)(is_causal=is_causal)(*operands(3))
        assert [call.static.get("causal") for call in log] == [None, is_causal, is_causal]


def test_only_what_is_not_row_major_is_copied(log):
    q, *rest = operands(5)
    get_op(OP)()(q.transpose(1, 2).contiguous().transpose(1, 2), *rest)
    read = log[1].args
    assert read[0].is_contiguous()
    assert all(found is given for found, given in zip(read[1:3], rest, strict=False))


def test_lengths_and_batches_share_a_program():
    for kernel in GRADIENTS:
        kernel.clear()
    for seq, batch in ((1, 1), (9, 3), (130, 1)):
        dq, dk, dv = get_op(OP)()(*operands(seq, batch=batch))
        assert (dq.shape, dk.shape, dv.shape) == ((batch, seq, 4, 32), *[(batch, seq, 2, 32)] * 2)
    assert [kernel.programs() for kernel in GRADIENTS] == [1, 1]


def test_no_query_means_no_launch_and_no_gradient(log):
    dq, dk, dv = get_op(OP)()(*operands(0))
    assert (dq.shape, dk.shape, dv.shape) == ((1, 0, 4, 32), (1, 0, 2, 32), (1, 0, 2, 32))
    dq, dk, dv = get_op(OP)()(*operands(3, heads=0))
    assert dq.numel() == 0
    assert not dk.any()
    assert not dv.any()
    assert log == []


def test_a_head_too_wide_for_the_registers_is_refused(log):
    with pytest.raises(NotImplementedOpError, match="257, expected at most 256"):
        get_op(OP)()(*operands(3, 257))
    assert log == []


@pytest.mark.parametrize("kernel", GRADIENTS, ids=lambda kernel: kernel.__name__)
def test_float32_never_meets_tensor_cores_and_unaligned_heads_take_smaller_tiles(kernel):
    def config(**static):
        return kernel.default_config(target="cuda", arch="sm_90a", **static)

    assert config(head_dim=128, dtype="float32").fma
    assert config(head_dim=128, dtype="bfloat16").block > config(head_dim=100, dtype="bfloat16").block


def test_steps_divide_the_tiles_of_statistics():
    kernel = AttentionKeyGradientKernel
    tables = (kernel.CONFIGS, kernel.UNALIGNED_CONFIGS, kernel.EXACT_CONFIGS)
    steps = {config.step for table in tables for row in table.devices.values() for _, config in row}
    hopper = AttentionGradientHopperKernel.CONFIGS.devices.values()
    steps |= {config.queries for row in hopper for _, config in row}
    assert {STATISTICS_ROWS % step for step in steps} == {0}


def test_hopper_clears_accumulators_once():
    """Around an inner loop the warps that compute would clear them for every head that shares the keys."""
    kernel = AttentionKeyGradientKernel
    static = dict(kernel.samples()[0])
    config = kernel.default_config(target="cuda", arch="sm_90a", **static)
    source = lower(kernel.program(**static, config=config), "sm_90a", kernel.PASS_CONFIGS).device
    body = source[source.rindex("__global__") :]
    _, loading, computing = re.split(r"for \(int turn", body)
    cleared = re.compile(r"\(float4\*\)\((d[kv]_frag) .*broadcast_var")
    assert sorted(cleared.findall(loading)) == ["dk_frag", "dv_frag"]
    assert cleared.findall(computing) == []


def test_hopper_keeps_apart_what_a_block_needs_at_once():
    """Blocks that own keys and blocks that own queries lay out the same memory, each for themselves."""
    kernel = AttentionGradientHopperKernel
    static = dict(kernel.samples()[0])
    config = kernel.default_config(target="cuda", arch="sm_90a", **static)
    code = lower(kernel.program(**static, config=config), "sm_90a", kernel.PASS_CONFIGS)
    body = code.device[code.device.rindex("__global__") :]
    starts = {name: int(at) for name, at in re.findall(r"(\w+) = .*buf_dyn_shmem \+ (\d+)", body)}
    row = static["head_dim"] * 2
    own, stages = 128 * row, config.num_stages
    ring, values = stages * config.queries * row, 2 * config.keys * row
    needed = (
        {"k": own, "v": own, "q": ring, "grad_o": ring, "statistics": stages * 2 * config.queries * 4},
        {"q": own, "grad_o": own, "k": stages * config.keys * row, "v": values},
    )
    for branch, sizes in zip(body.split("\n  } else {\n"), needed, strict=True):
        fetched = set(re.findall(r"tma_load\((\w+)_desc\w*, .*\*\)(\w+)\)\[", branch))
        taken = sorted((starts[buffer], sizes.pop(source)) for source, buffer in fetched)
        assert sizes == {}
        ends = [start + size for start, size in taken]
        assert all(end <= start for end, (start, _) in zip(ends, taken[1:], strict=False))
        assert ends[-1] <= code.dynamic_shared_bytes


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (5, 5), (40, 8)])
def test_hopper_counts_the_threads_that_meet_whatever_the_heads(heads, kv_heads):
    """TileLang counts them with a solver, which products of sizes in a grid can make give up and miscount."""
    kernel = AttentionGradientHopperKernel
    static = {"heads": heads, "kv_heads": kv_heads, "head_dim": 128, "dtype": "float16", "causal": True}
    config = kernel.default_config(target="cuda", arch="sm_90a", **static)
    source = lower(kernel.program(**static, config=config), "sm_90a", kernel.PASS_CONFIGS).device
    assert set(re.findall(r"__sync_thread_partial\(\d+, (\d+)\)", source)) == {"128"}
