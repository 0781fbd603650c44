"""What attention's programs share, forward and backward: head dims, the choice of a table, masks, stores."""

from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel

__all__ = [
    "MAX_HEAD_DIM",
    "AttentionProgramKernel",
    "hide_keys",
    "hide_queries",
    "padded_depth",
    "store_rows",
]

_ACC = "float32"

MAX_HEAD_DIM = 256
"""Largest head dim of the attention kernels: a wider accumulator does not fit the registers."""


def padded_depth(head_dim):
    """Return the columns of a tile: the tensor core takes 16 at a time, and copies fill the rest with zeros.

    >>> padded_depth(64), padded_depth(100)
    (64, 112)
    """
    return -(-head_dim // 16) * 16


class AttentionProgramKernel(Kernel):
    """Base of the programs that are written for every target: dtypes, and the choice among three tables.

    Class variables:
        CONFIGS: of 16-bit dtypes.
        UNALIGNED_CONFIGS: of rows that are not a multiple of 16 bytes. The threads that compute copy
            them, and their addresses take registers: smaller tiles.
        EXACT_CONFIGS: of float32, whose tiles take twice the memory; products run on the ordinary cores.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16
    MAX_HEAD_DIM = MAX_HEAD_DIM
    # Without this flag every exp2 carries a rescue path for results below 2^-126.
    PASS_CONFIGS: ClassVar = {"tl.device_compile_flags": ["-ftz=true"]}
    UNALIGNED_CONFIGS: ClassVar[ConfigTable]
    EXACT_CONFIGS: ClassVar[ConfigTable]

    @classmethod
    def default_config(cls, *, target, arch, **sizes):
        table = cls.CONFIGS if sizes["head_dim"] % 8 == 0 else cls.UNALIGNED_CONFIGS
        if sizes["dtype"] == "float32":
            table = cls.EXACT_CONFIGS
        return table.pick(target, arch, sizes)


@T.macro
def hide_keys(s_frag, row0, col0, right, seq, right_bounded):
    """Set scores to -inf where a key lies past the end, or, if `right_bounded`, more than `right` past its
    query. Rows of `s_frag` are queries from `row0` on, columns are keys from `col0` on."""
    rows, columns = s_frag.shape
    if col0 + columns > (T.min(row0 + right + 1, seq) if right_bounded else seq):
        for i, j in T.Parallel(rows, columns):
            s_frag[i, j] = T.if_then_else(
                col0 + j <= (T.min(row0 + i + right, seq - 1) if right_bounded else seq - 1),
                s_frag[i, j],
                -T.infinity(_ACC),
            )


@T.macro
def hide_queries(p_frag, row0, col0):
    """Set probabilities to 0 where a query comes before its key. Rows of `p_frag` are keys from `row0` on,
    columns are queries from `col0` on."""
    rows, columns = p_frag.shape
    if col0 < row0 + rows - 1:
        for i, j in T.Parallel(rows, columns):
            p_frag[i, j] = T.if_then_else(col0 + j >= row0 + i, p_frag[i, j], 0.0)


@T.macro
def store_rows(result, through, out, request, row0, head, fma):
    """Write the rows of a tile from `row0` on."""
    rows, depth = result.shape
    # On the ordinary cores a row belongs to several threads, of which one stores it.
    if fma:
        T.copy(result, out[request, row0 : row0 + rows, head, 0:depth])
    else:
        T.copy(result, through)
        T.copy(through, out[request, row0 : row0 + rows, head, 0:depth])
