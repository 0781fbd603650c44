"""How a block walks a channel of (batch, channels, space), or a part of one.

A channel is `batch` runs of `space` adjacent elements. Its vectors are numbered through, so that a batch of
images and one of plain vectors are one program. The tile is one row: the channel.
"""

from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.rowwise_tile import RowTile

__all__ = ["ChannelTile", "channel_tile"]


@dataclass(frozen=True)
class ChannelTile(RowTile):
    """Geometry of a block: one row, whose vectors lie in runs."""

    def places_layout(self):
        """Return the layout of the places of a chunk's vectors: with the threads that read them."""
        return T.Fragment((self.unroll, self.lanes), forward_fn=lambda u, l: (l, u))

    def find(self):
        """Return a macro `(places, chunk, first, last, run, channel, channels)`: where in memory the
        vectors of a chunk lie that begins at number `first` of the channel, -1 from number `last` on.

        Divided here: inside a global index it would be done in 64 bits, at every access.
        """

        @T.macro
        def macro(places, chunk, first, last, run, channel, channels):
            for u, l in T.Parallel(self.unroll, self.lanes):
                number = first + self.vector(chunk, u, l)
                if number < last:
                    places[u, l] = (T.truncdiv(number, run) * channels + channel) * run + T.truncmod(
                        number, run
                    )
                else:
                    places[u, l] = -1

        return macro

    def load(self, dtype):
        """Return a macro `(source, places, values)`; what has no place is 0."""

        @T.macro
        def macro(source, places, values):
            for u, i, l, v in T.Parallel(*self.shape):
                if places[u, l] >= 0:
                    values[u, i, l, v] = source[places[u, l] * self.vec + v]
                else:
                    values[u, i, l, v] = T.cast(0, dtype)

        return macro


def channel_tile(threads: int, unroll: int, vec: int) -> ChannelTile:
    """Return the tile of a block of `threads` threads that hold `unroll` vectors each."""
    return ChannelTile(rows=1, lanes=threads, unroll=unroll, vec=vec)
