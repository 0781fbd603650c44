"""logsumexp of rows, in one pass."""

import tilelang.language as T

from tileops_kernels.kernels.accumulators import finite_or_zero, log_sum
from tileops_kernels.kernels.base import Kernel
from tileops_kernels.kernels.reduce import ROW_CONFIGS
from tileops_kernels.kernels.reduce_table import FLOATS
from tileops_kernels.kernels.reduction_programs import ReduceConfig, row_program
from tileops_kernels.kernels.rowwise_tile import READ_ONCE, RowTile


def log_of(totals):
    """Return the logarithm of a sum of exponentials, kept as a maximum and the sum relative to it."""
    return T.log(totals[1]) + finite_or_zero(totals[0])


class LogSumExpKernel(Kernel):
    """Logarithm of the sum of exponentials of each row; program arguments are those of `row_program`, the
    number is ignored. States are maxima and the sums relative to them."""

    SUPPORTED_DTYPES = FLOATS
    ALIGNMENT = 16
    PASS_CONFIGS = READ_ONCE
    Config = ReduceConfig
    CONFIGS = ROW_CONFIGS

    @staticmethod
    def program(*, dtype, out_dtype, vec, joined=False, whole=False, config):
        """Return the tile program.

        Args:
            dtype: dtype of x.
            out_dtype: dtype of the output, or "state".
            vec: elements of a vector.
            joined: rows are joined from several runs.
            whole: one chunk covers a row.
            config: block geometry.
        """
        tile = RowTile(config.rows, config.lanes, config.unroll, vec)
        accumulator, form = log_sum(tile, dtype, whole=whole), {"joined": joined, "whole": whole}
        if out_dtype == "state":
            return row_program(tile, accumulator, dtype, accumulator.states, None, **form)
        return row_program(
            tile, accumulator, dtype, (out_dtype,), lambda _, totals, number: log_of(totals), **form
        )

    @classmethod
    def samples(cls):
        """Return a finished and a partial result."""
        return (
            {"dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 8},
            {"dtype": "float32", "out_dtype": "state", "vec": 4},
        )
