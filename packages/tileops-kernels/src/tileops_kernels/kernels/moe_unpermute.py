"""Rows of expert results back to their tokens: a weighted sum of gathered rows.

A block takes a run of columns of one token and has the rows of up to `GROUP` copies in flight at once; they
are added up in the order of the copies, in float32.

Source: arXiv:2211.15841.
"""

import tilelang.language as T

from tileops_kernels.kernels.moe_rows import MoeRowsKernel, locate

__all__ = ["MoeUnpermuteKernel"]

# Copies of a token whose rows a thread holds at once.
GROUP = 8


class MoeUnpermuteKernel(MoeRowsKernel):
    """`output[t] = sum over j of weights[t, j] * rows[index[t, j]]`; an index of -1 adds nothing.

    Program arguments: rows, index, weights, output (flat), number of tokens, row step of `rows` and columns
    in vectors.
    """

    @staticmethod
    def program(*, copies, dtype, vec, config):
        """Return the tile program.

        Args:
            copies: rows that are added up for a token.
            dtype: dtype of the rows and of the output.
            vec: elements of a vector.
            config: block geometry.
        """
        threads, group = config.threads, min(copies, GROUP)
        nx, ny, ni = T.dynamic("nx"), T.dynamic("ny"), T.dynamic("ni")

        @T.prim_func
        def unpermute(
            rows: T.Tensor((nx,), dtype),
            index: T.Tensor((ni,), "int32"),
            weights: T.Tensor((ni,), "float32"),
            output: T.Tensor((ny,), dtype),
            tokens: T.int32,
            step: T.int32,
            columns: T.int32,
        ):
            with T.Kernel(tokens * T.ceildiv(columns, threads), threads=threads) as block:
                place = T.alloc_local((2,), "int32")
                source = T.alloc_local((group,), "int32")
                weight = T.alloc_local((group,), "float32")
                values = T.alloc_fragment((group, threads, vec), dtype)
                total = T.alloc_fragment((threads, vec), "float32")
                T.annotate_layout(
                    {
                        values: T.Fragment(
                            (group, threads, vec), forward_fn=lambda j, t, v: (t, j * vec + v)
                        ),
                        total: T.Fragment((threads, vec), forward_fn=lambda t, v: (t, v)),
                    }
                )
                locate(block, columns, threads, place)
                token, start = place[0], place[1]

                T.clear(total)
                for first in T.serial(T.ceildiv(copies, group)):
                    for j in T.unroll(group):
                        source[j] = -1
                        weight[j] = 0.0
                        if first * group + j < copies:
                            source[j] = index[token * copies + first * group + j]
                            weight[j] = weights[token * copies + first * group + j]
                        # What is not there has neither a row nor a weight, which may not be finite.
                        if source[j] < 0:
                            weight[j] = 0.0
                    for j in T.unroll(group):
                        for t, v in T.Parallel(threads, vec):
                            if source[j] >= 0 and start + t < columns:
                                values[j, t, v] = rows[(source[j] * step + start + t) * vec + v]
                            else:
                                values[j, t, v] = T.cast(0, dtype)
                    for j in T.unroll(group):
                        for t, v in T.Parallel(threads, vec):
                            total[t, v] += weight[j] * T.cast(values[j, t, v], "float32")
                for t, v in T.Parallel(threads, vec):
                    if start + t < columns:
                        output[(token * columns + start + t) * vec + v] = T.cast(total[t, v], dtype)

        return unpermute

    @classmethod
    def samples(cls):
        """Return one group of copies, a few, and more than one group."""
        return (
            {"copies": 8, "dtype": "bfloat16", "vec": 8},
            {"copies": 3, "dtype": "float16", "vec": 1},
            {"copies": 13, "dtype": "bfloat16", "vec": 4},
        )
