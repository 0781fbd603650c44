"""The tile that every row-wise program is built on.

A row of `vectors` vectors of `vec` elements is read by `lanes` threads; a block holds `rows` rows, so it has
`rows * lanes` threads. In step k lane l reads vector k * lanes + l: neighbouring threads read neighbouring
vectors, each access is `vec` elements wide, and `unroll` steps are in flight at once. Fragments have shape
(unroll, rows, lanes, vec): the first and the last axis lie in a thread's registers, so reducing over them is
plain arithmetic; only the lanes are reduced across threads (`T.reduce_*` over a power-of-two axis, the one
shape that lowers on every architecture). Rows shorter than the tile are masked, never padded in memory.
"""

from dataclasses import dataclass

import tilelang.language as T
from tvm import tirx

# The programs mask what they read and write; the checks TileLang would add per element break up wide
# accesses.
PASS_CONFIGS = {"tl.disable_safe_memory_legalize": True}


@dataclass(frozen=True)
class RowTile:
    """Geometry of one block, and the index arithmetic that follows from it.

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
        """Return the layout of a tile of this shape: a row to its lanes, all else in registers."""
        return T.Fragment(self.shape, forward_fn=lambda u, i, l, v: (i * self.lanes + l, u * self.vec + v))

    def lane_layout(self):
        """Return the layout of what a tile is reduced to within threads."""
        return T.Fragment(self.lane_shape, forward_fn=lambda i, l, v: (i * self.lanes + l, v))

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


def row_sum(tile: RowTile):
    """Return a macro that sums per-lane partial results to one value per row."""

    @T.macro
    def macro(partial, total):
        per_lane = T.alloc_fragment((tile.rows, tile.lanes), "float32")
        T.reduce_sum(partial, per_lane, dim=2)
        T.reduce_sum(per_lane, total, dim=1)

    return macro


def row_max(tile: RowTile, dtype: str = "float32"):
    """Return a macro that takes the maximum of per-lane partial results per row."""

    @T.macro
    def macro(partial, total):
        per_lane = T.alloc_fragment((tile.rows, tile.lanes), dtype)
        T.reduce_max(partial, per_lane, dim=2)
        T.reduce_max(per_lane, total, dim=1)

    return macro


def welford_mean(x, mean, count):
    """Return what the `count`-th value adds to the running mean of those before it."""
    return (T.cast(x, "float32") - mean) * (T.float32(1) / T.cast(count, "float32"))


def welford_deviation(x, mean, count):
    """Return what the `count`-th value adds to the squared deviations; `mean` is that of the values before
    it."""
    delta = T.cast(x, "float32") - mean
    return delta * delta * (T.float32(1) - T.float32(1) / T.cast(count, "float32"))


def welford(tile: RowTile, vectors):
    """Return macros of a one-pass mean and sum of squared deviations.

    Every (lane, element) position keeps its own running mean and sum; positions fill in order, so in step k
    all that take part have seen k values and share one reciprocal. `merge` combines the positions of a row:
    no cancellation whatever the mean, unlike a sum of squares.
    """

    @T.macro
    def start(mean, deviation):
        T.clear(mean)
        T.clear(deviation)

    @T.macro
    def update(values, chunk, mean, deviation):
        for u in T.unroll(tile.unroll):
            for i, l, v in T.Parallel(*tile.lane_shape):
                if tile.vector(chunk, u, l) < vectors:
                    # The deviations first: they need the mean before this element.
                    deviation[i, l, v] += welford_deviation(
                        values[u, i, l, v], mean[i, l, v], chunk * tile.unroll + u + 1
                    )
                    mean[i, l, v] += welford_mean(
                        values[u, i, l, v], mean[i, l, v], chunk * tile.unroll + u + 1
                    )

    @T.macro
    def merge(mean, deviation, row_mean, row_deviation):
        weighted = T.alloc_fragment(tile.lane_shape, "float32")
        combine = row_sum(tile)
        for i, l, v in T.Parallel(*tile.lane_shape):
            weighted[i, l, v] = mean[i, l, v] * T.cast(
                (vectors - l + tile.lanes - 1) // tile.lanes, "float32"
            )
        combine(weighted, row_mean)
        for i in T.Parallel(tile.rows):
            row_mean[i] = row_mean[i] / T.cast(vectors * tile.vec, "float32")
        for i, l, v in T.Parallel(*tile.lane_shape):
            weighted[i, l, v] = deviation[i, l, v] + (mean[i, l, v] - row_mean[i]) * (
                mean[i, l, v] - row_mean[i]
            ) * T.cast((vectors - l + tile.lanes - 1) // tile.lanes, "float32")
        combine(weighted, row_deviation)

    return start, update, merge
