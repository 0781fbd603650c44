"""Matrix products of groups of consecutive rows, in one launch; sizes and first rows are read on the device.

* `GroupedGemmKernel`: the rows of a group times the group's own matrix. A grid has a fixed number of places
  for tiles, `rows // block_m + groups + 1`; group g has those from `first[g] // block_m + g` on, which are
  enough for it wherever it begins. So a block finds its group by bisection of the first rows, and nothing has
  to be summed up beforehand. Places that a group does not need end at once.
* `GroupedGemmRowsKernel`: the transposed rows of a group times the same rows of another matrix.

Source: arXiv:2211.15841.
"""

import dataclasses
from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel

__all__ = ["GroupedConfig", "GroupedGemmKernel", "GroupedGemmRowsKernel"]

_ACC = "float32"
_INDEX = "int32"


@dataclass(frozen=True)
class GroupedConfig:
    """Schedule of the products.

    Attributes:
        block_m, block_n, block_k: tile of the output, and depth of one pipeline stage.
        threads: threads that compute.
        num_stages: depth of the copy pipeline.
    """

    block_m: int
    block_n: int
    block_k: int
    threads: int
    num_stages: int


@T.macro
def _find(slot, offsets, groups, block_m, place):
    """Set place[0] to the last group whose tiles' places begin at or before `slot`."""
    low = T.alloc_var(_INDEX, init=0)
    high = T.alloc_var(_INDEX, init=groups - 1)
    while low < high:
        middle = T.truncdiv(low + high + 1, 2)
        if T.truncdiv(offsets[middle], block_m) + middle <= slot:
            low = middle
        else:
            high = middle - 1
    place[0] = low


class GroupedGemmKernel(Kernel):
    """`d[rows of g] = a[rows of g] @ op(b[g])`, 0 past the last group; rows and groups are symbolic.

    `trans_b`: b is stored `[groups, n, k]`, else `[groups, k, n]`.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    ALIGNMENT = 16
    Config = GroupedConfig
    _MANY_ROWS = 256  # taken where the mean size of a group is not known
    # By the mean number of rows of a group. Tiles are higher than that: groups differ, and a second tile
    # reads the group's matrix again. Few rows are limited by how fast matrices come in.
    CONFIGS = ConfigTable(
        size=lambda s: s.get("group_rows", GroupedGemmKernel._MANY_ROWS),
        devices={
            "cpu": ((None, GroupedConfig(64, 64, 64, 128, 0)),),
            "sm_80": (
                (24, GroupedConfig(32, 64, 64, 128, 4)),
                (48, GroupedConfig(64, 64, 64, 128, 3)),
                (None, GroupedConfig(128, 128, 32, 128, 3)),
            ),
        },
    )

    @staticmethod
    def program(*, n, k, dtype, trans_b, config):
        rows, groups = T.dynamic("rows"), T.dynamic("groups")
        bm, bn, bk = config.block_m, config.block_n, config.block_k
        n_tiles = -(-n // bn)
        b_shape = (groups, n, k) if trans_b else (groups, k, n)

        @T.prim_func
        def grouped_gemm(
            a: T.Tensor((rows, k), dtype),
            b: T.Tensor(b_shape, dtype),
            sizes: T.Tensor((groups,), _INDEX),
            offsets: T.Tensor((groups,), _INDEX),
            d: T.Tensor((rows, n), dtype),
        ):
            places = T.floordiv(rows, bm) + groups + 1
            with T.Kernel(places * n_tiles, threads=config.threads) as (tile,):
                a_shared = T.alloc_shared((bm, bk), dtype)
                b_shared = T.alloc_shared((bn, bk) if trans_b else (bk, bn), dtype)
                d_shared = T.alloc_shared((bm, bn), dtype)
                acc = T.alloc_fragment((bm, bn), _ACC)
                place = T.alloc_local((3,), _INDEX)  # group, first row of the tile, end of the rows

                # Tiles of the same rows run together, then those of the group's next rows.
                slot, col0 = T.truncdiv(tile, n_tiles), T.truncmod(tile, n_tiles) * bn
                _find(slot, offsets, groups, bm, place)
                group = place[0]
                used = offsets[groups - 1] + sizes[groups - 1]
                behind = slot - T.truncdiv(used, bm) - groups  # places past the last group's
                if behind >= 0:
                    for i, j in T.Parallel(bm, bn):
                        if T.And(used + behind * bm + i < rows, col0 + j < n):
                            d[used + behind * bm + i, col0 + j] = T.cast(0, dtype)
                else:
                    place[2] = offsets[group] + sizes[group]
                    place[1] = offsets[group] + (slot - T.truncdiv(offsets[group], bm) - group) * bm
                    row0, end = place[1], place[2]
                    if row0 < end:
                        T.clear(acc)
                        for step in T.Pipelined(T.ceildiv(k, bk), num_stages=config.num_stages):
                            T.copy(a[row0 : row0 + bm, step * bk : (step + 1) * bk], a_shared)
                            if trans_b:
                                T.copy(b[group, col0 : col0 + bn, step * bk : (step + 1) * bk], b_shared)
                            else:
                                T.copy(b[group, step * bk : (step + 1) * bk, col0 : col0 + bn], b_shared)
                            T.gemm(a_shared, b_shared, acc, transpose_B=trans_b)
                        T.copy(acc, d_shared)
                        for i, j in T.Parallel(bm, bn):
                            if T.And(row0 + i < end, col0 + j < n):
                                d[row0 + i, col0 + j] = d_shared[i, j]

        return grouped_gemm

    @classmethod
    def samples(cls):
        nt = {"n": 4096, "k": 4096, "dtype": "bfloat16", "trans_b": True}
        return (nt, {**nt, "trans_b": False}, {"n": 53, "k": 77, "dtype": "float16", "trans_b": True})


class GroupedGemmRowsKernel(Kernel):
    """`d[g] = a[rows of g].T @ b[rows of g]`; rows and groups are symbolic, m and n (columns) are static.

    A group of no rows gives 0. `trans_b`: b is stored `[n, rows]`; the copy engine then needs a multiple of 8
    rows.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    ALIGNMENT = 16
    Config = GroupedConfig
    CONFIGS = ConfigTable(
        size=lambda s: s["n"],
        devices={
            "cpu": ((None, GroupedConfig(64, 64, 64, 128, 0)),),
            "sm_80": (
                (64, GroupedConfig(64, 64, 32, 128, 1)),
                (None, GroupedConfig(128, 128, 32, 128, 1)),
            ),
            "sm_90a": (
                (128, GroupedConfig(128, 128, 64, 256, 4)),
                (None, GroupedConfig(128, 256, 64, 256, 3)),
            ),
        },
    )

    @classmethod
    def default_config(cls, *, target, arch, m, n, trans_b, **sizes):
        """The table's; one stage where the copy engine cannot address the rows of an operand.

        The loop's length is read from memory, and a pipeline of other copies does not lower for one.
        """
        config = super().default_config(target=target, arch=arch, n=n, **sizes)
        if target == "cpu" or (m % 8 == 0 and (trans_b or n % 8 == 0)):
            return config
        return dataclasses.replace(config, num_stages=1)

    @staticmethod
    def program(*, m, n, dtype, trans_b, config):
        rows, groups = T.dynamic("rows"), T.dynamic("groups")
        bm, bn, bk = config.block_m, config.block_n, config.block_k
        m_tiles, n_tiles = -(-m // bm), -(-n // bn)
        b_tile = (bn, bk) if trans_b else (bk, bn)

        @T.prim_func
        def grouped_gemm_rows(
            a: T.Tensor((rows, m), dtype),
            b: T.Tensor((n, rows) if trans_b else (rows, n), dtype),
            sizes: T.Tensor((groups,), _INDEX),
            offsets: T.Tensor((groups,), _INDEX),
            d: T.Tensor((groups, m, n), dtype),
        ):
            with T.Kernel(groups * m_tiles * n_tiles, threads=config.threads) as (tile,):
                a_shared = T.alloc_shared((bk, bm), dtype)
                b_shared = T.alloc_shared(b_tile, dtype)
                a_rest = T.alloc_shared((bk, bm), dtype)
                b_rest = T.alloc_shared(b_tile, dtype)
                d_shared = T.alloc_shared((bm, bn), dtype)
                acc = T.alloc_fragment((bm, bn), _ACC)
                row0 = T.truncmod(tile, m_tiles) * bm
                col0 = T.truncmod(T.truncdiv(tile, m_tiles), n_tiles) * bn
                group = T.truncdiv(tile, m_tiles * n_tiles)
                first, size = offsets[group], sizes[group]
                steps = T.truncdiv(size, bk)

                T.clear(acc)
                for step in T.Pipelined(steps, num_stages=config.num_stages):
                    at = first + step * bk
                    T.copy(a[at : at + bk, row0 : row0 + bm], a_shared)
                    if trans_b:
                        T.copy(b[col0 : col0 + bn, at : at + bk], b_shared)
                    else:
                        T.copy(b[at : at + bk, col0 : col0 + bn], b_shared)
                    T.gemm(a_shared, b_shared, acc, transpose_A=True, transpose_B=trans_b)
                # The rows left over end where the next group begins: what is behind must not be added.
                if steps * bk < size:
                    for i, j in T.Parallel(bk, bm):
                        mine = T.And(steps * bk + i < size, row0 + j < m)
                        a_rest[i, j] = T.if_then_else(mine, a[first + steps * bk + i, row0 + j], 0)
                    for i, j in T.Parallel(*b_tile):
                        row, col = steps * bk + (j if trans_b else i), col0 + (i if trans_b else j)
                        mine = T.And(row < size, col < n)
                        b_rest[i, j] = T.if_then_else(
                            mine, b[col, first + row] if trans_b else b[first + row, col], 0
                        )
                    T.gemm(a_rest, b_rest, acc, transpose_A=True, transpose_B=trans_b)
                T.copy(acc, d_shared)
                T.copy(d_shared, d[group, row0 : row0 + bm, col0 : col0 + bn])

        return grouped_gemm_rows

    @classmethod
    def samples(cls):
        tn = {"m": 4096, "n": 4096, "dtype": "bfloat16", "trans_b": False}
        return (tn, {**tn, "trans_b": True}, {"m": 77, "n": 53, "dtype": "float16", "trans_b": True})
