"""The tile of programs that reduce the middle axis of (outer, length, inner), reading along inner.

`lanes` threads read neighbouring vectors of the inner axis; `rows` threads share a column and walk the
reduced axis, `unroll` steps of `rows` at a time. Fragments have the shape of a row tile's, and all but the
middle two axes lie in a thread's registers.
"""

from dataclasses import dataclass

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.rowwise_tile import Tile, shared_fold


@dataclass(frozen=True)
class ColumnTile(Tile):
    """Geometry of a block: `rows` threads per column, `lanes` vectors wide."""

    @property
    def columns(self) -> int:
        return self.lanes * self.vec

    def column_layout(self):
        """Return the layout of one number per column, where a column is one thread's."""
        return T.Fragment((self.columns,), forward_fn=lambda c: (c // self.vec, c % self.vec))

    def step(self, chunk, u, row):
        """Return the step along the reduced axis that a thread takes in step `u` of a chunk."""
        return (chunk * self.unroll + u) * self.rows + row

    def blocks(self, outer, inner):
        """Return the number of blocks over all columns."""
        return outer * T.ceildiv(inner, self.lanes)

    def place(self):
        """Return a macro `(block, inner, place[2])` that stores the index along outer and the first vector of
        a block: used in global indices as they are, the divisions would be done in 64 bits, at every access.
        """
        lanes = self.lanes

        @T.macro
        def macro(block, inner, place):
            place[0] = T.truncdiv(block, T.ceildiv(inner, lanes))
            place[1] = T.truncmod(block, T.ceildiv(inner, lanes)) * lanes

        return macro

    def in_bounds(self, step, length, vector, inner):
        """Return the condition under which a vector exists."""
        return tirx.all(step < length, vector < inner)


def column_fold(tile: ColumnTile, combine: str, dtype: str, identity: float):
    """Return a macro `(partial[rows, lanes, vec], total[columns])`; `total` is shared by the block, or with
    one row kept by the threads of the columns."""
    if tile.rows == 1:

        @T.macro
        def kept(partial, total):
            for r, l, v in T.Parallel(*tile.lane_shape):
                total[l * tile.vec + v] = partial[r, l, v]

        return kept

    fold = shared_fold(tile.rows, tile.columns, combine, dtype, identity)

    @T.macro
    def macro(partial, total):
        shared = T.alloc_shared((tile.rows, tile.columns), dtype)
        of_column = T.alloc_fragment((tile.columns,), dtype)
        for r, l, v in T.Parallel(*tile.lane_shape):
            shared[r, l * tile.vec + v] = partial[r, l, v]
        fold(shared, of_column)
        T.copy(of_column, total)

    return macro
