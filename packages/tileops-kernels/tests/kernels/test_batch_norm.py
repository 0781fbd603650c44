"""Normalisations per channel: how calls become launches."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.base import Kernel
from tileops_kernels.ops.registry import FLOWS
from tileops_manifest import TensorMeta, load_manifest


def meta_of(tensor: torch.Tensor | None) -> TensorMeta | None:
    return tensor if tensor is None else TensorMeta(tuple(tensor.shape), str(tensor.dtype).split(".")[1])


def prepared(op: str, *inputs: torch.Tensor | None, **params: object):
    entry = load_manifest()[op]
    metas = {name: meta_of(tensor) for name, tensor in zip(entry.inputs, inputs, strict=True)}
    return FLOWS[op].prepare(entry.bind(metas, params), inputs)


def batch_norm(x: torch.Tensor, running: torch.Tensor | None = None, **params: object):
    channel = torch.empty(x.shape[1])
    inputs = (x, channel if running is None else running, channel, channel, channel)
    return prepared("BatchNormFwdOp", *inputs, **params)(*inputs)


def instance_norm(x: torch.Tensor, *, running: bool, affine: bool, **params: object):
    inputs = (
        x,
        *[torch.empty(x.shape[1]) if running else None] * 2,
        *[torch.empty(x.shape[1], dtype=x.dtype) if affine else None] * 2,
    )
    return prepared("InstanceNormFwdOp", *inputs, **params)(*inputs)


def test_a_small_channel_takes_one_launch(log):
    batch_norm(torch.empty(4, 64, 8, 4), training=True)
    assert [launch.kernel for launch in log] == ["BatchNormTrainingKernel"]
    run, total, *_ = log[0].args[6:]
    assert (run, total) == (32 // log[0].static["vec"], 128 // log[0].static["vec"])


def test_blocks_share_a_large_channel_and_cover_it(log):
    batch_norm(torch.empty(4, 2, 256, 256), training=True)
    assert [launch.kernel for launch in log] == [
        "BatchNormStatisticsKernel",
        "VarianceMergeKernel",
        "RunningStatisticsKernel",
        "BatchNormRowsKernel",
    ]
    channels, _, total, share, parts = log[0].args[3:]
    assert channels == 2
    assert parts > 1
    assert (parts - 1) * share < total <= parts * share
    assert log[1].args[4:] == (1, parts, 2, share * log[0].static["vec"], 4 * 256 * 256, 4.0 * 256 * 256)
    assert log[3].args[1] is log[1].args[3]  # the mean of the batch, not the running one
    assert log[3].args[2] is log[1].args[2]


def test_many_large_channels_are_not_shared(log):
    batch_norm(torch.empty(2, 16, 256, 256), training=True)
    assert [launch.kernel for launch in log] == ["BatchNormTrainingKernel"]


def test_inference_takes_one_launch(log):
    batch_norm(torch.empty(4, 2, 256, 256, device="meta"))  # not a CPU's
    assert [launch.kernel for launch in log] == ["BatchNormInferenceKernel"]
    run, total, _ = log[0].args[6:]
    assert (run, total) == (256 * 256 // 4, 4 * 2 * 256 * 256 // 4)


@pytest.mark.parametrize(
    ("shape", "row", "width"),
    [((4, 2, 16, 16), "channel", 256), ((4, 2000), "samples", 2000), ((700, 3, 5), "samples", 1035)],
)
def test_a_cpu_walks_long_channels_or_whole_samples(log, shape, row, width):
    x = torch.empty(shape)
    batch_norm(x)
    assert [launch.kernel for launch in log] == ["BatchNormRowsKernel"]
    assert log[0].static["row"] == row
    assert log[0].args[6:9] == (x.numel(), width, x[0, 0].numel())


def test_a_strided_running_statistic_is_written_where_it_lies(monkeypatch):
    def compiled(cls, device, config=None, **static):
        def launcher(x, running_mean, *rest):
            assert running_mean.is_contiguous()
            running_mean.fill_(7)

        return SimpleNamespace(bound=lambda *example: launcher, launcher=launcher)

    monkeypatch.setattr(Kernel, "compiled", classmethod(compiled))
    storage = torch.zeros(128)
    batch_norm(torch.empty(4, 64, 8), running=storage[::2], training=True)
    assert storage.tolist() == [7, 0] * 64


def test_more_vectors_than_can_be_numbered_are_refused():
    x = torch.empty(1, dtype=torch.float16).expand(1 << 16, 1, (1 << 16) + 1)
    with pytest.raises(NotImplementedOpError, match=r"x\.shape.*at most 2147483647 vectors of 1 elements"):
        batch_norm(x, training=True)


@pytest.mark.parametrize("affine", [True, False])
def test_instances_enter_the_running_statistics_only_where_there_are_some(log, affine):
    instance_norm(torch.empty(3, 8, 5, 5), running=False, affine=affine)
    assert [launch.kernel for launch in log] == ["InstanceNormKernel"]
    log.clear()
    instance_norm(torch.empty(3, 8, 5, 5), running=True, affine=affine)
    assert [launch.kernel for launch in log] == ["InstanceNormKernel", "RunningStatisticsKernel"]
    instances, unbiased, _ = log[1].args[4:]
    assert (instances, unbiased) == (3, 25 / 24)


@pytest.mark.parametrize("affine", [True, False])
def test_running_statistics_alone_normalise_as_batch_norm_does(log, affine):
    instance_norm(torch.empty(3, 8, 5, 5), running=True, affine=affine, use_input_stats=False)
    assert [launch.kernel for launch in log] == ["BatchNormRowsKernel"]
    assert log[0].static["affine_dtype"] == ("float32" if affine else None)


def test_nothing_is_launched_for_no_instance(log):
    assert instance_norm(torch.empty(0, 8, 5), running=False, affine=True).shape == (0, 8, 5)
    assert batch_norm(torch.empty(0, 8, 5)).shape == (0, 8, 5)
    assert log == []
