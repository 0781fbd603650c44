"""Gated activations: `activation(gate) * up`, gate and up the halves of each row."""

from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.elementwise_expressions import gelu, gelu_tanh, math_for, silu
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS

ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}


@dataclass(frozen=True)
class GatedConfig:
    """A block is `threads * unroll` vectors of one row."""

    threads: int
    unroll: int


class GatedKernel(Kernel):
    """`output[i, j] = activation(x[i, j]) * x[i, j + columns]`.

    Program arguments: x, output (flat), number of rows, row step of x and columns of the output in vectors.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = GatedConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: 0,
        devices={
            # As unrolled as on a GPU, so that a verdict on a CPU speaks for the same indices.
            "cpu": ((None, GatedConfig(threads=64, unroll=2)),),
            "sm_80": ((None, GatedConfig(threads=128, unroll=2)),),
        },
    )

    @staticmethod
    def program(*, activation, dtype, vec, config):
        """Return the tile program.

        Args:
            activation: a name of `ACTIVATIONS`.
            dtype: dtype of x and output.
            vec: elements of a vector.
            config: block geometry.
        """
        threads, unroll = config.threads, config.unroll
        block, shape = threads * unroll, (unroll, threads, vec)
        function, math = ACTIVATIONS[activation], math_for(dtype)
        nx, ny = T.dynamic("nx"), T.dynamic("ny")

        @T.prim_func
        def gated(
            x: T.Tensor((nx,), dtype),
            output: T.Tensor((ny,), dtype),
            num_rows: T.int32,
            x_step: T.int32,
            columns: T.int32,
        ):
            with T.Kernel(num_rows * T.ceildiv(columns, block), threads=threads) as index:
                # Of its own: inside a global index the divisions would be done in 64 bits, at every access.
                place = T.alloc_local((2,), "int32")
                gate = T.alloc_fragment(shape, dtype)
                up = T.alloc_fragment(shape, dtype)
                result = T.alloc_fragment(shape, "float32")
                place[0] = T.truncdiv(index, T.ceildiv(columns, block))
                place[1] = T.truncmod(index, T.ceildiv(columns, block)) * block
                row, start = place[0], place[1]

                for u, t, v in T.Parallel(*shape):
                    if start + u * threads + t < columns:
                        gate[u, t, v] = x[(row * x_step + start + u * threads + t) * vec + v]
                for u, t, v in T.Parallel(*shape):
                    if start + u * threads + t < columns:
                        up[u, t, v] = x[(row * x_step + columns + start + u * threads + t) * vec + v]

                for u, t, v in T.Parallel(*shape):
                    result[u, t, v] = function(math, T.cast(gate[u, t, v], "float32")) * T.cast(
                        up[u, t, v], "float32"
                    )

                for u, t, v in T.Parallel(*shape):
                    if start + u * threads + t < columns:
                        output[(row * columns + start + u * threads + t) * vec + v] = T.cast(
                            result[u, t, v], dtype
                        )

        return gated

    @classmethod
    def samples(cls):
        """Return one set per activation."""
        return (
            {"activation": "silu", "dtype": "bfloat16", "vec": 8},
            {"activation": "gelu", "dtype": "float16", "vec": 8},
            {"activation": "gelu_tanh", "dtype": "float32", "vec": 1},
        )
