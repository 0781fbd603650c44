"""Gradients of batch normalisation: two sums per channel, then one pass that writes.

Blocks share the vectors of a channel in equal parts (`channel_tile.py`). Sums are float32, added up in a
fixed order.

Source: arXiv:1502.03167.
"""

import tilelang.language as T

from tileops_kernels.kernels.batch_norm import (
    BatchNormKernel,
    ChannelConfig,
    ChannelVectorKernel,
    for_any_size,
)
from tileops_kernels.kernels.channel_pass import ChannelPass
from tileops_kernels.kernels.channel_tile import channel_tile
from tileops_kernels.kernels.rowwise_tile import row_sum
from tileops_kernels.kernels.signatures import flat_tensors, prim_func

__all__ = ["BatchNormBackwardKernel", "BatchNormSumsKernel", "BatchNormSumsMergeKernel"]


class BatchNormSumsKernel(BatchNormKernel):
    """Sums over a channel, or a part of one, of grad_out and of grad_out * (x - mean) * rstd.

    Program arguments: grad_out, x (flat), mean, rstd (per channel), the two sums (parts x channels, flat),
    vectors of a run, vectors of a channel, vectors of a part (a multiple of those of a block), number of
    parts.
    """

    CONFIGS = for_any_size(
        cpu=ChannelConfig(threads=32, unroll=2, target_blocks=16),
        cuda=ChannelConfig(threads=256, unroll=4, target_blocks=528),
    )

    @staticmethod
    def program(*, dtype, vec, config):
        """Return the tile program.

        Args:
            dtype: dtype of grad_out and x.
            vec: elements of a vector.
            config: block geometry.
        """
        tile = channel_tile(config.threads, config.unroll, vec)
        add_up, find, load = row_sum(tile), tile.find(), tile.load(dtype)
        nx, channels, ns = T.dynamic("nx"), T.dynamic("channels"), T.dynamic("ns")

        @T.prim_func
        def batch_norm_sums(
            grad: T.Tensor((nx,), dtype),
            x: T.Tensor((nx,), dtype),
            mean: T.Tensor((channels,), "float32"),
            rstd: T.Tensor((channels,), "float32"),
            grad_sum: T.Tensor((ns,), "float32"),
            product_sum: T.Tensor((ns,), "float32"),
            run: T.int32,
            total: T.int32,
            share: T.int32,
            parts: T.int32,
        ):
            with T.Kernel(channels, parts, threads=tile.threads) as (channel, part):
                where = T.alloc_fragment((tile.unroll, tile.lanes), "int32")
                grads = T.alloc_fragment(tile.shape, dtype)
                values = T.alloc_fragment(tile.shape, dtype)
                of_grad = T.alloc_fragment(tile.lane_shape, "float32")
                of_product = T.alloc_fragment(tile.lane_shape, "float32")
                sums = T.alloc_fragment((1,), "float32")
                products = T.alloc_fragment((1,), "float32")
                statistics = T.alloc_local((2,), "float32")
                T.annotate_layout(
                    {
                        where: tile.places_layout(),
                        grads: tile.layout(),
                        values: tile.layout(),
                        of_grad: tile.lane_layout(vec),
                        of_product: tile.lane_layout(vec),
                    }
                )
                statistics[0] = mean[channel]
                statistics[1] = rstd[channel]
                T.clear(of_grad)
                T.clear(of_product)
                for chunk in T.serial(T.ceildiv(share, tile.unroll * tile.lanes)):
                    find(where, chunk, part * share, total, run, channel, channels)
                    load(grad, where, grads)
                    load(x, where, values)
                    for u in T.unroll(tile.unroll):
                        for i, l, v in T.Parallel(*tile.lane_shape):
                            if where[u, l] >= 0:
                                of_grad[i, l, v] += T.cast(grads[u, i, l, v], "float32")
                                of_product[i, l, v] += T.cast(grads[u, i, l, v], "float32") * (
                                    (T.cast(values[u, i, l, v], "float32") - statistics[0]) * statistics[1]
                                )
                add_up(of_grad, sums)
                add_up(of_product, products)
                for i in T.Parallel(1):
                    grad_sum[part * channels + channel] = sums[i]
                    product_sum[part * channels + channel] = products[i]

        return batch_norm_sums


class BatchNormSumsMergeKernel(ChannelVectorKernel):
    """Adds up the two sums of the parts of a channel.

    Program arguments: sums of the parts (parts x channels, flat), sums (per channel), number of parts.
    """

    CONFIGS = for_any_size(
        cpu=ChannelConfig(threads=32, unroll=4),
        cuda=ChannelConfig(threads=32, unroll=16),
    )

    @staticmethod
    def program(*, config):
        """Return the tile program; `unroll` parts are read at once."""
        threads, ahead = config.threads, config.unroll
        channels, ns = T.dynamic("channels"), T.dynamic("ns")

        @T.macro
        def merge_one(parts_of, merged, block, channels, parts):
            read = T.alloc_fragment((ahead, threads), "float32")
            total = T.alloc_fragment((threads,), "float32")
            T.clear(total)
            for first in T.serial(T.ceildiv(parts, ahead)):
                for a, t in T.Parallel(ahead, threads):
                    if first * ahead + a < parts and block * threads + t < channels:
                        read[a, t] = parts_of[(first * ahead + a) * channels + block * threads + t]
                    else:
                        read[a, t] = 0.0
                for a in T.unroll(ahead):
                    for t in T.Parallel(threads):
                        total[t] += read[a, t]
            for t in T.Parallel(threads):
                if block * threads + t < channels:
                    merged[block * threads + t] = total[t]

        @T.prim_func
        def batch_norm_sums_merge(
            grad_parts: T.Tensor((ns,), "float32"),
            product_parts: T.Tensor((ns,), "float32"),
            grad_sum: T.Tensor((channels,), "float32"),
            product_sum: T.Tensor((channels,), "float32"),
            parts: T.int32,
        ):
            with T.Kernel(T.ceildiv(channels, threads), threads=threads) as block:
                merge_one(grad_parts, grad_sum, block, channels, parts)
                merge_one(product_parts, product_sum, block, channels, parts)

        return batch_norm_sums_merge


class BatchNormBackwardKernel(BatchNormKernel):
    """`grad_x = weight * rstd * (grad_out - grad_sum / n - (x - mean) * rstd * product_sum / n)`.

    Program arguments: grad_out, x (flat), weight, mean, rstd, the two sums (per channel), grad_x (flat),
    vectors of a run, vectors in all, 1 / n.
    """

    CONFIGS = for_any_size(
        cpu=ChannelConfig(threads=64, unroll=2),
        cuda=ChannelConfig(threads=128, unroll=2),
    )

    @staticmethod
    def program(*, dtype, vec, config):
        """Return the tile program; arguments as those of `BatchNormSumsKernel.program`."""
        geometry = ChannelPass(config.threads, config.unroll, vec)
        read, find = geometry.read(), geometry.find()
        nx, channels = T.dynamic("nx"), T.dynamic("channels")

        @T.macro
        def body(grad, x, weight, mean, rstd, grad_sum, product_sum, grad_x, run, total, inverse):
            with T.Kernel(
                T.ceildiv(total, geometry.threads * geometry.unroll), threads=geometry.threads
            ) as block:
                channel = T.alloc_fragment(geometry.steps, "int32")
                centre = T.alloc_fragment(geometry.steps, "float32")
                slope = T.alloc_fragment(geometry.steps, "float32")
                shift = T.alloc_fragment(geometry.steps, "float32")
                scale = T.alloc_fragment(geometry.steps, "float32")
                grads = T.alloc_fragment(geometry.shape, dtype)
                values = T.alloc_fragment(geometry.shape, dtype)
                T.annotate_layout(geometry.layouts((grads, values), (channel, centre, slope, shift, scale)))
                read(grad, grads, block, total)
                read(x, values, block, total)
                find(channel, block, run, channels)
                for u, t in T.Parallel(*geometry.steps):
                    centre[u, t] = mean[channel[u, t]]
                    slope[u, t] = rstd[channel[u, t]] * (product_sum[channel[u, t]] * inverse)
                    shift[u, t] = grad_sum[channel[u, t]] * inverse
                    scale[u, t] = weight[channel[u, t]] * rstd[channel[u, t]]
                geometry.write(
                    dtype,
                    lambda u, t, v: (
                        scale[u, t]
                        * (
                            T.cast(grads[u, t, v], "float32")
                            - shift[u, t]
                            - (T.cast(values[u, t, v], "float32") - centre[u, t]) * slope[u, t]
                        )
                    ),
                )(grad_x, block, total)

        parameters = {
            **flat_tensors(dtype, grad=nx, x=nx),
            **flat_tensors(
                "float32",
                **dict.fromkeys(("weight", "mean", "rstd", "grad_sum", "product_sum"), channels),
            ),
            **flat_tensors(dtype, grad_x=nx),
            **dict.fromkeys(("run", "total"), T.int32),
            "inverse": T.float32,
        }
        return prim_func("batch_norm_backward", parameters, body)
