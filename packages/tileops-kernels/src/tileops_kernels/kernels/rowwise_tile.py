"""The tile that every row-wise program is built on.

A row of `vectors` vectors of `vec` elements is read by `lanes` threads; a block holds `rows` rows, so it has
`rows * lanes` threads. In step k lane l reads vector k * lanes + l: neighbouring threads read neighbouring
vectors, each access is `vec` elements wide, and `unroll` steps are in flight at once. Fragments have shape
(unroll, rows, lanes, vec): the first and the last axis lie in a thread's registers, so reducing over them is
plain arithmetic; only the lanes are reduced across threads. Rows shorter than the tile are masked, never
padded in memory.
"""

import math
from dataclasses import dataclass

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.reduce_table import COMBINE, REDUCE_OP

# The programs mask what they read and write; the checks TileLang would add per element break up wide
# accesses.
PASS_CONFIGS = {"tl.disable_safe_memory_legalize": True}
# For programs that read much and write little: what they read need not push anything else out of the cache
# (`ld.global.cs`). Programs that write as much as they read are faster without.
READ_ONCE_FLAGS = {"tl.device_compile_flags": ("-Xptxas", "-dlcm=cs")}
READ_ONCE = {**PASS_CONFIGS, **READ_ONCE_FLAGS}
WARP = 32


@dataclass(frozen=True)
class Tile:
    """Geometry of one block.

    Attributes:
        rows: rows of a block.
        lanes: threads of a row; a power of two.
        unroll: vectors a thread holds at once.
        vec: elements of a vector.
    """

    rows: int
    lanes: int
    unroll: int
    vec: int

    @property
    def threads(self) -> int:
        return self.rows * self.lanes

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.unroll, self.rows, self.lanes, self.vec)

    @property
    def lane_shape(self) -> tuple[int, int, int]:
        return (self.rows, self.lanes, self.vec)

    def layout(self):
        """Return the layout of a tile of this shape: a row to its lanes, all else in registers. Left to
        itself, layout inference derives narrower accesses from a reduction across threads."""
        return T.Fragment(self.shape, forward_fn=lambda u, i, l, v: (i * self.lanes + l, u * self.vec + v))

    def place_layout(self):
        """Return the layout of one number for every vector of a tile."""
        return T.Fragment(self.shape[:3], forward_fn=lambda u, i, l: (i * self.lanes + l, u))

    def lane_layout(self, width: int):
        """Return the layout of what a tile is reduced to within threads: `width` elements in each."""
        return T.Fragment((self.rows, self.lanes, width), forward_fn=lambda i, l, v: (i * self.lanes + l, v))


@dataclass(frozen=True)
class RowTile(Tile):
    """Geometry of a block of rows, and the index arithmetic that follows from it."""

    def vector(self, chunk, u, lane):
        """Return the index in its row of the vector that a lane reads in step `u` of a chunk."""
        return (chunk * self.unroll + u) * self.lanes + lane

    def covers(self, vectors) -> bool:
        """True if one chunk is exactly one row, so that no column needs a mask."""
        return isinstance(vectors, int) and vectors == self.unroll * self.lanes

    def in_bounds(self, row, num_rows, vector, vectors):
        """Return the condition under which a vector exists; parts that always hold are left out."""
        conditions = []
        if self.rows > 1:
            conditions.append(row < num_rows)
        if not self.covers(vectors):
            conditions.append(vector < vectors)
        return tirx.all(*conditions) if conditions else True


def row_fold(tile: RowTile, combine: str, dtype: str, identity: float, width: int):
    """Return a macro `(partial[rows, lanes, width], total[rows])`; every thread of a row gets its total.

    Threads of a warp exchange registers, warps meet once in shared memory: one barrier, where a butterfly
    over all lanes takes two for each doubling beyond a warp.
    """
    op, warps = COMBINE[combine], tile.lanes // WARP

    @T.macro
    def within_thread(partial, per_lane):
        T.fill(per_lane, tirx.const(identity, dtype))
        for v in T.unroll(width):
            for i, l in T.Parallel(tile.rows, tile.lanes):
                per_lane[i, l] = op(per_lane[i, l], partial[i, l, v])

    if combine not in REDUCE_OP:
        fold = shared_fold(tile.lanes, tile.rows, combine, dtype, identity)

        @T.macro
        def without_primitive(partial, total):
            per_lane = T.alloc_fragment((tile.rows, tile.lanes), dtype)
            shared = T.alloc_shared((tile.lanes, tile.rows), dtype)
            within_thread(partial, per_lane)
            for i, l in T.Parallel(tile.rows, tile.lanes):
                shared[l, i] = per_lane[i, l]
            fold(shared, total)

        return without_primitive

    reduce = REDUCE_OP[combine]

    @T.macro
    def within_warp(partial, total):
        per_lane = T.alloc_fragment((tile.rows, tile.lanes), dtype)
        within_thread(partial, per_lane)
        reduce(per_lane, total, dim=1)

    @T.macro
    def across_warps(partial, total):
        per_lane = T.alloc_fragment((tile.rows, warps, WARP), dtype)
        of_warp = T.alloc_fragment((tile.rows, warps), dtype)
        shared = T.alloc_shared((tile.rows, warps), dtype)
        T.annotate_layout(
            {
                per_lane: T.Fragment(
                    (tile.rows, warps, WARP),
                    forward_fn=lambda i, w, l: (i * tile.lanes + w * WARP + l, 0),
                )
            }
        )
        T.fill(per_lane, tirx.const(identity, dtype))
        for v in T.unroll(width):
            for i, w, l in T.Parallel(tile.rows, warps, WARP):
                per_lane[i, w, l] = op(per_lane[i, w, l], partial[i, w * WARP + l, v])
        reduce(per_lane, of_warp, dim=2)
        T.copy(of_warp, shared)
        T.fill(total, tirx.const(identity, dtype))
        for w in T.unroll(warps):
            for i in T.Parallel(tile.rows):
                total[i] = op(total[i], shared[i, w])

    return within_warp if tile.lanes <= WARP else across_warps


def row_sum(tile: RowTile):
    """Return a macro that sums per-lane partial results to one value per row."""
    return row_fold(tile, "sum", "float32", 0.0, tile.vec)


def row_max(tile: RowTile):
    """Return a macro that takes the maximum of per-lane partial results per row."""
    return row_fold(tile, "max", "float32", -math.inf, tile.vec)


def shared_fold(count: int, width: int, combine: str, dtype: str, identity: float):
    """Return a macro `(shared[count, width], total[width])` that combines the first axis, a power of two:
    up to 16 at once, more in two steps of about sqrt(count); the order does not depend on timing."""
    op, group = COMBINE[combine], 1
    while group < count and (group < 16 or group * group < count):
        group *= 2
    groups = count // group

    @T.macro
    def one_step(shared, total):
        T.fill(total, tirx.const(identity, dtype))
        for k in T.unroll(count):
            for c in T.Parallel(width):
                total[c] = op(total[c], shared[k, c])

    @T.macro
    def two_steps(shared, total):
        of_group = T.alloc_fragment((groups, width), dtype)
        shared_groups = T.alloc_shared((groups, width), dtype)
        T.fill(of_group, tirx.const(identity, dtype))
        for k in T.unroll(group):
            for g, c in T.Parallel(groups, width):
                of_group[g, c] = op(of_group[g, c], shared[k * groups + g, c])
        T.copy(of_group, shared_groups)
        T.fill(total, tirx.const(identity, dtype))
        for k in T.unroll(groups):
            for c in T.Parallel(width):
                total[c] = op(total[c], shared_groups[k, c])

    return one_step if groups == 1 else two_steps
