"""Reductions with one accumulator, over rows (`ReduceKernel`) and over columns (`ColumnReduceKernel`).

Neither length is compiled in: rows, columns and the reduced length are run-time sizes, so one program serves
every shape of a dtype. Long reductions are split between blocks; each split writes one state, and a second
launch of the same program on the states finishes: no atomics, the same bits every time.
"""

from dataclasses import dataclass

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.elementwise import storage_dtype
from tileops_kernels.kernels.reduce_table import COMBINE, REDUCE_OP, REDUCTIONS, lifted
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


@dataclass(frozen=True)
class ReduceConfig:
    """Block geometry.

    Attributes:
        rows: rows of a block (of outputs; for columns: threads that share a column).
        lanes: threads along the contiguous axis.
        unroll: vectors a thread has in flight.
        target_blocks: long reductions are split until the grid has about this many blocks.
    """

    rows: int
    lanes: int
    unroll: int
    target_blocks: int


def _input_dtype(op, dtype):
    return REDUCTIONS[op].state if dtype == "state" else storage_dtype(dtype)


def _lane_product(tile):
    """Return a macro for the product over lanes. There is no reduction primitive for it: two rounds through
    shared memory, each thread multiplying `group` values, in an order that does not depend on timing."""
    group = 1
    while group * group < tile.lanes:
        group *= 2

    @T.macro
    def macro(per_lane, total):
        values = T.alloc_shared((tile.rows, tile.lanes), "float32")
        products = T.alloc_shared((tile.rows, tile.lanes), "float32")
        product = T.alloc_fragment((tile.rows, tile.lanes), "float32")
        T.copy(per_lane, values)
        T.fill(product, 1.0)
        for k in T.serial(group):
            for i, l in T.Parallel(tile.rows, tile.lanes):
                product[i, l] = product[i, l] * values[i, l // group * group + k]
        T.copy(product, products)
        T.fill(total, 1.0)
        for k in T.serial(tile.lanes // group):
            for i in T.Parallel(tile.rows):
                total[i] = total[i] * products[i, k * group]

    return macro


def _reduce_row(op, tile):
    """Return a macro `(partial[rows, lanes, vec], total[rows])`."""
    reduction = REDUCTIONS[op]

    if reduction.combine == "prod":
        lane_product = _lane_product(tile)

        @T.macro
        def product(partial, total):
            per_lane = T.alloc_fragment((tile.rows, tile.lanes), "float32")
            T.fill(per_lane, 1.0)
            for v in T.unroll(tile.vec):
                for i, l in T.Parallel(tile.rows, tile.lanes):
                    per_lane[i, l] = per_lane[i, l] * partial[i, l, v]
            lane_product(per_lane, total)

        return product

    reduce = REDUCE_OP[reduction.combine]

    @T.macro
    def primitive(partial, total):
        per_lane = T.alloc_fragment((tile.rows, tile.lanes), reduction.state)
        reduce(partial, per_lane, dim=2)
        reduce(per_lane, total, dim=1)

    return primitive


class ReduceKernel(Kernel):
    """Reduces the last axis.

    Program arguments: x (flat), output (flat), number of rows, row step of x and length of a row in vectors,
    splits, vectors per split (a multiple of the tile), number of reduced elements. The output is (rows,
    splits).
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ReduceConfig
    # By vectors of a row.
    CONFIGS = ConfigTable(
        size=lambda sizes: sizes.get("vectors", 1 << 20),
        devices={
            "cpu": ((None, ReduceConfig(rows=1, lanes=8, unroll=4, target_blocks=8)),),
            "sm_80": (
                (8, ReduceConfig(rows=32, lanes=8, unroll=1, target_blocks=264)),
                (256, ReduceConfig(rows=8, lanes=32, unroll=4, target_blocks=264)),
                (None, ReduceConfig(rows=1, lanes=256, unroll=4, target_blocks=264)),
            ),
        },
    )

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
        reduction = REDUCTIONS[op]
        tile = RowTile(config.rows, config.lanes, config.unroll, vec)
        combine, reduce_row = COMBINE[reduction.combine], _reduce_row(op, tile)
        x_dtype = _input_dtype(op, dtype)
        y_dtype = reduction.state if out_dtype == "state" else storage_dtype(out_dtype)
        nx, ny = T.dynamic("nx"), T.dynamic("ny")

        @T.prim_func
        def reduce_rows(
            x: T.Tensor((nx,), x_dtype),
            output: T.Tensor((ny,), y_dtype),
            num_rows: T.int32,
            x_step: T.int32,
            vectors: T.int32,
            splits: T.int32,
            split_vectors: T.int32,
            count: T.float32,
        ):
            with T.Kernel(T.ceildiv(num_rows, tile.rows), splits, threads=tile.threads) as (block, split):
                values = T.alloc_fragment(tile.shape, x_dtype)
                partial = T.alloc_fragment(tile.lane_shape, reduction.state)
                total = T.alloc_fragment((tile.rows,), reduction.state)
                T.annotate_layout({values: tile.layout(), partial: tile.lane_layout()})
                first = split * split_vectors
                last = T.min(first + split_vectors, vectors)

                T.fill(partial, tirx.const(reduction.identity, reduction.state))
                for chunk in T.serial(T.ceildiv(last - first, tile.unroll * tile.lanes)):
                    for u, i, l, v in T.Parallel(*tile.shape):
                        if tile.in_bounds(
                            block * tile.rows + i, num_rows, first + tile.vector(chunk, u, l), last
                        ):
                            values[u, i, l, v] = x[
                                ((block * tile.rows + i) * x_step + first + tile.vector(chunk, u, l)) * vec
                                + v
                            ]
                    for u in T.unroll(tile.unroll):
                        for i, l, v in T.Parallel(*tile.lane_shape):
                            if tile.in_bounds(
                                block * tile.rows + i, num_rows, first + tile.vector(chunk, u, l), last
                            ):
                                partial[i, l, v] = combine(
                                    partial[i, l, v],
                                    lifted(
                                        op,
                                        dtype,
                                        values[u, i, l, v],
                                        (first + tile.vector(chunk, u, l)) * vec + v,
                                    ),
                                )
                reduce_row(partial, total)

                for i in T.Parallel(tile.rows):
                    if block * tile.rows + i < num_rows:
                        if out_dtype == "state":
                            output[(block * tile.rows + i) * splits + split] = total[i]
                        else:
                            output[(block * tile.rows + i) * splits + split] = T.cast(
                                reduction.finish(total[i], count), y_dtype
                            )

        return reduce_rows

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
    """Reduces the middle axis of (outer, reduced, inner), reading along inner.

    Program arguments: x (flat), output (flat), outer, reduced length, vectors of an inner row, step of x
    along outer and along the reduced axis in vectors, splits, reduced elements per split, number of reduced
    elements. The output is (outer, splits, inner).
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ReduceConfig
    # By vectors of an inner row.
    CONFIGS = ConfigTable(
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

    @staticmethod
    def program(*, op, dtype, out_dtype, vec, config):
        """Return the tile program; arguments as those of `ReduceKernel.program`."""
        reduction = REDUCTIONS[op]
        combine = COMBINE[reduction.combine]
        rows, lanes, unroll = config.rows, config.lanes, config.unroll
        x_dtype = _input_dtype(op, dtype)
        y_dtype = reduction.state if out_dtype == "state" else storage_dtype(out_dtype)
        nx, ny = T.dynamic("nx"), T.dynamic("ny")

        @T.macro
        def combine_rows(partial, total):
            if reduction.combine == "prod":
                shared = T.alloc_shared((rows, lanes, vec), reduction.state)
                T.copy(partial, shared)
                T.fill(total, 1.0)
                for r in T.serial(rows):
                    for l, v in T.Parallel(lanes, vec):
                        total[l, v] = total[l, v] * shared[r, l, v]
            else:
                REDUCE_OP[reduction.combine](partial, total, dim=0)

        @T.prim_func
        def reduce_columns(
            x: T.Tensor((nx,), x_dtype),
            output: T.Tensor((ny,), y_dtype),
            outer: T.int32,
            length: T.int32,
            inner: T.int32,
            outer_step: T.int32,
            row_step: T.int32,
            splits: T.int32,
            split_length: T.int32,
            count: T.float32,
        ):
            with T.Kernel(outer * T.ceildiv(inner, lanes), splits, threads=rows * lanes) as (block, split):
                values = T.alloc_fragment((unroll, rows, lanes, vec), x_dtype)
                partial = T.alloc_fragment((rows, lanes, vec), reduction.state)
                total = T.alloc_fragment((lanes, vec), reduction.state)
                # Left to itself, layout inference derives narrower accesses from the cross-row reduction.
                T.annotate_layout(
                    {
                        values: T.Fragment(
                            (unroll, rows, lanes, vec),
                            forward_fn=lambda u, r, l, v: (r * lanes + l, u * vec + v),
                        ),
                        partial: T.Fragment(
                            (rows, lanes, vec), forward_fn=lambda r, l, v: (r * lanes + l, v)
                        ),
                    }
                )
                outer_index = T.truncdiv(block, T.ceildiv(inner, lanes))
                column = T.truncmod(block, T.ceildiv(inner, lanes)) * lanes
                first = split * split_length
                last = T.min(first + split_length, length)

                T.fill(partial, tirx.const(reduction.identity, reduction.state))
                for chunk in T.serial(T.ceildiv(last - first, unroll * rows)):
                    for u, r, l, v in T.Parallel(unroll, rows, lanes, vec):
                        if tirx.all(first + (chunk * unroll + u) * rows + r < last, column + l < inner):
                            values[u, r, l, v] = x[
                                (
                                    outer_index * outer_step
                                    + (first + (chunk * unroll + u) * rows + r) * row_step
                                    + column
                                    + l
                                )
                                * vec
                                + v
                            ]
                    for u in T.unroll(unroll):
                        for r, l, v in T.Parallel(rows, lanes, vec):
                            if tirx.all(first + (chunk * unroll + u) * rows + r < last, column + l < inner):
                                partial[r, l, v] = combine(
                                    partial[r, l, v],
                                    lifted(
                                        op, dtype, values[u, r, l, v], first + (chunk * unroll + u) * rows + r
                                    ),
                                )
                combine_rows(partial, total)

                for l, v in T.Parallel(lanes, vec):
                    if column + l < inner:
                        if out_dtype == "state":
                            output[((outer_index * splits + split) * inner + column + l) * vec + v] = total[
                                l, v
                            ]
                        else:
                            output[((outer_index * splits + split) * inner + column + l) * vec + v] = T.cast(
                                reduction.finish(total[l, v], count), y_dtype
                            )

        return reduce_columns

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
