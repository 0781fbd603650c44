"""How blocks pass over a whole tensor of (batch, channels, space) by values of its channels.

A thread holds vectors, each within one channel, and looks up what belongs to theirs.
"""

from dataclasses import dataclass

import tilelang.language as T

__all__ = ["ChannelPass"]


@dataclass(frozen=True)
class ChannelPass:
    """Geometry of a block.

    Attributes:
        threads: threads of the block.
        unroll: vectors that a thread holds.
        vec: elements of a vector.
    """

    threads: int
    unroll: int
    vec: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.unroll, self.threads, self.vec)

    @property
    def steps(self) -> tuple[int, int]:
        """Shape of what a block holds one of for every vector."""
        return (self.unroll, self.threads)

    def number(self, block, u, t):
        """Return the number of a vector in the tensor."""
        return (block * self.unroll + u) * self.threads + t

    def layouts(self, values, per_vector):
        """Return the layouts of fragments of shape `shape` and of those of shape `steps`."""
        whole = T.Fragment(self.shape, forward_fn=lambda u, t, v: (t, u * self.vec + v))
        step = T.Fragment(self.steps, forward_fn=lambda u, t: (t, u))
        return {**dict.fromkeys(values, whole), **dict.fromkeys(per_vector, step)}

    def read(self):
        """Return a macro `(source, values, block, total)`, `total` being the vectors of the tensor."""

        @T.macro
        def macro(source, values, block, total):
            for u, t, v in T.Parallel(*self.shape):
                if self.number(block, u, t) < total:
                    values[u, t, v] = source[self.number(block, u, t) * self.vec + v]

        return macro

    def find(self):
        """Return a macro `(channel, block, run, channels)`: the channel of every vector.

        Divided here: inside a global index it would be done in 64 bits, at every access.
        """

        @T.macro
        def macro(channel, block, run, channels):
            for u, t in T.Parallel(*self.steps):
                channel[u, t] = T.truncmod(T.truncdiv(self.number(block, u, t), run), channels)

        return macro

    def write(self, dtype, value):
        """Return a macro `(output, block, total)` that writes `value(u, t, v)`."""

        @T.macro
        def macro(output, block, total):
            for u, t, v in T.Parallel(*self.shape):
                if self.number(block, u, t) < total:
                    output[self.number(block, u, t) * self.vec + v] = T.cast(value(u, t, v), dtype)

        return macro
