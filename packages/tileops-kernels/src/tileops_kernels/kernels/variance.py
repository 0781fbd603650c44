"""Variance: the reduction whose state is a pair, mean and sum of squared deviations.

Each position keeps its own running mean and deviations (Welford), positions are merged with weights (Chan et
al.), and so are the states of splits and of further reduced axes: the result does not suffer from a large
mean.
"""

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.reduce import ReduceConfig
from tileops_kernels.kernels.reduce_table import FLOATS
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS, RowTile, welford_deviation, welford_mean


def _result(deviation, divisor, root):
    variance = deviation / divisor
    return T.sqrt(variance) if root else variance


def _count(first, last, position, stride):
    """Return how many of the steps first + position, first + position + stride, ... lie below `last`."""
    return T.cast(T.truncdiv(T.max(last - first - position + stride - 1, 0), stride), "float32")


class VarianceKernel(Kernel):
    """Mean and squared deviations of the last axis.

    Program arguments: x (flat), output (flat), means (flat), number of rows, row step and length of a row in
    vectors, splits, vectors per split, divisor. Where `out_dtype` is "state" the output holds squared
    deviations and `means` the means, both (rows, splits) float32; else the output is finished and `means` is
    not written.
    """

    SUPPORTED_DTYPES = FLOATS
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ReduceConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: sizes.get("vectors", 1 << 20),
        devices={
            "cpu": ((None, ReduceConfig(rows=1, lanes=8, unroll=4, target_blocks=8)),),
            "sm_80": (
                (8, ReduceConfig(rows=32, lanes=8, unroll=1, target_blocks=264)),
                (256, ReduceConfig(rows=8, lanes=32, unroll=4, target_blocks=264)),
                (None, ReduceConfig(rows=1, lanes=256, unroll=4, target_blocks=264)),
            ),
        },
    )

    @staticmethod
    def program(*, dtype, out_dtype, root, vec, config):
        """Return the tile program.

        Args:
            dtype: dtype of x.
            out_dtype: dtype of the output, or "state".
            root: return the standard deviation.
            vec: elements of a vector.
            config: block geometry.
        """
        tile = RowTile(config.rows, config.lanes, config.unroll, vec)
        y_dtype = "float32" if out_dtype == "state" else out_dtype
        nx, ny, nm = T.dynamic("nx"), T.dynamic("ny"), T.dynamic("nm")

        @T.macro
        def row_total(partial, total):
            per_lane = T.alloc_fragment((tile.rows, tile.lanes), "float32")
            T.reduce_sum(partial, per_lane, dim=2)
            T.reduce_sum(per_lane, total, dim=1)

        @T.prim_func
        def variance_rows(
            x: T.Tensor((nx,), dtype),
            output: T.Tensor((ny,), y_dtype),
            means: T.Tensor((nm,), "float32"),
            num_rows: T.int32,
            x_step: T.int32,
            vectors: T.int32,
            splits: T.int32,
            split_vectors: T.int32,
            divisor: T.float32,
        ):
            with T.Kernel(T.ceildiv(num_rows, tile.rows), splits, threads=tile.threads) as (block, split):
                values = T.alloc_fragment(tile.shape, dtype)
                mean = T.alloc_fragment(tile.lane_shape, "float32")
                deviation = T.alloc_fragment(tile.lane_shape, "float32")
                row_mean = T.alloc_fragment((tile.rows,), "float32")
                row_deviation = T.alloc_fragment((tile.rows,), "float32")
                first = split * split_vectors
                last = T.min(first + split_vectors, vectors)

                T.clear(mean)
                T.clear(deviation)
                for chunk in T.serial(T.ceildiv(last - first, tile.unroll * tile.lanes)):
                    for u, i, l, v in T.Parallel(*tile.shape):
                        if tile.in_bounds(
                            block * tile.rows + i, num_rows, first + tile.vector(chunk, u, l), last
                        ):
                            values[u, i, l, v] = x[
                                ((block * tile.rows + i) * x_step + first + tile.vector(chunk, u, l)) * vec
                                + v
                            ]
                    for u in T.unroll(tile.unroll):
                        for i, l, v in T.Parallel(*tile.lane_shape):
                            if tile.in_bounds(
                                block * tile.rows + i, num_rows, first + tile.vector(chunk, u, l), last
                            ):
                                # The deviations first: they need the mean before this element.
                                deviation[i, l, v] += welford_deviation(
                                    values[u, i, l, v], mean[i, l, v], chunk * tile.unroll + u + 1
                                )
                                mean[i, l, v] += welford_mean(
                                    values[u, i, l, v], mean[i, l, v], chunk * tile.unroll + u + 1
                                )

                for i, l, v in T.Parallel(*tile.lane_shape):
                    mean[i, l, v] = mean[i, l, v] * _count(first, last, l, tile.lanes)
                row_total(mean, row_mean)
                for i in T.Parallel(tile.rows):
                    row_mean[i] = row_mean[i] / T.cast((last - first) * vec, "float32")
                for i, l, v in T.Parallel(*tile.lane_shape):
                    count = T.max(_count(first, last, l, tile.lanes), T.float32(1))
                    delta = mean[i, l, v] / count - row_mean[i]
                    deviation[i, l, v] += delta * delta * _count(first, last, l, tile.lanes)
                row_total(deviation, row_deviation)

                for i in T.Parallel(tile.rows):
                    if block * tile.rows + i < num_rows:
                        if out_dtype == "state":
                            output[(block * tile.rows + i) * splits + split] = row_deviation[i]
                            means[(block * tile.rows + i) * splits + split] = row_mean[i]
                        else:
                            output[(block * tile.rows + i) * splits + split] = T.cast(
                                _result(row_deviation[i], divisor, root), y_dtype
                            )

        return variance_rows

    @classmethod
    def samples(cls):
        """Return a finished variance and a partial standard deviation."""
        return (
            {"dtype": "bfloat16", "out_dtype": "bfloat16", "root": False, "vec": 8},
            {"dtype": "float32", "out_dtype": "state", "root": True, "vec": 4},
        )


class ColumnVarianceKernel(Kernel):
    """Mean and squared deviations of the middle axis of (outer, reduced, inner).

    Program arguments: x (flat), output (flat), means (flat), outer, reduced length, vectors of an inner row,
    step of x along outer and along the reduced axis in vectors, splits, reduced elements per split, divisor.
    States are (outer, splits, inner).
    """

    SUPPORTED_DTYPES = FLOATS
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ReduceConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: sizes.get("inner", 1 << 20),
        devices={
            "cpu": ((None, ReduceConfig(rows=1, lanes=64, unroll=1, target_blocks=8)),),
            "sm_80": (
                (4, ReduceConfig(rows=64, lanes=4, unroll=2, target_blocks=528)),
                (16, ReduceConfig(rows=16, lanes=16, unroll=4, target_blocks=528)),
                (None, ReduceConfig(rows=8, lanes=32, unroll=4, target_blocks=528)),
            ),
        },
    )

    @staticmethod
    def program(*, dtype, out_dtype, root, vec, config):
        """Return the tile program; arguments as those of `VarianceKernel.program`."""
        rows, lanes, unroll = config.rows, config.lanes, config.unroll
        y_dtype = "float32" if out_dtype == "state" else out_dtype
        nx, ny, nm = T.dynamic("nx"), T.dynamic("ny"), T.dynamic("nm")

        @T.prim_func
        def variance_columns(
            x: T.Tensor((nx,), dtype),
            output: T.Tensor((ny,), y_dtype),
            means: T.Tensor((nm,), "float32"),
            outer: T.int32,
            length: T.int32,
            inner: T.int32,
            outer_step: T.int32,
            row_step: T.int32,
            splits: T.int32,
            split_length: T.int32,
            divisor: T.float32,
        ):
            with T.Kernel(outer * T.ceildiv(inner, lanes), splits, threads=rows * lanes) as (block, split):
                values = T.alloc_fragment((unroll, rows, lanes, vec), dtype)
                mean = T.alloc_fragment((rows, lanes, vec), "float32")
                deviation = T.alloc_fragment((rows, lanes, vec), "float32")
                total_mean = T.alloc_fragment((lanes, vec), "float32")
                total_deviation = T.alloc_fragment((lanes, vec), "float32")
                by_thread = T.Fragment((rows, lanes, vec), forward_fn=lambda r, l, v: (r * lanes + l, v))
                T.annotate_layout(
                    {
                        values: T.Fragment(
                            (unroll, rows, lanes, vec),
                            forward_fn=lambda u, r, l, v: (r * lanes + l, u * vec + v),
                        ),
                        mean: by_thread,
                        deviation: by_thread,
                    }
                )
                outer_index = T.truncdiv(block, T.ceildiv(inner, lanes))
                column = T.truncmod(block, T.ceildiv(inner, lanes)) * lanes
                first = split * split_length
                last = T.min(first + split_length, length)

                T.clear(mean)
                T.clear(deviation)
                for chunk in T.serial(T.ceildiv(last - first, unroll * rows)):
                    for u, r, l, v in T.Parallel(unroll, rows, lanes, vec):
                        if tirx.all(first + (chunk * unroll + u) * rows + r < last, column + l < inner):
                            values[u, r, l, v] = x[
                                (
                                    outer_index * outer_step
                                    + (first + (chunk * unroll + u) * rows + r) * row_step
                                    + column
                                    + l
                                )
                                * vec
                                + v
                            ]
                    for u in T.unroll(unroll):
                        for r, l, v in T.Parallel(rows, lanes, vec):
                            if tirx.all(first + (chunk * unroll + u) * rows + r < last, column + l < inner):
                                # The deviations first: they need the mean before this element.
                                deviation[r, l, v] += welford_deviation(
                                    values[u, r, l, v], mean[r, l, v], chunk * unroll + u + 1
                                )
                                mean[r, l, v] += welford_mean(
                                    values[u, r, l, v], mean[r, l, v], chunk * unroll + u + 1
                                )

                for r, l, v in T.Parallel(rows, lanes, vec):
                    mean[r, l, v] = mean[r, l, v] * _count(first, last, r, rows)
                T.reduce_sum(mean, total_mean, dim=0)
                for l, v in T.Parallel(lanes, vec):
                    total_mean[l, v] = total_mean[l, v] / T.cast(last - first, "float32")
                for r, l, v in T.Parallel(rows, lanes, vec):
                    count = T.max(_count(first, last, r, rows), T.float32(1))
                    delta = mean[r, l, v] / count - total_mean[l, v]
                    deviation[r, l, v] += delta * delta * _count(first, last, r, rows)
                T.reduce_sum(deviation, total_deviation, dim=0)

                for l, v in T.Parallel(lanes, vec):
                    if column + l < inner:
                        if out_dtype == "state":
                            output[((outer_index * splits + split) * inner + column + l) * vec + v] = (
                                total_deviation[l, v]
                            )
                            means[((outer_index * splits + split) * inner + column + l) * vec + v] = (
                                total_mean[l, v]
                            )
                        else:
                            output[((outer_index * splits + split) * inner + column + l) * vec + v] = T.cast(
                                _result(total_deviation[l, v], divisor, root), y_dtype
                            )

        return variance_columns

    @classmethod
    def samples(cls):
        """Return a finished variance and a partial standard deviation."""
        return (
            {"dtype": "bfloat16", "out_dtype": "bfloat16", "root": False, "vec": 8},
            {"dtype": "float32", "out_dtype": "state", "root": True, "vec": 4},
        )


@T.macro
def _merge_states(
    deviations, means, outer_index, length, inner, column, chunk, total, mean, deviation, block
):
    """Combine the states along the middle axis, one output per thread; all states but the last stand for
    `chunk` elements, `total` in all."""
    for i in T.Parallel(block):
        mean[i] = T.float32(0)
        deviation[i] = T.float32(0)
    for k in T.serial(length):
        for i in T.Parallel(block):
            if column + i < inner:
                size = T.cast(T.min(chunk, total - k * chunk), "float32")
                before = T.cast(k, "float32") * T.cast(chunk, "float32")
                at = (outer_index * length + k) * inner + column + i
                deviation[i] += deviations[at] + (means[at] - mean[i]) * (means[at] - mean[i]) * (
                    before * size / (before + size)
                )
                mean[i] += (means[at] - mean[i]) * (size / (before + size))


class VarianceMergeKernel(Kernel):
    """Merges states of (outer, length, inner) along the middle axis.

    Program arguments: deviations, means (flat float32), output, output means (flat), outer, length, inner,
    elements per state, elements in all, divisor.
    """

    SUPPORTED_DTYPES = FLOATS
    PASS_CONFIGS = PASS_CONFIGS
    Config = ReduceConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: 0,
        devices={
            "cpu": ((None, ReduceConfig(rows=1, lanes=64, unroll=1, target_blocks=1)),),
            "sm_80": ((None, ReduceConfig(rows=1, lanes=128, unroll=1, target_blocks=1)),),
        },
    )

    @staticmethod
    def program(*, out_dtype, root, config):
        """Return the tile program.

        Args:
            out_dtype: dtype of the output, or "state".
            root: return the standard deviation.
            config: block geometry; `lanes` outputs per block.
        """
        block = config.lanes
        y_dtype = "float32" if out_dtype == "state" else out_dtype
        nd, ny, nm = T.dynamic("nd"), T.dynamic("ny"), T.dynamic("nm")

        @T.prim_func
        def merge_variances(
            deviations: T.Tensor((nd,), "float32"),
            means: T.Tensor((nd,), "float32"),
            output: T.Tensor((ny,), y_dtype),
            output_means: T.Tensor((nm,), "float32"),
            outer: T.int32,
            length: T.int32,
            inner: T.int32,
            chunk: T.int32,
            total: T.int32,
            divisor: T.float32,
        ):
            with T.Kernel(outer * T.ceildiv(inner, block), threads=block) as index:
                mean = T.alloc_fragment((block,), "float32")
                deviation = T.alloc_fragment((block,), "float32")
                outer_index = T.truncdiv(index, T.ceildiv(inner, block))
                column = T.truncmod(index, T.ceildiv(inner, block)) * block

                _merge_states(
                    deviations,
                    means,
                    outer_index,
                    length,
                    inner,
                    column,
                    chunk,
                    total,
                    mean,
                    deviation,
                    block,
                )

                for i in T.Parallel(block):
                    if column + i < inner:
                        if out_dtype == "state":
                            output[outer_index * inner + column + i] = deviation[i]
                            output_means[outer_index * inner + column + i] = mean[i]
                        else:
                            output[outer_index * inner + column + i] = T.cast(
                                _result(deviation[i], divisor, root), y_dtype
                            )

        return merge_variances

    @classmethod
    def samples(cls):
        """Return a finished and an intermediate merge."""
        return ({"out_dtype": "bfloat16", "root": False}, {"out_dtype": "state", "root": False})
