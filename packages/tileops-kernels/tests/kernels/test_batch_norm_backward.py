"""Gradients of batch normalisation: how calls become launches, and how the programs read on CUDA."""

from __future__ import annotations

import re

import torch

from tileops_kernels.kernels import get_kernel
from tileops_kernels.ops.registry import FLOWS
from tileops_kernels.targets.cuda.lowering import lower
from tileops_manifest import TensorMeta, load_manifest

ARCH = "sm_90a"
OP = "BatchNormBwdOp"


def call(*shape, grad=None):
    x, channel = torch.empty(shape, dtype=torch.float16), torch.empty(shape[1])
    entry, inputs = load_manifest()[OP], (x if grad is None else grad, x, channel, channel, channel)
    metas = {
        name: TensorMeta(tuple(t.shape), str(t.dtype).removeprefix("torch."))
        for name, t in zip(entry.inputs, inputs, strict=True)
    }
    return FLOWS[OP].prepare(entry.bind(metas, {}), inputs)(*inputs)


def test_a_small_channel_is_summed_by_one_block_straight_into_the_gradients(log):
    _, grad_weight, grad_bias = call(4, 64, 8)
    sums, write = log
    assert (sums.kernel, write.kernel) == ("BatchNormSumsKernel", "BatchNormBackwardKernel")
    assert sums.args[4] is grad_bias
    assert sums.args[5] is grad_weight


def test_blocks_share_a_large_channel_and_cover_it(log):
    call(4, 2, 100, 100)
    assert [launch.kernel for launch in log] == [
        "BatchNormSumsKernel",
        "BatchNormSumsMergeKernel",
        "BatchNormBackwardKernel",
    ]
    run, total, share, parts = log[0].args[6:]
    assert (run, total) == (10_000 // log[0].static["vec"], 40_000 // log[0].static["vec"])
    assert (parts - 1) * share < total <= parts * share
    assert log[1].args[0].numel() == 2 * parts
    assert log[2].args[-1] == 1 / 40_000


def test_only_a_gradient_that_is_not_contiguous_is_copied(log):
    grad = torch.empty(8, 64, 4, dtype=torch.float16).permute(2, 1, 0)
    call(4, 64, 8, grad=grad)
    sums, write = log
    assert sums.args[0].is_contiguous()
    assert sums.args[0] is write.args[0]
    assert sums.args[1] is write.args[1]


def source_of(name: str) -> str:
    kernel = get_kernel(name)
    static = dict(kernel.samples()[0])
    config = kernel.default_config(target="cuda", arch=ARCH, **static)
    return lower(kernel.program(**static, config=config), ARCH, kernel.PASS_CONFIGS).device


def test_nothing_is_read_where_there_is_no_vector():
    lines = source_of("BatchNormSumsKernel").splitlines()
    reads = [i for i, line in enumerate(lines) if re.search(r"\*\(uint4\*\)\((grad|x) \+ ", line)]
    assert len(reads) == 2
    assert all(re.search(r"if \(0 <= where\[\w+\]\) \{", lines[i - 1]) for i in reads)


def test_gradients_are_written_sixteen_bytes_at_a_time():
    assert re.search(r"\*\(uint4\*\)\(grad_x \+ .*\)+ = ", source_of("BatchNormBackwardKernel"))
