"""logsumexp of rows, in one pass: every lane keeps a running maximum and the sum of exponentials relative to
it."""

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.elementwise_expressions import math_for
from tileops_kernels.kernels.reduce import ReduceConfig
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS, RowTile, row_max, row_sum
from tileops_kernels.kernels.softmax import DTYPES, finite_or_zero


class LogSumExpKernel(Kernel):
    """Logarithm of the sum of exponentials of each row, or the state it is made of.

    Program arguments: x, output, totals (flat), number of rows, row step of x and length of a row in vectors,
    splits, vectors per split (a multiple of the tile). Where `out_dtype` is "state" the output holds maxima
    and `totals` the sums relative to them, both (rows, splits) float32; else the output is finished and
    `totals` is not written.
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ReduceConfig
    # By vectors of a row.
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
    def program(*, dtype, out_dtype, vec, config):
        """Return the tile program.

        Args:
            dtype: dtype of x.
            out_dtype: dtype of the output, or "state".
            vec: elements of a vector.
            config: block geometry.
        """
        tile = RowTile(config.rows, config.lanes, config.unroll, vec)
        y_dtype = "float32" if out_dtype == "state" else out_dtype
        exp = math_for(dtype).exp
        row_maximum, row_total = row_max(tile), row_sum(tile)
        nx, ny, nt = T.dynamic("nx"), T.dynamic("ny"), T.dynamic("nt")

        @T.prim_func
        def log_sum_exp_rows(
            x: T.Tensor((nx,), dtype),
            output: T.Tensor((ny,), y_dtype),
            totals: T.Tensor((nt,), "float32"),
            num_rows: T.int32,
            x_step: T.int32,
            vectors: T.int32,
            splits: T.int32,
            split_vectors: T.int32,
        ):
            with T.Kernel(T.ceildiv(num_rows, tile.rows), splits, threads=tile.threads) as (block, split):
                values = T.alloc_fragment(tile.shape, dtype)
                before = T.alloc_fragment(tile.lane_shape, "float32")
                maximum = T.alloc_fragment(tile.lane_shape, "float32")
                total = T.alloc_fragment(tile.lane_shape, "float32")
                of_row = T.alloc_fragment((tile.rows,), "float32")
                sum_of_row = T.alloc_fragment((tile.rows,), "float32")
                first = split * split_vectors
                last = T.min(first + split_vectors, vectors)

                T.fill(maximum, -T.infinity("float32"))
                T.clear(total)
                for chunk in T.serial(T.ceildiv(last - first, tile.unroll * tile.lanes)):
                    for u, i, l, v in T.Parallel(*tile.shape):
                        if tile.in_bounds(
                            block * tile.rows + i, num_rows, first + tile.vector(chunk, u, l), last
                        ):
                            values[u, i, l, v] = x[
                                ((block * tile.rows + i) * x_step + first + tile.vector(chunk, u, l)) * vec
                                + v
                            ]
                        else:
                            values[u, i, l, v] = -T.infinity(dtype)
                    T.copy(maximum, before)
                    for u in T.unroll(tile.unroll):
                        for i, l, v in T.Parallel(*tile.lane_shape):
                            maximum[i, l, v] = T.max(maximum[i, l, v], T.cast(values[u, i, l, v], "float32"))
                    # Rescale once a chunk. A lane that has seen nothing has total 0 and factor exp(-inf) = 0.
                    for i, l, v in T.Parallel(*tile.lane_shape):
                        total[i, l, v] *= exp(before[i, l, v] - finite_or_zero(maximum[i, l, v]))
                    for u in T.unroll(tile.unroll):
                        for i, l, v in T.Parallel(*tile.lane_shape):
                            total[i, l, v] += exp(
                                T.cast(values[u, i, l, v], "float32") - finite_or_zero(maximum[i, l, v])
                            )

                row_maximum(maximum, of_row)
                for i, l, v in T.Parallel(*tile.lane_shape):
                    total[i, l, v] *= exp(maximum[i, l, v] - finite_or_zero(of_row[i]))
                row_total(total, sum_of_row)

                for i in T.Parallel(tile.rows):
                    if block * tile.rows + i < num_rows:
                        if out_dtype == "state":
                            output[(block * tile.rows + i) * splits + split] = of_row[i]
                            totals[(block * tile.rows + i) * splits + split] = sum_of_row[i]
                        else:
                            output[(block * tile.rows + i) * splits + split] = T.cast(
                                T.log(sum_of_row[i]) + finite_or_zero(of_row[i]), y_dtype
                            )

        return log_sum_exp_rows

    @classmethod
    def samples(cls):
        """Return a finished and a partial result."""
        return (
            {"dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 8},
            {"dtype": "float32", "out_dtype": "state", "vec": 4},
        )
