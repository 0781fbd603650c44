"""The smallest tile program: what `doctor` compiles and runs to see whether a target works."""

# No `from __future__ import annotations`: TileLang reads the annotations of a tile program as it is defined.
import tilelang.language as T

BLOCK = 128


def successor():
    """y = x + 1, for int32 vectors of any length."""
    length = T.dynamic("length")

    @T.prim_func
    def tileops_probe(x: T.Tensor((length,), "int32"), y: T.Tensor((length,), "int32")):
        with T.Kernel(T.ceildiv(length, BLOCK), threads=BLOCK) as block:
            for i in T.Parallel(BLOCK):
                y[block * BLOCK + i] = x[block * BLOCK + i] + 1

    return tileops_probe
