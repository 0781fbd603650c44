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
from tileops_kernels.kernels.channel_tile import channel_tile
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS

__all__ = [
    "BatchNormInferenceKernel",
    "BatchNormStatisticsKernel",
    "BatchNormTrainingKernel",
    "ChannelConfig",
    "RunningStatisticsKernel",
]

_FLOATS = frozenset({"float16", "bfloat16", "float32"})


@dataclass(frozen=True)
class ChannelConfig:
    """A block holds `unroll` vectors in each of `threads`; a channel of `least` vectors or more is shared
    until there are `target_blocks` blocks."""

    threads: int
    unroll: int
    least: int = 1
    target_blocks: int = 1


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


class BatchNormTrainingKernel(Kernel):
    """Normalisation by the statistics of the batch, which enter the running ones: one block per channel.

    Program arguments: x (flat), running_mean, running_var (both are written), weight, bias (per channel),
    output (flat), vectors of a run, vectors of a channel, momentum, eps.
    """

    SUPPORTED_DTYPES = _FLOATS
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ChannelConfig
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

    @classmethod
    def samples(cls):
        """Return images and ragged ones."""
        return ({"dtype": "float16", "vec": 8}, {"dtype": "float32", "vec": 1})


class BatchNormStatisticsKernel(Kernel):
    """Squared deviations and means of parts of channels.

    Program arguments: x (flat), deviations, means (parts by channels, flat), channels, vectors of a run,
    vectors of a channel, vectors of a part (a multiple of those of a block), number of parts.
    """

    SUPPORTED_DTYPES = _FLOATS
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS  # what is read here is read again: it may stay in the cache
    Config = ChannelConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: 0,
        devices={
            "cpu": ((None, ChannelConfig(threads=32, unroll=2, least=1 << 14, target_blocks=16)),),
            "sm_80": ((None, ChannelConfig(threads=256, unroll=8, least=1 << 14, target_blocks=528)),),
        },
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

    @classmethod
    def samples(cls):
        """Return images and ragged ones."""
        return ({"dtype": "float16", "vec": 8}, {"dtype": "float32", "vec": 1})


class RunningStatisticsKernel(Kernel):
    """Enters statistics into running ones: the means over `instances` of means and of unbiased variances.

    Program arguments: means, variances (instances by channels, flat; biased), running_mean, running_var (per
    channel, written), instances, what makes a variance unbiased, momentum.
    """

    SUPPORTED_DTYPES = frozenset({"float32"})
    PASS_CONFIGS = PASS_CONFIGS
    Config = ChannelConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: 0,
        devices={
            "cpu": ((None, ChannelConfig(threads=32, unroll=1)),),
            "sm_80": ((None, ChannelConfig(threads=32, unroll=1)),),
        },
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

    @classmethod
    def samples(cls):
        """Return the one program."""
        return ({},)


class BatchNormInferenceKernel(Kernel):
    """`output = (x - mean) / sqrt(variance + eps) * weight + bias` by given statistics of every channel.

    Program arguments: x (flat), mean, variance (per channel), (weight, bias,) output (flat), vectors of a
    run, vectors in all, eps.
    """

    SUPPORTED_DTYPES = _FLOATS
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ChannelConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: 0,
        devices={
            "cpu": ((None, ChannelConfig(threads=64, unroll=2)),),
            "sm_80": ((None, ChannelConfig(threads=128, unroll=2)),),
        },
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
        threads, unroll = config.threads, config.unroll
        shape, steps = (unroll, threads, vec), (unroll, threads)
        nx, channels = T.dynamic("nx"), T.dynamic("channels")

        def scaled(value, weight, channel):
            return value if weight is None else value * T.cast(weight[channel], "float32")

        def shift_of(bias, channel):
            return T.float32(0) if bias is None else T.cast(bias[channel], "float32")

        @T.macro
        def body(x, mean, variance, weight, bias, output, run, total, eps):
            with T.Kernel(T.ceildiv(total, threads * unroll), threads=threads) as block:
                channel = T.alloc_fragment(steps, "int32")
                centre = T.alloc_fragment(steps, "float32")
                scale = T.alloc_fragment(steps, "float32")
                shift = T.alloc_fragment(steps, "float32")
                values = T.alloc_fragment(shape, dtype)
                per_step = T.Fragment(steps, forward_fn=lambda u, t: (t, u))
                T.annotate_layout(
                    {
                        values: T.Fragment(shape, forward_fn=lambda u, t, v: (t, u * vec + v)),
                        **dict.fromkeys((channel, centre, scale, shift), per_step),
                    }
                )
                for u, t, v in T.Parallel(*shape):
                    if (block * unroll + u) * threads + t < total:
                        values[u, t, v] = x[((block * unroll + u) * threads + t) * vec + v]
                # Divided here: inside a global index it would be done in 64 bits, at every access.
                for u, t in T.Parallel(*steps):
                    channel[u, t] = T.truncmod(T.truncdiv((block * unroll + u) * threads + t, run), channels)
                for u, t in T.Parallel(*steps):
                    centre[u, t] = mean[channel[u, t]]
                    scale[u, t] = scaled(T.rsqrt(variance[channel[u, t]] + eps), weight, channel[u, t])
                    shift[u, t] = shift_of(bias, channel[u, t])
                for u, t, v in T.Parallel(*shape):
                    if (block * unroll + u) * threads + t < total:
                        output[((block * unroll + u) * threads + t) * vec + v] = T.cast(
                            (T.cast(values[u, t, v], "float32") - centre[u, t]) * scale[u, t] + shift[u, t],
                            dtype,
                        )

        if affine_dtype is None:

            @T.prim_func
            def batch_norm_inference(
                x: T.Tensor((nx,), dtype),
                mean: T.Tensor((channels,), "float32"),
                variance: T.Tensor((channels,), "float32"),
                output: T.Tensor((nx,), dtype),
                run: T.int32,
                total: T.int32,
                eps: T.float32,
            ):
                body(x, mean, variance, None, None, output, run, total, eps)

            return batch_norm_inference

        @T.prim_func
        def batch_norm_inference_affine(
            x: T.Tensor((nx,), dtype),
            mean: T.Tensor((channels,), "float32"),
            variance: T.Tensor((channels,), "float32"),
            weight: T.Tensor((channels,), affine_dtype),
            bias: T.Tensor((channels,), affine_dtype),
            output: T.Tensor((nx,), dtype),
            run: T.int32,
            total: T.int32,
            eps: T.float32,
        ):
            body(x, mean, variance, weight, bias, output, run, total, eps)

        return batch_norm_inference_affine

    @classmethod
    def samples(cls):
        """Return images, ragged ones, and ones without weights."""
        return (
            {"dtype": "float16", "affine_dtype": "float32", "vec": 8},
            {"dtype": "float32", "affine_dtype": "float32", "vec": 1},
            {"dtype": "bfloat16", "affine_dtype": None, "vec": 8},
        )
