"""Cumulative sums and products of rows and of columns, read and written once.

Inside a block the scan goes from small to large: the elements of a vector in a thread's registers, the
threads of a warp, the warps, and then the chunks of a row, which carry over. Partial sums are float32.
Partial products are float64: those of a run of factors may leave the range of float32 although no running
product does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.column_tile import ColumnTile
from tileops_kernels.kernels.reduce_table import COMBINE
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS, RowTile

DTYPES = frozenset({"float16", "bfloat16", "float32"})
# Threads that a scan primitive of shared memory handles in one step.
WARP = 32


@dataclass(frozen=True)
class Scan:
    """What is scanned: how states are combined, their dtype, the state of no elements."""

    combine: Callable[[Any, Any], Any]
    dtype: str
    identity: float


SCANS = {
    "sum": Scan(COMBINE["sum"], "float32", 0.0),
    "prod": Scan(COMBINE["prod"], "float64", 1.0),
}


def shared_scan(op: str, shape: tuple[int, int], dim: int):
    """Return a macro `(states)` that scans one axis of shared memory in place.

    There is a primitive for sums. Products reach twice as far in every step.
    """
    if op == "sum":

        @T.macro
        def by_primitive(states):
            T.cumsum(states, dim=dim)

        return by_primitive

    scan = SCANS[op]

    @T.macro
    def by_doubling(states):
        reached = T.alloc_fragment(shape, scan.dtype)
        for step in T.unroll((shape[dim] - 1).bit_length()):
            for i, j in T.Parallel(*shape):
                reached[i, j] = states[i, j]
                if (i, j)[dim] >= T.shift_left(1, step):
                    if dim == 0:
                        reached[i, j] = scan.combine(states[i - T.shift_left(1, step), j], reached[i, j])
                    else:
                        reached[i, j] = scan.combine(states[i, j - T.shift_left(1, step)], reached[i, j])
            for i, j in T.Parallel(*shape):
                states[i, j] = reached[i, j]

    return by_doubling


@dataclass(frozen=True)
class ScanConfig:
    """Block geometry.

    Attributes:
        rows: rows of a block (for columns: threads that share a column).
        lanes: threads along the contiguous axis; for rows a multiple of 32.
        unroll: vectors (for columns: elements of the axis) a thread scans at once.
    """

    rows: int
    lanes: int
    unroll: int


class ScanKernel(Kernel):
    """Cumulative sum or product of the last axis.

    Program arguments: x, output (flat), number of rows, row step of x and length of a row in vectors.
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ScanConfig
    # By vectors of a row.
    CONFIGS = ConfigTable(
        size=lambda sizes: sizes.get("vectors", 1 << 20),
        devices={
            "cpu": ((None, ScanConfig(rows=1, lanes=32, unroll=1)),),
            "sm_80": (
                (64, ScanConfig(rows=4, lanes=32, unroll=1)),
                (512, ScanConfig(rows=1, lanes=128, unroll=2)),
                (None, ScanConfig(rows=1, lanes=256, unroll=4)),
            ),
        },
    )

    @staticmethod
    def program(*, op, dtype, vec, config):
        """Return the tile program.

        Args:
            op: "sum" or "prod".
            dtype: dtype of x and output.
            vec: elements of a vector.
            config: block geometry; `unroll * lanes / 32` is at most 32.
        """
        tile = RowTile(config.rows, config.lanes, config.unroll, vec)
        rows, lanes, unroll = tile.rows, tile.lanes, tile.unroll
        warps = lanes // WARP
        groups = unroll * warps  # runs of 32 vectors of a row, in order
        scan = SCANS[op]
        combine, state, identity = scan.combine, scan.dtype, scan.identity
        scan_vectors = shared_scan(op, (rows * groups, WARP), dim=1)
        scan_groups = shared_scan(op, (rows, groups), dim=1)
        nx, ny = T.dynamic("nx"), T.dynamic("ny")

        @T.prim_func
        def scan_rows(
            x: T.Tensor((nx,), dtype),
            output: T.Tensor((ny,), dtype),
            num_rows: T.int32,
            x_step: T.int32,
            vectors: T.int32,
        ):
            with T.Kernel(T.ceildiv(num_rows, rows), threads=tile.threads) as block:
                narrow = T.alloc_fragment(tile.shape, dtype)
                values = T.alloc_fragment(tile.shape, state)
                running = T.alloc_fragment((unroll, rows, lanes), state)
                offset = T.alloc_fragment((unroll, rows, lanes), state)
                carry = T.alloc_fragment((rows,), state)
                of_vectors = T.alloc_shared((rows * groups, WARP), state)
                of_groups = T.alloc_shared((rows, groups), state)
                by_thread = T.Fragment(tile.shape, forward_fn=lambda u, i, l, v: (i * lanes + l, u * vec + v))
                per_vector = T.Fragment((unroll, rows, lanes), forward_fn=lambda u, i, l: (i * lanes + l, u))
                T.annotate_layout(
                    {
                        narrow: by_thread,
                        values: by_thread,
                        running: per_vector,
                        offset: per_vector,
                    }
                )

                T.fill(carry, tirx.const(identity, state))
                for chunk in T.serial(T.ceildiv(vectors, unroll * lanes)):
                    for u, i, l, v in T.Parallel(*tile.shape):
                        if tile.in_bounds(block * rows + i, num_rows, tile.vector(chunk, u, l), vectors):
                            narrow[u, i, l, v] = x[
                                ((block * rows + i) * x_step + tile.vector(chunk, u, l)) * vec + v
                            ]
                        else:
                            narrow[u, i, l, v] = T.cast(identity, dtype)
                    for u, i, l, v in T.Parallel(*tile.shape):
                        values[u, i, l, v] = T.cast(narrow[u, i, l, v], state)

                    T.fill(running, tirx.const(identity, state))
                    for v in T.unroll(vec):
                        for u, i, l in T.Parallel(unroll, rows, lanes):
                            running[u, i, l] = combine(running[u, i, l], values[u, i, l, v])
                            values[u, i, l, v] = running[u, i, l]
                    for u, i, l in T.Parallel(unroll, rows, lanes):
                        of_vectors[i * groups + u * warps + l // WARP, l % WARP] = running[u, i, l]
                    scan_vectors(of_vectors)
                    for i, g in T.Parallel(rows, groups):
                        of_groups[i, g] = of_vectors[i * groups + g, WARP - 1]
                    scan_groups(of_groups)

                    # What lies before a vector: chunks, groups of the chunk, vectors of the group.
                    for u, i, l in T.Parallel(unroll, rows, lanes):
                        offset[u, i, l] = carry[i]
                        if u * warps + l // WARP > 0:
                            offset[u, i, l] = combine(
                                offset[u, i, l], of_groups[i, u * warps + l // WARP - 1]
                            )
                        if l % WARP > 0:
                            offset[u, i, l] = combine(
                                offset[u, i, l], of_vectors[i * groups + u * warps + l // WARP, l % WARP - 1]
                            )
                    for i in T.Parallel(rows):
                        carry[i] = combine(carry[i], of_groups[i, groups - 1])

                    for u, i, l, v in T.Parallel(*tile.shape):
                        if tile.in_bounds(block * rows + i, num_rows, tile.vector(chunk, u, l), vectors):
                            output[((block * rows + i) * vectors + tile.vector(chunk, u, l)) * vec + v] = (
                                T.cast(T.cast(combine(values[u, i, l, v], offset[u, i, l]), "float32"), dtype)
                            )

        return scan_rows

    @classmethod
    def samples(cls):
        """Return sums of aligned and ragged rows, and a product."""
        return (
            {"op": "sum", "dtype": "bfloat16", "vec": 8},
            {"op": "sum", "dtype": "float32", "vec": 4},
            {"op": "sum", "dtype": "float16", "vec": 1},
            {"op": "prod", "dtype": "bfloat16", "vec": 8},
        )


class ColumnScanKernel(Kernel):
    """Cumulative sum or product of the middle axis of (outer, length, inner), reading along inner.

    Program arguments: x, output (flat, contiguous), outer, length, vectors of an inner row.
    """

    SUPPORTED_DTYPES = DTYPES
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS
    Config = ScanConfig
    CONFIGS = ConfigTable(
        size=lambda sizes: 0,
        devices={
            "cpu": ((None, ScanConfig(rows=1, lanes=16, unroll=1)),),
            "sm_80": ((None, ScanConfig(rows=32, lanes=8, unroll=4)),),
        },
    )

    @staticmethod
    def program(*, op, dtype, vec, config):
        """Return the tile program; arguments as those of `ScanKernel.program`."""
        rows, lanes, unroll = config.rows, config.lanes, config.unroll
        tile = ColumnTile(rows, lanes, unroll, vec)
        shape, find_place = tile.shape, tile.place()
        scan = SCANS[op]
        combine, state, identity = scan.combine, scan.dtype, scan.identity
        scan_threads = shared_scan(op, (rows, lanes * vec), dim=0)
        nx = T.dynamic("nx")

        def position(chunk, r, u):
            """Return the index along the axis: a thread scans `unroll` neighbours, the threads follow each
            other."""
            return (chunk * rows + r) * unroll + u

        @T.prim_func
        def scan_columns(
            x: T.Tensor((nx,), dtype),
            output: T.Tensor((nx,), dtype),
            outer: T.int32,
            length: T.int32,
            inner: T.int32,
        ):
            with T.Kernel(tile.blocks(outer, inner), threads=tile.threads) as block:
                narrow = T.alloc_fragment(shape, dtype)
                values = T.alloc_fragment(shape, state)
                running = T.alloc_fragment((rows, lanes, vec), state)
                offset = T.alloc_fragment((rows, lanes, vec), state)
                carry = T.alloc_fragment((rows, lanes, vec), state)
                of_threads = T.alloc_shared((rows, lanes * vec), state)
                by_thread = T.Fragment(shape, forward_fn=lambda u, r, l, v: (r * lanes + l, u * vec + v))
                per_lane = T.Fragment((rows, lanes, vec), forward_fn=lambda r, l, v: (r * lanes + l, v))
                T.annotate_layout(
                    {
                        narrow: by_thread,
                        values: by_thread,
                        running: per_lane,
                        offset: per_lane,
                        carry: per_lane,
                    }
                )
                place = T.alloc_local((2,), "int32")
                find_place(block, inner, place)
                start, column = place[0] * length * inner, place[1]

                T.fill(carry, tirx.const(identity, state))
                for chunk in T.serial(T.ceildiv(length, rows * unroll)):
                    for u, r, l, v in T.Parallel(*shape):
                        if tirx.all(position(chunk, r, u) < length, column + l < inner):
                            narrow[u, r, l, v] = x[
                                (start + position(chunk, r, u) * inner + column + l) * vec + v
                            ]
                        else:
                            narrow[u, r, l, v] = T.cast(identity, dtype)
                    for u, r, l, v in T.Parallel(*shape):
                        values[u, r, l, v] = T.cast(narrow[u, r, l, v], state)

                    T.fill(running, tirx.const(identity, state))
                    for u in T.unroll(unroll):
                        for r, l, v in T.Parallel(rows, lanes, vec):
                            running[r, l, v] = combine(running[r, l, v], values[u, r, l, v])
                            values[u, r, l, v] = running[r, l, v]
                    for r, l, v in T.Parallel(rows, lanes, vec):
                        of_threads[r, l * vec + v] = running[r, l, v]
                    scan_threads(of_threads)

                    for r, l, v in T.Parallel(rows, lanes, vec):
                        offset[r, l, v] = carry[r, l, v]
                        if r > 0:
                            offset[r, l, v] = combine(offset[r, l, v], of_threads[r - 1, l * vec + v])
                    for r, l, v in T.Parallel(rows, lanes, vec):
                        carry[r, l, v] = combine(carry[r, l, v], of_threads[rows - 1, l * vec + v])

                    for u, r, l, v in T.Parallel(*shape):
                        if tirx.all(position(chunk, r, u) < length, column + l < inner):
                            output[(start + position(chunk, r, u) * inner + column + l) * vec + v] = T.cast(
                                T.cast(combine(values[u, r, l, v], offset[r, l, v]), "float32"), dtype
                            )

        return scan_columns

    @classmethod
    def samples(cls):
        """Return sums of aligned and ragged columns, and a product."""
        return (
            {"op": "sum", "dtype": "bfloat16", "vec": 8},
            {"op": "sum", "dtype": "float32", "vec": 1},
            {"op": "prod", "dtype": "bfloat16", "vec": 8},
        )
