"""What the kernels that move rows of tokens share: their dtypes, their blocks, and where a block stands."""

from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS

__all__ = ["MoeRowsKernel", "locate"]


class MoeRowsKernel(Kernel):
    """Base of the kernels whose blocks take a run of columns of one token, a vector of them a thread."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS

    @dataclass(frozen=True)
    class Config:
        """`threads` vectors of one token in a block."""

        threads: int

    CONFIGS = ConfigTable(
        size=lambda sizes: 0, devices={"cpu": ((None, Config(64)),), "sm_80": ((None, Config(128)),)}
    )


@T.macro
def locate(bx, columns, threads, place):
    """Set `place` to the token of block `bx` and to the first vector of its columns.

    `place` is memory of a thread: inside a global index the divisions would be done in 64 bits, at every
    access.
    """
    place[0] = T.truncdiv(bx, T.ceildiv(columns, threads))
    place[1] = T.truncmod(bx, T.ceildiv(columns, threads)) * threads
