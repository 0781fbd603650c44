"""Batch normalisation by given statistics, for processors that walk rows of memory.

A GPU's threads look up the channel of the vector that they hold (`BatchNormInferenceKernel`). Here a block
looks up what belongs to its channels once and then walks memory as it lies: along one channel where that is
long, else along a sample, in the same columns of many samples.

Source: arXiv:1502.03167.
"""

import tilelang.language as T

from tileops_kernels.kernels.batch_norm import BatchNormKernel, ChannelConfig, for_any_size
from tileops_kernels.kernels.signatures import flat_tensors, prim_func

__all__ = ["BatchNormRowsKernel"]


class BatchNormRowsKernel(BatchNormKernel):
    """`output = (x - mean) / sqrt(variance + eps) * weight + bias` by given statistics of every channel.

    A row is one channel of one sample, or some whole samples: as many as a processor walks at one go.

    Program arguments: x (flat), mean, variance (per channel), (weight, bias,) output (flat), elements in all,
    elements of a row, elements of a channel in a sample, eps.
    """

    CONFIGS = for_any_size(
        cpu=ChannelConfig(threads=1024, unroll=128), cuda=ChannelConfig(threads=256, unroll=16)
    )

    @staticmethod
    def program(*, dtype, affine_dtype, row, config):
        """Return the tile program.

        Args:
            dtype: dtype of x and output.
            affine_dtype: dtype of weight and bias; None where there are none.
            row: what a row is, "channel" or "samples". A block takes one channel, or the same columns of
                `unroll` rows.
            config: block geometry; `threads` columns at a time.
        """
        columns, rows = config.threads, config.unroll
        nx, channels = T.dynamic("nx"), T.dynamic("channels")
        affine = () if affine_dtype is None else ("weight", "bias")

        def normal(value, centre, scale, shift):
            return T.cast((T.cast(value, "float32") - centre) * scale + shift, dtype)

        @T.macro
        def by_channel(x, output, total, width, space, of_channel):
            with T.Kernel(T.ceildiv(total, width), threads=columns) as row:
                own = T.alloc_local((3,), "float32")
                own[0], own[1], own[2] = of_channel(T.truncmod(row, channels))
                for chunk in T.serial(T.ceildiv(width, columns)):
                    for t in T.Parallel(columns):
                        if chunk * columns + t < width:
                            output[row * width + chunk * columns + t] = normal(
                                x[row * width + chunk * columns + t], own[0], own[1], own[2]
                            )

        @T.macro
        def by_samples(x, output, total, width, space, of_channel):
            with T.Kernel(T.ceildiv(width, columns), T.ceildiv(total, width * rows), threads=columns) as (
                chunk,
                block,
            ):
                channel = T.alloc_fragment((columns,), "int32")
                centre = T.alloc_fragment((columns,), "float32")
                scale = T.alloc_fragment((columns,), "float32")
                shift = T.alloc_fragment((columns,), "float32")
                for t in T.Parallel(columns):
                    if chunk * columns + t < width:
                        channel[t] = T.truncmod(T.truncdiv(chunk * columns + t, space), channels)
                for t in T.Parallel(columns):
                    if chunk * columns + t < width:
                        centre[t], scale[t], shift[t] = of_channel(channel[t])
                for row in T.serial(T.min(rows, T.ceildiv(total, width) - block * rows)):
                    for t in T.Parallel(columns):
                        if t < T.min(
                            width - chunk * columns,
                            total - (block * rows + row) * width - chunk * columns,
                        ):
                            output[(block * rows + row) * width + chunk * columns + t] = normal(
                                x[(block * rows + row) * width + chunk * columns + t],
                                centre[t],
                                scale[t],
                                shift[t],
                            )

        def body(x, mean, variance, output, total, width, space, eps, weight=None, bias=None):
            def of_channel(channel):
                scale = T.rsqrt(variance[channel] + eps)
                if weight is None:
                    return mean[channel], scale, T.float32(0)
                scale *= T.cast(weight[channel], "float32")
                return mean[channel], scale, T.cast(bias[channel], "float32")

            walk = by_channel if row == "channel" else by_samples
            walk(x, output, total, width, space, of_channel)

        parameters = {
            **flat_tensors(dtype, x=nx),
            **flat_tensors("float32", mean=channels, variance=channels),
            **flat_tensors(affine_dtype, **dict.fromkeys(affine, channels)),
            **flat_tensors(dtype, output=nx),
            **dict.fromkeys(("total", "width", "space"), T.int32),
            "eps": T.float32,
        }
        return prim_func("batch_norm_rows", parameters, body)

    @classmethod
    def samples(cls):
        """Return images, vectors, and ones without weights."""
        return (
            {"dtype": "float32", "affine_dtype": "float32", "row": "channel"},
            {"dtype": "float16", "affine_dtype": "float32", "row": "samples"},
            {"dtype": "bfloat16", "affine_dtype": None, "row": "samples"},
        )
