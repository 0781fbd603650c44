"""Tables of positions, made in place: ALiBi biases and sinusoidal embeddings.

Bound by what is written. A block makes a few rows of as many columns as its threads have vectors, so that
what belongs to a column alone is read once.

Sources: arXiv:2108.12409, arXiv:1706.03762.
"""

import math
from dataclasses import dataclass

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.rope import sine
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS

__all__ = ["AlibiKernel", "SinusoidalKernel"]

_FLOATS = frozenset({"float16", "bfloat16", "float32"})


@dataclass(frozen=True)
class TableConfig:
    """`rows` rows of `threads` vectors per block."""

    rows: int
    threads: int


# By vectors of a row.
CONFIGS = ConfigTable(
    size=lambda sizes: sizes.get("vectors", 1 << 20),
    devices={
        "cpu": ((None, TableConfig(rows=4, threads=64)),),
        "sm_80": (
            (32, TableConfig(rows=4, threads=32)),
            (128, TableConfig(rows=4, threads=128)),
            (None, TableConfig(rows=4, threads=256)),
        ),
    },
)


class AlibiKernel(Kernel):
    """`output[h, i, j] = -|i - j| * slopes[h]`.

    Program arguments: slopes (heads, float32), output (flat), queries (and keys), vectors of a row.
    """

    SUPPORTED_DTYPES = _FLOATS
    PASS_CONFIGS = PASS_CONFIGS
    Config = TableConfig
    CONFIGS = CONFIGS

    @staticmethod
    def program(*, dtype, vec, config):
        """Return the tile program.

        Args:
            dtype: dtype of the output.
            vec: elements of a vector; divides a row.
            config: block geometry.
        """
        rows, threads = config.rows, config.threads
        shape = (rows, threads, vec)
        heads, n = T.dynamic("heads"), T.dynamic("n")

        @T.prim_func
        def alibi(
            slopes: T.Tensor((heads,), "float32"),
            output: T.Tensor((n,), dtype),
            size: T.int32,
            vectors: T.int32,
        ):
            with T.Kernel(heads * T.ceildiv(size, rows), T.ceildiv(vectors, threads), threads=threads) as (
                block,
                part,
            ):
                place = T.alloc_local((2,), "int32")
                slope = T.alloc_local((1,), "float32")
                values = T.alloc_fragment(shape, "float32")
                T.annotate_layout({values: T.Fragment(shape, forward_fn=lambda r, t, v: (t, r * vec + v))})
                # Divided here: inside a global index it would be done in 64 bits, at every access.
                place[0] = T.truncdiv(block, T.ceildiv(size, rows))
                place[1] = T.truncmod(block, T.ceildiv(size, rows)) * rows
                slope[0] = slopes[place[0]]
                for r, t, v in T.Parallel(*shape):
                    distance = place[1] + r - ((part * threads + t) * vec + v)
                    values[r, t, v] = T.cast(T.min(distance, -distance), "float32") * slope[0]
                for r, t, v in T.Parallel(*shape):
                    if tirx.all(place[1] + r < size, part * threads + t < vectors):
                        output[
                            ((place[0] * size + place[1] + r) * vectors + part * threads + t) * vec + v
                        ] = T.cast(values[r, t, v], dtype)

        return alibi

    @classmethod
    def samples(cls):
        """Return aligned and ragged rows."""
        return ({"dtype": "bfloat16", "vec": 8}, {"dtype": "float32", "vec": 1})


class SinusoidalKernel(Kernel):
    """`output[s, 2 k], output[s, 2 k + 1] = sin, cos of s * frequency(k)`.

    Program arguments: frequencies (pairs, float64, in quarter turns per position), output (flat), positions,
    vectors of a row. Angles are reduced as those of `rope.py` are.
    """

    SUPPORTED_DTYPES = _FLOATS
    PASS_CONFIGS = PASS_CONFIGS
    Config = TableConfig
    CONFIGS = CONFIGS

    @staticmethod
    def program(*, dtype, vec, config):
        """Return the tile program; arguments as those of `AlibiKernel.program`, `vec` is even."""
        rows, threads, pairs = config.rows, config.threads, vec // 2
        shape, by_pair = (threads, vec), (threads, pairs)
        radians_per_quarter = math.pi / 2
        count, n = T.dynamic("count"), T.dynamic("n")

        @T.prim_func
        def sinusoidal(
            frequencies: T.Tensor((count,), "float64"),
            output: T.Tensor((n,), dtype),
            positions: T.int32,
            vectors: T.int32,
        ):
            with T.Kernel(T.ceildiv(positions, rows), T.ceildiv(vectors, threads), threads=threads) as (
                block,
                part,
            ):
                frequency = T.alloc_fragment(by_pair, "float64")
                quarters = T.alloc_fragment(by_pair, "float64")
                whole = T.alloc_fragment(by_pair, "float64")
                rest = T.alloc_fragment(by_pair, "float32")
                sines = T.alloc_fragment(by_pair, "float32")
                cosines = T.alloc_fragment(by_pair, "float32")
                values = T.alloc_fragment(shape, "float32")
                layout = T.Fragment(by_pair, forward_fn=lambda t, p: (t, p))
                T.annotate_layout(
                    {
                        values: T.Fragment(shape, forward_fn=lambda t, v: (t, v)),
                        **dict.fromkeys((frequency, quarters, whole, rest, sines, cosines), layout),
                    }
                )
                for t, p in T.Parallel(*by_pair):
                    if part * threads + t < vectors:
                        frequency[t, p] = frequencies[(part * threads + t) * pairs + p]
                    else:
                        frequency[t, p] = T.float64(0)
                for r in T.serial(rows):
                    for t, p in T.Parallel(*by_pair):
                        quarters[t, p] = T.cast(block * rows + r, "float64") * frequency[t, p]
                    for t, p in T.Parallel(*by_pair):
                        whole[t, p] = T.floor(quarters[t, p] + T.float64(0.5))
                    for t, p in T.Parallel(*by_pair):
                        rest[t, p] = T.cast(quarters[t, p] - whole[t, p], "float32") * T.float32(
                            radians_per_quarter
                        )
                    for t, p in T.Parallel(*by_pair):
                        sines[t, p] = sine(rest[t, p], T.cast(whole[t, p], "int32"))
                        cosines[t, p] = sine(rest[t, p], T.cast(whole[t, p], "int32") + 1)
                    for t, p in T.Parallel(*by_pair):
                        values[t, 2 * p] = sines[t, p]
                    for t, p in T.Parallel(*by_pair):
                        values[t, 2 * p + 1] = cosines[t, p]
                    for t, v in T.Parallel(*shape):
                        if tirx.all(block * rows + r < positions, part * threads + t < vectors):
                            output[((block * rows + r) * vectors + part * threads + t) * vec + v] = T.cast(
                                values[t, v], dtype
                            )

        return sinusoidal

    @classmethod
    def samples(cls):
        """Return aligned and ragged rows."""
        return ({"dtype": "bfloat16", "vec": 8}, {"dtype": "float32", "vec": 2})
