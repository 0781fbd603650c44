"""Softmax and log-softmax of rows.

`SoftmaxKernel` keeps a row in registers: one read, one write. A row too long for that takes two launches: the
statistics of its splits (`LogSumExpKernel`), then `SoftmaxApplyKernel`, which merges them and writes; so few
long rows still fill the device.
"""

from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.accumulators import finite_or_zero
from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.elementwise_expressions import math_for
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS, RowTile, row_max, row_sum

DTYPES = frozenset({"float16", "bfloat16", "float32"})


@dataclass(frozen=True)
class SoftmaxConfig:
    """`rows` rows per block, `lanes` threads per row, at most `resident` elements of a row per thread."""

    rows: int
    lanes: int
    resident: int

    def steps(self, vectors: int, vec: int) -> int | None:
        """Return the vectors per thread that hold a row, a power of two; None if registers cannot hold it.

        >>> SoftmaxConfig(rows=1, lanes=256, resident=64).steps(vectors=600, vec=8)
        4
        >>> SoftmaxConfig(rows=1, lanes=256, resident=64).steps(vectors=6000, vec=8) is None
        True
        """
        steps = 1
        while steps * self.lanes < vectors:
            steps *= 2
        return steps if steps * vec <= self.resident else None


# By bytes of a row.
CONFIGS = ConfigTable(
    size=lambda sizes: sizes.get("row_bytes", 8192),
    devices={
        # Small enough that rows of some thousand elements, as verdicts on a CPU have them, take two launches.
        "cpu": ((None, SoftmaxConfig(rows=1, lanes=8, resident=1 << 9)),),
        "sm_80": (
            (128, SoftmaxConfig(rows=16, lanes=8, resident=64)),
            (512, SoftmaxConfig(rows=8, lanes=16, resident=64)),
            (2048, SoftmaxConfig(rows=4, lanes=32, resident=64)),
            (16384, SoftmaxConfig(rows=1, lanes=128, resident=64)),
            (32768, SoftmaxConfig(rows=1, lanes=256, resident=64)),
            (None, SoftmaxConfig(rows=1, lanes=1024, resident=32)),
        ),
    },
)


class SoftmaxKernel(Kernel):
    """Softmax or log-softmax of rows that fit in registers.

    Program arguments: x, output (flat), number of rows, row step of x and length of a row in vectors.
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = SoftmaxConfig
    CONFIGS = CONFIGS

    @staticmethod
    def program(*, dtype, vec, steps, log, config):
        """Return the tile program.

        Args:
            dtype: dtype of x and output.
            vec: elements of a vector.
            steps: vectors per thread; a row has at most `steps * lanes` vectors.
            log: return the logarithm.
            config: block geometry.
        """
        tile = RowTile(config.rows, config.lanes, steps, vec)
        exp = math_for(dtype).exp
        row_maximum, row_total = row_max(tile), row_sum(tile)
        nx, ny = T.dynamic("nx"), T.dynamic("ny")

        @T.prim_func
        def softmax_rows(
            x: T.Tensor((nx,), dtype),
            output: T.Tensor((ny,), dtype),
            num_rows: T.int32,
            x_step: T.int32,
            vectors: T.int32,
        ):
            with T.Kernel(T.ceildiv(num_rows, tile.rows), threads=tile.threads) as block:
                narrow = T.alloc_fragment(tile.shape, dtype)
                values = T.alloc_fragment(tile.shape, "float32")
                partial = T.alloc_fragment(tile.lane_shape, "float32")
                maximum = T.alloc_fragment((tile.rows,), "float32")
                total = T.alloc_fragment((tile.rows,), "float32")

                for u, i, l, v in T.Parallel(*tile.shape):
                    if tile.in_bounds(block * tile.rows + i, num_rows, tile.vector(0, u, l), vectors):
                        narrow[u, i, l, v] = x[
                            ((block * tile.rows + i) * x_step + tile.vector(0, u, l)) * vec + v
                        ]
                    else:
                        narrow[u, i, l, v] = -T.infinity(dtype)
                for u, i, l, v in T.Parallel(*tile.shape):
                    values[u, i, l, v] = T.cast(narrow[u, i, l, v], "float32")

                # NaN is ignored here and returns through the sum.
                T.fill(partial, -T.infinity("float32"))
                for u in T.unroll(steps):
                    for i, l, v in T.Parallel(*tile.lane_shape):
                        partial[i, l, v] = T.max(partial[i, l, v], values[u, i, l, v])
                row_maximum(partial, maximum)

                T.clear(partial)
                for u in T.unroll(steps):
                    for i, l, v in T.Parallel(*tile.lane_shape):
                        if log:
                            values[u, i, l, v] = values[u, i, l, v] - maximum[i]
                            partial[i, l, v] += exp(values[u, i, l, v])
                        else:
                            values[u, i, l, v] = exp(values[u, i, l, v] - maximum[i])
                            partial[i, l, v] += values[u, i, l, v]
                row_total(partial, total)
                for i in T.Parallel(tile.rows):
                    total[i] = T.log(total[i]) if log else T.float32(1) / total[i]

                for u, i, l, v in T.Parallel(*tile.shape):
                    if tile.in_bounds(block * tile.rows + i, num_rows, tile.vector(0, u, l), vectors):
                        output[((block * tile.rows + i) * vectors + tile.vector(0, u, l)) * vec + v] = T.cast(
                            values[u, i, l, v] - total[i] if log else values[u, i, l, v] * total[i], dtype
                        )

        return softmax_rows

    @classmethod
    def samples(cls):
        """Return a row of 4096 and one of 32768 elements, and a logarithm of ragged rows."""
        return (
            {"dtype": "bfloat16", "vec": 8, "steps": 2, "log": False},
            {"dtype": "float16", "vec": 8, "steps": 8, "log": False},
            {"dtype": "float32", "vec": 1, "steps": 16, "log": True},
        )


class SoftmaxApplyKernel(Kernel):
    """Second launch for long rows: merges the statistics of a row's splits and writes its elements.

    Program arguments: x, output (flat), maxima, totals (flat float32, rows by splits), number of rows, row
    step of x and length of a row in vectors, splits, vectors per split (a multiple of the tile).
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = SoftmaxConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: 0,
        devices={
            "cpu": ((None, SoftmaxConfig(rows=1, lanes=8, resident=64)),),
            "sm_80": ((None, SoftmaxConfig(rows=1, lanes=256, resident=32)),),
        },
    )

    @staticmethod
    def program(*, dtype, vec, log, config):
        """Return the tile program; arguments as those of `SoftmaxKernel.program`."""
        tile = RowTile(1, config.lanes, max(1, config.resident // vec), vec)
        exp = math_for(dtype).exp
        nx, ny, ns = T.dynamic("nx"), T.dynamic("ny"), T.dynamic("ns")

        @T.prim_func
        def softmax_apply(
            x: T.Tensor((nx,), dtype),
            output: T.Tensor((ny,), dtype),
            maxima: T.Tensor((ns,), "float32"),
            totals: T.Tensor((ns,), "float32"),
            num_rows: T.int32,
            x_step: T.int32,
            vectors: T.int32,
            splits: T.int32,
            split_vectors: T.int32,
        ):
            with T.Kernel(num_rows, splits, threads=tile.threads) as (row, split):
                values = T.alloc_fragment(tile.shape, dtype)
                maximum = T.alloc_fragment((1,), "float32")
                total = T.alloc_fragment((1,), "float32")
                first = split * split_vectors
                last = T.min(first + split_vectors, vectors)

                T.fill(maximum, -T.infinity("float32"))
                T.clear(total)
                for k in T.serial(splits):
                    maximum[0] = T.max(maximum[0], maxima[row * splits + k])
                for k in T.serial(splits):
                    total[0] += totals[row * splits + k] * T.exp(
                        maxima[row * splits + k] - finite_or_zero(maximum[0])
                    )
                # An infinite maximum (inf - inf) makes the whole row NaN, as it does in one pass.
                total[0] = (T.log(total[0]) if log else T.float32(1) / total[0]) + (maximum[0] - maximum[0])

                for chunk in T.serial(T.ceildiv(last - first, tile.unroll * tile.lanes)):
                    for u, i, l, v in T.Parallel(*tile.shape):
                        if first + tile.vector(chunk, u, l) < last:
                            values[u, i, l, v] = x[
                                (row * x_step + first + tile.vector(chunk, u, l)) * vec + v
                            ]
                    for u, i, l, v in T.Parallel(*tile.shape):
                        if first + tile.vector(chunk, u, l) < last:
                            output[(row * vectors + first + tile.vector(chunk, u, l)) * vec + v] = T.cast(
                                (T.cast(values[u, i, l, v], "float32") - maximum[0]) - total[0]
                                if log
                                else exp(T.cast(values[u, i, l, v], "float32") - maximum[0]) * total[0],
                                dtype,
                            )

        return softmax_apply

    @classmethod
    def samples(cls):
        """Return both results."""
        return (
            {"dtype": "bfloat16", "vec": 8, "log": False},
            {"dtype": "float32", "vec": 4, "log": True},
        )
