"""Reductions with one accumulator, over rows (`ReduceKernel`) and over columns (`ColumnReduceKernel`)."""

from tileops_kernels.kernels.accumulators import single
from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.column_tile import ColumnTile
from tileops_kernels.kernels.elementwise import storage_dtype
from tileops_kernels.kernels.reduce_table import REDUCTIONS
from tileops_kernels.kernels.reduction_programs import ReduceConfig, column_program, row_program
from tileops_kernels.kernels.rowwise_tile import READ_ONCE, RowTile

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

# Multiprocessors of an H200; each wants 1024 threads with four vectors in flight.
_PROCESSORS = 132
_THREADS, _VECTORS = 1024, 4


def lanes_wanted(sizes):
    """Return how many threads should share a row: enough for four vectors each, to fill the device where rows
    are few, and not so many that a device has more blocks than work."""
    vectors, rows = sizes.get("vectors", 1 << 20), sizes.get("rows", 1 << 20)
    if vectors <= 256:
        return -(-vectors // _VECTORS)
    filling = min(_THREADS * _PROCESSORS // rows, rows * vectors // (_PROCESSORS * _VECTORS))
    return max(128 if vectors <= 512 else 256, min(vectors // _VECTORS, filling))


ROW_CONFIGS = ConfigTable(
    size=lanes_wanted,
    devices={
        "cpu": ((None, ReduceConfig(rows=1, lanes=8, unroll=4, target_blocks=8)),),
        "sm_80": (
            (2, ReduceConfig(rows=32, lanes=8, unroll=1, target_blocks=264)),
            (32, ReduceConfig(rows=8, lanes=32, unroll=4, target_blocks=264)),
            (64, ReduceConfig(rows=8, lanes=32, unroll=8, target_blocks=264)),
            (128, ReduceConfig(rows=1, lanes=128, unroll=4, target_blocks=264)),
            (256, ReduceConfig(rows=1, lanes=256, unroll=4, target_blocks=264)),
            (None, ReduceConfig(rows=1, lanes=512, unroll=8, target_blocks=264)),
        ),
    },
)

# Wider than any number of lanes: columns enough for blocks of a usual size.
_MANY = 64
# A tensor of at most so many vectors, in columns of at most so many elements, is read by a few blocks in one
# chunk.
_FEW, _SHORT = 1 << 15, 256


def short_columns(sizes):
    """Return the reduced length, negative, where a few blocks read all in one chunk each; else None."""
    inner, outer, length = sizes.get("inner", 1 << 20), sizes.get("outer", 1), sizes.get("length", 1 << 20)
    return -length if length <= _SHORT and length * inner * outer <= _FEW else None


# By that number.
SHORT_COLUMNS = {
    "cpu": (
        (-65, ReduceConfig(rows=8, lanes=32, unroll=32, target_blocks=8)),
        (-9, ReduceConfig(rows=8, lanes=32, unroll=8, target_blocks=8)),
        (-1, ReduceConfig(rows=2, lanes=64, unroll=4, target_blocks=8)),
    ),
    "sm_80": (
        (-65, ReduceConfig(rows=64, lanes=8, unroll=4, target_blocks=132)),
        (-9, ReduceConfig(rows=16, lanes=32, unroll=4, target_blocks=132)),
        (-5, ReduceConfig(rows=1, lanes=64, unroll=8, target_blocks=132)),
        (-1, ReduceConfig(rows=1, lanes=64, unroll=4, target_blocks=132)),
    ),
}


def _columns_wanted(sizes):
    """Return how many vectors wide a block may be for one block on every multiprocessor; where that is no
    limit, `_MANY` plus the vectors of an inner row. Short columns come first."""
    inner, outer, short = sizes.get("inner", 1 << 20), sizes.get("outer", 1), short_columns(sizes)
    if short is not None:
        return short
    wanted = inner * outer // 128
    return wanted if wanted < min(inner, _MANY) else _MANY + inner


COLUMN_CONFIGS = ConfigTable(
    size=_columns_wanted,
    devices={
        "cpu": (*SHORT_COLUMNS["cpu"], (None, ReduceConfig(rows=1, lanes=256, unroll=1, target_blocks=8))),
        "sm_80": (
            *SHORT_COLUMNS["sm_80"],
            (7, ReduceConfig(rows=128, lanes=4, unroll=8, target_blocks=132)),
            (15, ReduceConfig(rows=128, lanes=8, unroll=4, target_blocks=132)),
            (31, ReduceConfig(rows=64, lanes=16, unroll=4, target_blocks=132)),
            (_MANY, ReduceConfig(rows=32, lanes=32, unroll=4, target_blocks=132)),
            (_MANY + 4, ReduceConfig(rows=64, lanes=4, unroll=4, target_blocks=528)),
            (_MANY + 16, ReduceConfig(rows=16, lanes=16, unroll=4, target_blocks=528)),
            (None, ReduceConfig(rows=8, lanes=32, unroll=4, target_blocks=528)),
        ),
    },
)


def single_program(build, tile_type, op, dtype, out_dtype, vec, config, **form):
    """Return the program of one op of the table; arguments as those of `ReduceKernel.program`, `form` is
    handed on."""
    reduction = REDUCTIONS[op]
    tile = tile_type(config.rows, config.lanes, config.unroll, vec)
    x_dtype = reduction.state if dtype == "state" else storage_dtype(dtype)
    accumulator = single(tile, op, dtype)
    if out_dtype == "state":
        return build(tile, accumulator, x_dtype, accumulator.states, None, **form)
    return build(
        tile,
        accumulator,
        x_dtype,
        (storage_dtype(out_dtype),),
        lambda _, totals, count: reduction.finish(totals[0], count),
        **form,
    )


class ReduceKernel(Kernel):
    """Reduces the last axis; program arguments are those of `row_program`, the number is that of the reduced
    elements."""

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = READ_ONCE
    Config = ReduceConfig
    CONFIGS = ROW_CONFIGS

    @staticmethod
    def program(*, op, dtype, out_dtype, vec, joined=False, whole=False, config):
        """Return the tile program.

        Args:
            op: a name of the table.
            dtype: dtype of x, or "state" where x holds states of an earlier launch.
            out_dtype: dtype of the finished output, or "state".
            vec: elements of a vector.
            joined: rows are joined from several runs.
            whole: one chunk covers a row.
            config: block geometry.
        """
        return single_program(
            row_program, RowTile, op, dtype, out_dtype, vec, config, joined=joined, whole=whole
        )

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
            {"op": "sum", "dtype": "bfloat16", "out_dtype": "bfloat16", "vec": 1, "joined": True},
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
    PASS_CONFIGS = READ_ONCE
    Config = ReduceConfig
    CONFIGS = COLUMN_CONFIGS

    @staticmethod
    def program(*, op, dtype, out_dtype, vec, whole=False, config):
        """Return the tile program; arguments as those of `ReduceKernel.program`."""
        return single_program(column_program, ColumnTile, op, dtype, out_dtype, vec, config, whole=whole)

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
