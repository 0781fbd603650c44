"""Quantisation of rows to 8-bit floats: one scale per row, the row read and written once.

The largest magnitude of a row is taken over the bits of |x|, which compare as integers like the floats they
are, NaN above all: a NaN anywhere makes the scale NaN, through a maximum that would drop it.

Source: arXiv:2412.19437, section 3.3.
"""

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.reduce_table import INT32_MAX
from tileops_kernels.kernels.rowwise_norm import CONFIGS, DTYPES, NormConfig, tile_for
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS, row_fold

__all__ = ["Fp8QuantKernel"]

GREATEST = 448.0
LEAST_MAGNITUDE = 1e-4


class Fp8QuantKernel(Kernel):
    """`scale[r] = max(max |x[r]|, 1e-4) / 448`, `output[r] = x[r] / scale[r]` in float8_e4m3fn.

    Program arguments: x (flat), scale, output (flat), number of rows, row step of x in vectors.
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = NormConfig
    CONFIGS = CONFIGS

    @staticmethod
    def program(*, vectors, vec, dtype, config):
        """Return the tile program.

        Args:
            vectors: vectors of a row.
            vec: elements of a vector.
            dtype: dtype of x.
            config: block geometry.
        """
        tile, chunks = tile_for(vectors, vec, config)
        greatest = row_fold(tile, "max", "int32", 0, vec)
        nx, ny, num_scales = T.dynamic("nx"), T.dynamic("ny"), T.dynamic("num_scales")

        def exists(block, chunk, u, i, l, num_rows):
            return tile.in_bounds(block * tile.rows + i, num_rows, tile.vector(chunk, u, l), vectors)

        @T.macro
        def load(x, values, block, chunk, num_rows, x_step):
            for u, i, l, v in T.Parallel(*tile.shape):
                if exists(block, chunk, u, i, l, num_rows):
                    values[u, i, l, v] = x[
                        ((block * tile.rows + i) * x_step + tile.vector(chunk, u, l)) * vec + v
                    ]
                else:
                    values[u, i, l, v] = T.cast(0, dtype)

        @T.macro
        def accumulate(values, partial):
            for u in T.unroll(tile.unroll):
                for i, l, v in T.Parallel(*tile.lane_shape):
                    partial[i, l, v] = T.max(
                        partial[i, l, v],
                        T.bitwise_and(
                            T.reinterpret(T.cast(values[u, i, l, v], "float32"), "int32"),
                            tirx.const(INT32_MAX, "int32"),
                        ),
                    )

        @T.macro
        def write(values, inverse, output, block, chunk, num_rows):
            for u, i, l, v in T.Parallel(*tile.shape):
                if exists(block, chunk, u, i, l, num_rows):
                    output[((block * tile.rows + i) * vectors + tile.vector(chunk, u, l)) * vec + v] = T.cast(
                        T.cast(values[u, i, l, v], "float32") * inverse[i], "float8_e4m3fn"
                    )

        @T.prim_func
        def fp8_quant(
            x: T.Tensor((nx,), dtype),
            scale: T.Tensor((num_scales,), "float32"),
            output: T.Tensor((ny,), "float8_e4m3fn"),
            num_rows: T.int32,
            x_step: T.int32,
        ):
            with T.Kernel(T.ceildiv(num_rows, tile.rows), threads=tile.threads) as block:
                values = T.alloc_fragment(tile.shape, dtype)
                partial = T.alloc_fragment(tile.lane_shape, "int32")
                largest = T.alloc_fragment((tile.rows,), "int32")
                row_scale = T.alloc_fragment((tile.rows,), "float32")
                inverse = T.alloc_fragment((tile.rows,), "float32")
                T.annotate_layout({values: tile.layout(), partial: tile.lane_layout(vec)})

                T.clear(partial)
                for chunk in T.serial(chunks):
                    load(x, values, block, chunk, num_rows, x_step)
                    accumulate(values, partial)
                greatest(partial, largest)
                for i in T.Parallel(tile.rows):
                    # Nothing but NaN compares above infinity, so the least magnitude does not hide one.
                    row_scale[i] = T.reinterpret(
                        T.max(largest[i], T.reinterpret(T.float32(LEAST_MAGNITUDE), "int32")), "float32"
                    ) / T.float32(GREATEST)
                    inverse[i] = T.float32(1) / row_scale[i]
                for i in T.Parallel(tile.rows):
                    if block * tile.rows + i < num_rows:
                        scale[block * tile.rows + i] = row_scale[i]
                if chunks == 1:
                    write(values, inverse, output, block, 0, num_rows)
                else:
                    for chunk in T.serial(chunks):
                        load(x, values, block, chunk, num_rows, x_step)
                        write(values, inverse, output, block, chunk, num_rows)

        return fp8_quant

    @classmethod
    def samples(cls):
        """Return short rows, ragged rows and rows that are read twice."""
        return (
            {"vectors": 8, "vec": 8, "dtype": "bfloat16"},
            {"vectors": 32, "vec": 4, "dtype": "float32"},
            {"vectors": 41, "vec": 1, "dtype": "float16"},
            {"vectors": 16384, "vec": 8, "dtype": "bfloat16"},
        )
