"""Softmax, log-softmax and logsumexp along the middle axis of (outer, length, inner), reading along inner.

Threads that share a column split its length; each keeps a running maximum and sum, which are then merged.
Softmax reads the columns a second time to write them.
"""

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.elementwise_expressions import math_for
from tileops_kernels.kernels.reduce import ReduceConfig
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS
from tileops_kernels.kernels.softmax import DTYPES, finite_or_zero

RESULTS = ("softmax", "log_softmax", "logsumexp")


class ColumnSoftmaxKernel(Kernel):
    """Softmax family along the middle axis.

    Program arguments: x, output (flat), outer, length, vectors of an inner row. Tensors are contiguous;
    logsumexp's output is (outer, inner).
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ReduceConfig
    # By vectors of an inner row.
    CONFIGS = ConfigTable(
        size=lambda sizes: sizes.get("inner", 1 << 20),
        devices={
            "cpu": ((None, ReduceConfig(rows=1, lanes=16, unroll=1, target_blocks=8)),),
            "sm_80": (
                (4, ReduceConfig(rows=64, lanes=4, unroll=4, target_blocks=264)),
                (16, ReduceConfig(rows=16, lanes=16, unroll=4, target_blocks=264)),
                (None, ReduceConfig(rows=8, lanes=32, unroll=4, target_blocks=264)),
            ),
        },
    )

    @staticmethod
    def program(*, result, dtype, out_dtype, vec, config):
        """Return the tile program.

        Args:
            result: "softmax", "log_softmax" or "logsumexp".
            dtype: dtype of x.
            out_dtype: dtype of the output.
            vec: elements of a vector.
            config: block geometry; `rows` threads share a column.
        """
        rows, lanes, unroll = config.rows, config.lanes, config.unroll
        exp = math_for(out_dtype).exp
        nx, ny = T.dynamic("nx"), T.dynamic("ny")

        def finished(value, maximum, total):
            if result == "log_softmax":
                return (value - maximum) - total
            return exp(value - maximum) * total

        @T.macro
        def load(x, values, start, chunk, length, column, inner):
            for u, r, l, v in T.Parallel(unroll, rows, lanes, vec):
                if tirx.all((chunk * unroll + u) * rows + r < length, column + l < inner):
                    values[u, r, l, v] = x[
                        (start + ((chunk * unroll + u) * rows + r) * inner + column + l) * vec + v
                    ]
                else:
                    values[u, r, l, v] = -T.infinity(dtype)

        @T.prim_func
        def softmax_columns(
            x: T.Tensor((nx,), dtype),
            output: T.Tensor((ny,), out_dtype),
            outer: T.int32,
            length: T.int32,
            inner: T.int32,
        ):
            with T.Kernel(outer * T.ceildiv(inner, lanes), threads=rows * lanes) as block:
                values = T.alloc_fragment((unroll, rows, lanes, vec), dtype)
                before = T.alloc_fragment((rows, lanes, vec), "float32")
                maximum = T.alloc_fragment((rows, lanes, vec), "float32")
                total = T.alloc_fragment((rows, lanes, vec), "float32")
                of_column = T.alloc_fragment((lanes, vec), "float32")
                sum_of_column = T.alloc_fragment((lanes, vec), "float32")
                by_thread = T.Fragment((rows, lanes, vec), forward_fn=lambda r, l, v: (r * lanes + l, v))
                T.annotate_layout(
                    {
                        values: T.Fragment(
                            (unroll, rows, lanes, vec),
                            forward_fn=lambda u, r, l, v: (r * lanes + l, u * vec + v),
                        ),
                        before: by_thread,
                        maximum: by_thread,
                        total: by_thread,
                    }
                )
                outer_index = T.truncdiv(block, T.ceildiv(inner, lanes))
                column = T.truncmod(block, T.ceildiv(inner, lanes)) * lanes
                start = outer_index * length * inner

                T.fill(maximum, -T.infinity("float32"))
                T.clear(total)
                for chunk in T.serial(T.ceildiv(length, unroll * rows)):
                    load(x, values, start, chunk, length, column, inner)
                    T.copy(maximum, before)
                    for u in T.unroll(unroll):
                        for r, l, v in T.Parallel(rows, lanes, vec):
                            maximum[r, l, v] = T.max(maximum[r, l, v], T.cast(values[u, r, l, v], "float32"))
                    for r, l, v in T.Parallel(rows, lanes, vec):
                        total[r, l, v] *= exp(before[r, l, v] - finite_or_zero(maximum[r, l, v]))
                    for u in T.unroll(unroll):
                        for r, l, v in T.Parallel(rows, lanes, vec):
                            total[r, l, v] += exp(
                                T.cast(values[u, r, l, v], "float32") - finite_or_zero(maximum[r, l, v])
                            )

                T.reduce_max(maximum, of_column, dim=0)
                for r, l, v in T.Parallel(rows, lanes, vec):
                    total[r, l, v] *= exp(maximum[r, l, v] - finite_or_zero(of_column[l, v]))
                T.reduce_sum(total, sum_of_column, dim=0)

                if result == "logsumexp":
                    for l, v in T.Parallel(lanes, vec):
                        if column + l < inner:
                            output[(outer_index * inner + column + l) * vec + v] = T.cast(
                                T.log(sum_of_column[l, v]) + finite_or_zero(of_column[l, v]), out_dtype
                            )
                else:
                    # An infinite maximum (inf - inf) makes the whole column NaN.
                    for l, v in T.Parallel(lanes, vec):
                        sum_of_column[l, v] = (
                            T.log(sum_of_column[l, v])
                            if result == "log_softmax"
                            else T.float32(1) / sum_of_column[l, v]
                        ) + (of_column[l, v] - of_column[l, v])
                    for chunk in T.serial(T.ceildiv(length, unroll * rows)):
                        load(x, values, start, chunk, length, column, inner)
                        for u, r, l, v in T.Parallel(unroll, rows, lanes, vec):
                            if tirx.all((chunk * unroll + u) * rows + r < length, column + l < inner):
                                output[
                                    (start + ((chunk * unroll + u) * rows + r) * inner + column + l) * vec + v
                                ] = T.cast(
                                    finished(
                                        T.cast(values[u, r, l, v], "float32"),
                                        of_column[l, v],
                                        sum_of_column[l, v],
                                    ),
                                    out_dtype,
                                )

        return softmax_columns

    @classmethod
    def samples(cls):
        """Return one set per result."""
        return (
            {"result": "softmax", "dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 8},
            {"result": "log_softmax", "dtype": "float32", "out_dtype": "float32", "vec": 4},
            {"result": "logsumexp", "dtype": "float16", "out_dtype": "float32", "vec": 1},
        )
