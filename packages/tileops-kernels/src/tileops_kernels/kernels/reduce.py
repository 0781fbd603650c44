"""Reductions with one accumulator, over rows (`ReduceKernel`) and over columns (`ColumnReduceKernel`)."""

from tileops_kernels.kernels.accumulators import single
from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.column_tile import ColumnTile
from tileops_kernels.kernels.elementwise import storage_dtype
from tileops_kernels.kernels.reduce_table import REDUCTIONS
from tileops_kernels.kernels.reduction_programs import ReduceConfig, column_program, row_program
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS, RowTile

DTYPES = frozenset(
    {
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "bool",
        "uint8",
        "int32",
        "int64",
        "complex64",
        "complex128",
    }
)

# Threads that fill an H200: 1024 on each multiprocessor, each with four vectors in flight.
_FILL = 132 * 1024


def _lanes_wanted(sizes):
    """Return how many threads should share a row: four vectors for each, and more where rows are few."""
    vectors, rows = sizes.get("vectors", 1 << 20), sizes.get("rows", 1 << 20)
    return vectors // 4 if vectors <= 256 else max(128, min(vectors // 4, _FILL // rows))


ROW_CONFIGS = ConfigTable(
    size=_lanes_wanted,
    devices={
        "cpu": ((None, ReduceConfig(rows=1, lanes=8, unroll=4, target_blocks=8)),),
        "sm_80": (
            (2, ReduceConfig(rows=32, lanes=8, unroll=1, target_blocks=264)),
            (64, ReduceConfig(rows=8, lanes=32, unroll=4, target_blocks=264)),
            (128, ReduceConfig(rows=1, lanes=128, unroll=4, target_blocks=264)),
            (256, ReduceConfig(rows=1, lanes=256, unroll=4, target_blocks=264)),
            (512, ReduceConfig(rows=1, lanes=512, unroll=4, target_blocks=264)),
            (None, ReduceConfig(rows=1, lanes=1024, unroll=4, target_blocks=264)),
        ),
    },
)
# By vectors of an inner row.
COLUMN_CONFIGS = ConfigTable(
    size=lambda sizes: sizes.get("inner", 1 << 20),
    devices={
        "cpu": ((None, ReduceConfig(rows=1, lanes=64, unroll=1, target_blocks=8)),),
        "sm_80": (
            (4, ReduceConfig(rows=64, lanes=4, unroll=4, target_blocks=528)),
            (16, ReduceConfig(rows=16, lanes=16, unroll=4, target_blocks=528)),
            (None, ReduceConfig(rows=8, lanes=32, unroll=4, target_blocks=528)),
        ),
    },
)


def single_program(build, tile_type, op, dtype, out_dtype, vec, config):
    """Return the program of one op of the table; arguments as those of `ReduceKernel.program`."""
    reduction = REDUCTIONS[op]
    tile = tile_type(config.rows, config.lanes, config.unroll, vec)
    x_dtype = reduction.state if dtype == "state" else storage_dtype(dtype)
    accumulator = single(tile, op, dtype)
    if out_dtype == "state":
        return build(tile, accumulator, x_dtype, accumulator.states, None)
    return build(
        tile,
        accumulator,
        x_dtype,
        (storage_dtype(out_dtype),),
        lambda totals, count: reduction.finish(totals[0], count),
    )


class ReduceKernel(Kernel):
    """Reduces the last axis; program arguments are those of `row_program`, the number is that of the reduced
    elements."""

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ReduceConfig
    CONFIGS = ROW_CONFIGS

    @staticmethod
    def program(*, op, dtype, out_dtype, vec, config):
        """Return the tile program.

        Args:
            op: a name of the table.
            dtype: dtype of x, or "state" where x holds states of an earlier launch.
            out_dtype: dtype of the finished output, or "state".
            vec: elements of a vector.
            config: block geometry.
        """
        return single_program(row_program, RowTile, op, dtype, out_dtype, vec, config)

    @classmethod
    def samples(cls):
        """Return one set per combine and state."""
        return (
            {"op": "sum", "dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 8},
            {"op": "sum", "dtype": "bfloat16", "out_dtype": "state", "vec": 8},
            {"op": "mean", "dtype": "state", "out_dtype": "float16", "vec": 1},
            {"op": "amax", "dtype": "float16", "out_dtype": "float16", "vec": 8},
            {"op": "prod", "dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 8},
            {"op": "all", "dtype": "bool", "out_dtype": "bool", "vec": 16},
        )


class ArgReduceKernel(ReduceKernel):
    """Index of the first extreme element of each row; the same program, the index rides below the key."""

    @classmethod
    def samples(cls):
        """Return both launches of a split search."""
        return (
            {"op": "argmax", "dtype": "bfloat16", "out_dtype": "state", "vec": 8},
            {"op": "argmin", "dtype": "state", "out_dtype": "int64", "vec": 1},
        )


class ColumnReduceKernel(Kernel):
    """Reduces the middle axis of (outer, reduced, inner); program arguments are those of `column_program`,
    the number is that of the reduced elements."""

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ReduceConfig
    CONFIGS = COLUMN_CONFIGS

    @staticmethod
    def program(*, op, dtype, out_dtype, vec, config):
        """Return the tile program; arguments as those of `ReduceKernel.program`."""
        return single_program(column_program, ColumnTile, op, dtype, out_dtype, vec, config)

    @classmethod
    def samples(cls):
        """Return one set per combine and state."""
        return (
            {"op": "sum", "dtype": "bfloat16", "out_dtype": "state", "vec": 8},
            {"op": "sum", "dtype": "state", "out_dtype": "bfloat16", "vec": 4},
            {"op": "amin", "dtype": "float16", "out_dtype": "float16", "vec": 8},
            {"op": "prod", "dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 1},
            {"op": "argmax", "dtype": "float32", "out_dtype": "int64", "vec": 4},
            {"op": "any", "dtype": "int64", "out_dtype": "bool", "vec": 2},
        )
