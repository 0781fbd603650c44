"""Softmax, log-softmax and logsumexp along the middle axis of (outer, length, inner), reading along inner.

Softmax reads the columns a second time to write them, unless one chunk holds them.
"""

import dataclasses

import tilelang.language as T

from tileops_kernels.kernels.accumulators import log_sum
from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.column_tile import ColumnTile
from tileops_kernels.kernels.elementwise_expressions import math_for
from tileops_kernels.kernels.logsumexp import log_of
from tileops_kernels.kernels.reduce import SHORT_COLUMNS, short_columns
from tileops_kernels.kernels.reduce_table import FLOATS
from tileops_kernels.kernels.reduction_programs import ReduceConfig, column_program
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS

RESULTS = ("softmax", "log_softmax", "logsumexp")


def _with_scale(tile, accumulator, log):
    """Return the accumulator with what an element is scaled by (or, of logarithms, what is taken off) in
    place of the sum. An infinite maximum (inf - inf) makes a whole column NaN."""

    @T.macro
    def fold(states, totals, walk):
        accumulator.fold(states, totals, walk)
        for c in T.Parallel(tile.columns):
            totals[1][c] = (T.log(totals[1][c]) if log else T.float32(1) / totals[1][c]) + (
                totals[0][c] - totals[0][c]
            )

    return dataclasses.replace(accumulator, fold=fold)


class ColumnSoftmaxKernel(Kernel):
    """Softmax family along the middle axis; program arguments are those of `column_program`, with one split,
    the number is ignored. logsumexp's output is (outer, inner)."""

    SUPPORTED_DTYPES = FLOATS
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ReduceConfig
    # By vectors of an inner row, where columns are not short.
    CONFIGS = ConfigTable(
        size=lambda sizes: short_columns(sizes) or sizes.get("inner", 1 << 20),
        devices={
            "cpu": (
                *SHORT_COLUMNS["cpu"],
                (None, ReduceConfig(rows=1, lanes=16, unroll=1, target_blocks=8)),
            ),
            "sm_80": (
                *SHORT_COLUMNS["sm_80"],
                (4, ReduceConfig(rows=64, lanes=4, unroll=4, target_blocks=264)),
                (16, ReduceConfig(rows=16, lanes=16, unroll=4, target_blocks=264)),
                (None, ReduceConfig(rows=8, lanes=32, unroll=4, target_blocks=264)),
            ),
        },
    )

    @staticmethod
    def program(*, result, dtype, out_dtype, vec, whole=False, config):
        """Return the tile program.

        Args:
            result: "softmax", "log_softmax" or "logsumexp".
            dtype: dtype of x.
            out_dtype: dtype of the output.
            vec: elements of a vector.
            whole: one chunk covers the reduced axis.
            config: block geometry.
        """
        tile = ColumnTile(config.rows, config.lanes, config.unroll, vec)
        accumulator, exp = log_sum(tile, dtype, whole=whole), math_for(out_dtype).exp
        if result == "logsumexp":
            return column_program(
                tile,
                accumulator,
                dtype,
                (out_dtype,),
                lambda _, totals, number: log_of(totals),
                whole=whole,
            )
        log = result == "log_softmax"

        def element(value, totals):
            relative = T.cast(value, "float32") - totals[0]
            return relative - totals[1] if log else exp(relative) * totals[1]

        return column_program(
            tile,
            _with_scale(tile, accumulator, log),
            dtype,
            (out_dtype,),
            None,
            apply=element,
            whole=whole,
        )

    @classmethod
    def samples(cls):
        """Return one set per result."""
        return (
            {"result": "softmax", "dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 8},
            {"result": "log_softmax", "dtype": "float32", "out_dtype": "float32", "vec": 4},
            {"result": "logsumexp", "dtype": "float16", "out_dtype": "float32", "vec": 1},
            {"result": "softmax", "dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 1, "whole": True},
        )
