"""Batch normalisation: statistics per channel of (batch, channels, space), then one pass that writes.

A channel that one block can read fast is one launch: statistics, running statistics, result. Blocks share a
longer one: each writes the state of its part, the states are merged, and a pass over the whole tensor writes.
Statistics are float32 pairs of mean and squared deviations, merged by the rule of Chan, Golub and LeVeque
in a fixed order: nothing cancels, however large the mean.

Source: arXiv:1502.03167.
"""

from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.accumulators import moments, walk_along
from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.channel_pass import ChannelPass
from tileops_kernels.kernels.channel_tile import channel_tile
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS
from tileops_kernels.kernels.signatures import flat_tensors, prim_func

__all__ = [
    "BatchNormInferenceKernel",
    "BatchNormKernel",
    "BatchNormStatisticsKernel",
    "BatchNormTrainingKernel",
    "ChannelConfig",
    "ChannelVectorKernel",
    "RunningStatisticsKernel",
    "for_any_size",
]


@dataclass(frozen=True)
class ChannelConfig:
    """A block holds `unroll` vectors in each of `threads`; a channel of `least` vectors or more is shared
    until there are `target_blocks` blocks."""

    threads: int
    unroll: int
    least: int = 1
    target_blocks: int = 1


def for_any_size(*, cpu: ChannelConfig, cuda: ChannelConfig) -> ConfigTable:
    """Return the table of one config per device."""
    return ConfigTable(size=lambda sizes: 0, devices={"cpu": ((None, cpu),), "sm_80": ((None, cuda),)})


class BatchNormKernel(Kernel):
    """What the programs over tensors of (batch, channels, space) have in common."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS  # what is read here is read again: it may stay in the cache
    Config = ChannelConfig

    @classmethod
    def samples(cls):
        """Return images and ragged ones."""
        return ({"dtype": "float16", "vec": 8}, {"dtype": "float32", "vec": 1})


class ChannelVectorKernel(Kernel):
    """What the programs over vectors of channels have in common; a thread takes one channel."""

    SUPPORTED_DTYPES = frozenset({"float32"})
    PASS_CONFIGS = PASS_CONFIGS
    Config = ChannelConfig

    @classmethod
    def samples(cls):
        """Return the one program."""
        return ({},)


def entered(running, new, momentum):
    """Return a running statistic that `new` has entered."""
    return (T.float32(1) - momentum) * running + momentum * new


def _statistics(tile, dtype):
    """Return the accumulator of a channel and a macro that updates its states with the vectors from number
    `first` up to `last`."""
    accumulator, find, load = moments(tile), tile.find(), tile.load(dtype)

    def walk(places, first, last):
        return walk_along(
            tile,
            lambda i, l: T.truncdiv(T.max(last - first - l + tile.lanes - 1, 0), tile.lanes),
            tile.vec,
            exists=lambda chunk, u, i, l: places[u, l] >= 0,
            index=lambda chunk, u, i, l, v: tile.vector(chunk, u, l) * tile.vec + v,
            size=(last - first) * tile.vec,
        )

    @T.macro
    def gather(x, places, values, states, totals, first, last, run, channel, channels):
        accumulator.start(states)
        for chunk in T.serial(T.ceildiv(last - first, tile.unroll * tile.lanes)):
            find(places, chunk, first, last, run, channel, channels)
            load(x, places, values)
            accumulator.update(states, values, chunk, walk(places, first, last))
        accumulator.fold(states, totals, walk(places, first, last))

    return accumulator, gather


class BatchNormTrainingKernel(BatchNormKernel):
    """Normalisation by the statistics of the batch, which enter the running ones: one block per channel.

    Program arguments: x (flat), running_mean, running_var (both are written), weight, bias (per channel),
    output (flat), vectors of a run, vectors of a channel, momentum, eps.
    """

    CONFIGS = ConfigTable(
        size=lambda sizes: sizes.get("total", 1 << 30),
        devices={
            "cpu": ((None, ChannelConfig(threads=32, unroll=2)),),
            "sm_80": (
                (128, ChannelConfig(threads=128, unroll=1)),
                (1024, ChannelConfig(threads=256, unroll=4)),
                (None, ChannelConfig(threads=512, unroll=4)),
            ),
        },
    )

    @staticmethod
    def program(*, dtype, vec, config):
        """Return the tile program.

        Args:
            dtype: dtype of x and output.
            vec: elements of a vector.
            config: block geometry.
        """
        tile = channel_tile(config.threads, config.unroll, vec)
        accumulator, gather = _statistics(tile, dtype)
        find, load = tile.find(), tile.load(dtype)
        nx, channels = T.dynamic("nx"), T.dynamic("channels")

        @T.prim_func
        def batch_norm_training(
            x: T.Tensor((nx,), dtype),
            running_mean: T.Tensor((channels,), "float32"),
            running_var: T.Tensor((channels,), "float32"),
            weight: T.Tensor((channels,), "float32"),
            bias: T.Tensor((channels,), "float32"),
            output: T.Tensor((nx,), dtype),
            run: T.int32,
            total: T.int32,
            momentum: T.float32,
            eps: T.float32,
        ):
            with T.Kernel(channels, threads=tile.threads) as channel:
                places = T.alloc_fragment((tile.unroll, tile.lanes), "int32")
                values = T.alloc_fragment(tile.shape, dtype)
                states, totals = accumulator.allocate(), accumulator.allocate_totals()
                scale = T.alloc_fragment((1,), "float32")
                affine = T.alloc_local((2,), "float32")
                T.annotate_layout({places: tile.places_layout(), values: tile.layout()})
                affine[0] = weight[channel]
                affine[1] = bias[channel]
                gather(x, places, values, states, totals, 0, total, run, channel, channels)
                for i in T.Parallel(1):
                    scale[i] = affine[0] * T.rsqrt(totals[0][i] / T.cast(total * vec, "float32") + eps)
                for i in T.Parallel(1):
                    running_mean[channel] = entered(running_mean[channel], totals[1][i], momentum)
                    running_var[channel] = entered(
                        running_var[channel], totals[0][i] / T.cast(total * vec - 1, "float32"), momentum
                    )
                for chunk in T.serial(T.ceildiv(total, tile.unroll * tile.lanes)):
                    find(places, chunk, 0, total, run, channel, channels)
                    load(x, places, values)
                    for u, i, l, v in T.Parallel(*tile.shape):
                        if places[u, l] >= 0:
                            output[places[u, l] * vec + v] = T.cast(
                                (T.cast(values[u, i, l, v], "float32") - totals[1][i]) * scale[i] + affine[1],
                                dtype,
                            )

        return batch_norm_training


class BatchNormStatisticsKernel(BatchNormKernel):
    """Squared deviations and means of parts of channels.

    Program arguments: x (flat), deviations, means (parts by channels, flat), channels, vectors of a run,
    vectors of a channel, vectors of a part (a multiple of those of a block), number of parts.
    """

    CONFIGS = for_any_size(
        cpu=ChannelConfig(threads=32, unroll=2, least=1 << 14, target_blocks=16),
        cuda=ChannelConfig(threads=256, unroll=8, least=1 << 14, target_blocks=528),
    )

    @staticmethod
    def program(*, dtype, vec, config):
        """Return the tile program; arguments as those of `BatchNormTrainingKernel.program`."""
        tile = channel_tile(config.threads, config.unroll, vec)
        accumulator, gather = _statistics(tile, dtype)
        nx, ns = T.dynamic("nx"), T.dynamic("ns")

        @T.prim_func
        def batch_norm_statistics(
            x: T.Tensor((nx,), dtype),
            deviations: T.Tensor((ns,), "float32"),
            means: T.Tensor((ns,), "float32"),
            channels: T.int32,
            run: T.int32,
            total: T.int32,
            share: T.int32,
            parts: T.int32,
        ):
            with T.Kernel(channels, parts, threads=tile.threads) as (channel, part):
                places = T.alloc_fragment((tile.unroll, tile.lanes), "int32")
                values = T.alloc_fragment(tile.shape, dtype)
                states, totals = accumulator.allocate(), accumulator.allocate_totals()
                T.annotate_layout({places: tile.places_layout(), values: tile.layout()})
                last = T.min(part * share + share, total)
                gather(x, places, values, states, totals, part * share, last, run, channel, channels)
                for i in T.Parallel(1):
                    deviations[part * channels + channel] = totals[0][i]
                    means[part * channels + channel] = totals[1][i]

        return batch_norm_statistics


class RunningStatisticsKernel(ChannelVectorKernel):
    """Enters statistics into running ones: the means over `instances` of means and of unbiased variances.

    Program arguments: means, variances (instances by channels, flat; biased), running_mean, running_var (per
    channel, written), instances, what makes a variance unbiased, momentum.
    """

    CONFIGS = for_any_size(
        cpu=ChannelConfig(threads=32, unroll=1),
        cuda=ChannelConfig(threads=32, unroll=1),
    )

    @staticmethod
    def program(*, config):
        """Return the tile program; a thread takes one channel."""
        threads = config.threads
        channels, ns = T.dynamic("channels"), T.dynamic("ns")

        @T.prim_func
        def running_statistics(
            means: T.Tensor((ns,), "float32"),
            variances: T.Tensor((ns,), "float32"),
            running_mean: T.Tensor((channels,), "float32"),
            running_var: T.Tensor((channels,), "float32"),
            instances: T.int32,
            unbiased: T.float32,
            momentum: T.float32,
        ):
            with T.Kernel(T.ceildiv(channels, threads), threads=threads) as block:
                mean = T.alloc_fragment((threads,), "float32")
                variance = T.alloc_fragment((threads,), "float32")
                T.clear(mean)
                T.clear(variance)
                for instance in T.serial(instances):
                    for t in T.Parallel(threads):
                        if block * threads + t < channels:
                            mean[t] += means[instance * channels + block * threads + t]
                            variance[t] += variances[instance * channels + block * threads + t]
                for t in T.Parallel(threads):
                    if block * threads + t < channels:
                        running_mean[block * threads + t] = entered(
                            running_mean[block * threads + t],
                            mean[t] / T.cast(instances, "float32"),
                            momentum,
                        )
                        running_var[block * threads + t] = entered(
                            running_var[block * threads + t],
                            variance[t] / T.cast(instances, "float32") * unbiased,
                            momentum,
                        )

        return running_statistics


class BatchNormInferenceKernel(BatchNormKernel):
    """`output = (x - mean) / sqrt(variance + eps) * weight + bias` by given statistics of every channel.

    Program arguments: x (flat), mean, variance (per channel), (weight, bias,) output (flat), vectors of a
    run, vectors in all, eps.
    """

    CONFIGS = for_any_size(
        cpu=ChannelConfig(threads=64, unroll=2),
        cuda=ChannelConfig(threads=128, unroll=2),
    )

    @staticmethod
    def program(*, dtype, affine_dtype, vec, config):
        """Return the tile program.

        Args:
            dtype: dtype of x and output.
            affine_dtype: dtype of weight and bias; None where there are none.
            vec: elements of a vector.
            config: block geometry.
        """
        geometry = ChannelPass(config.threads, config.unroll, vec)
        read, find = geometry.read(), geometry.find()
        nx, channels = T.dynamic("nx"), T.dynamic("channels")
        affine = () if affine_dtype is None else ("weight", "bias")

        def scaled(value, weight, channel):
            return value if weight is None else value * T.cast(weight[channel], "float32")

        def shift_of(bias, channel):
            return T.float32(0) if bias is None else T.cast(bias[channel], "float32")

        @T.macro
        def normalise(x, mean, variance, weight, bias, output, run, total, eps):
            with T.Kernel(
                T.ceildiv(total, geometry.threads * geometry.unroll), threads=geometry.threads
            ) as block:
                channel = T.alloc_fragment(geometry.steps, "int32")
                centre = T.alloc_fragment(geometry.steps, "float32")
                scale = T.alloc_fragment(geometry.steps, "float32")
                shift = T.alloc_fragment(geometry.steps, "float32")
                values = T.alloc_fragment(geometry.shape, dtype)
                T.annotate_layout(geometry.layouts((values,), (channel, centre, scale, shift)))
                read(x, values, block, total)
                find(channel, block, run, channels)
                for u, t in T.Parallel(*geometry.steps):
                    centre[u, t] = mean[channel[u, t]]
                    scale[u, t] = scaled(T.rsqrt(variance[channel[u, t]] + eps), weight, channel[u, t])
                    shift[u, t] = shift_of(bias, channel[u, t])
                geometry.write(
                    dtype,
                    lambda u, t, v: (
                        (T.cast(values[u, t, v], "float32") - centre[u, t]) * scale[u, t] + shift[u, t]
                    ),
                )(output, block, total)

        def body(x, mean, variance, output, run, total, eps, weight=None, bias=None):
            normalise(x, mean, variance, weight, bias, output, run, total, eps)

        parameters = {
            **flat_tensors(dtype, x=nx),
            **flat_tensors("float32", mean=channels, variance=channels),
            **flat_tensors(affine_dtype, **dict.fromkeys(affine, channels)),
            **flat_tensors(dtype, output=nx),
            **dict.fromkeys(("run", "total"), T.int32),
            "eps": T.float32,
        }
        return prim_func("batch_norm_inference" + "_affine" * bool(affine), parameters, body)

    @classmethod
    def samples(cls):
        """Return images, ragged ones, and ones without weights."""
        return (
            {"dtype": "float16", "affine_dtype": "float32", "vec": 8},
            {"dtype": "float32", "affine_dtype": "float32", "vec": 1},
            {"dtype": "bfloat16", "affine_dtype": None, "vec": 8},
        )
