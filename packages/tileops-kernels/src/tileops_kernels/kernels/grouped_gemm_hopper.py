"""Matrix products of groups of consecutive rows on Hopper: the schedule of `gemm_hopper.py`.

The same function as `GroupedGemmKernel` in `grouped_gemm.py`, whose tile program is the one that the CPU
verifies. Tiles are numbered group by group. The numbers that a block takes rise, so it walks the groups
once, adding up their tiles as it goes: no list of tiles is made, and no block has two tiles more than
another.
Rows past the last group are a group of their own, of zeros.

Source: arXiv:2211.15841.
"""

from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable
from tileops_kernels.kernels.gemm_hopper_parts import (
    ACC,
    GROUP,
    HopperProductKernel,
    MatmulHopperConfig,
    matmul_parts,
)

__all__ = ["GroupedGemmHopperKernel", "GroupedHopperConfig"]

_INDEX = "int32"
# Registers of a thread that fetches, and walks the groups, and of one in two warp groups that compute.
_REGISTERS = (40, 232)


@dataclass(frozen=True)
class GroupedHopperConfig(MatmulHopperConfig):
    """Schedule of the products.

    Attributes:
        swap_ab: compute the transposed tile, for groups of few rows: `block_m` are columns of the result, and
            `block_n` its rows.
    """

    swap_ab: bool = False


class GroupedGemmHopperKernel(HopperProductKernel):
    """`d[rows of g] = a[rows of g] @ op(b[g])`, 0 past the last group; rows and groups are symbolic.

    `trans_b`: b is stored `[groups, n, k]`, else `[groups, k, n]`.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    Config = GroupedHopperConfig
    _MANY_ROWS = 256  # taken where the mean size of a group is not known
    # By the mean number of rows of a group. Tiles are higher than that: groups differ, and a second tile
    # reads the group's matrix again. Few rows are limited by how fast matrices come in.
    CONFIGS = ConfigTable(
        size=lambda s: s.get("group_rows", GroupedGemmHopperKernel._MANY_ROWS),
        devices={
            "sm_90a": (
                (8, GroupedHopperConfig(128, 16, 64, 11, swap_ab=True)),
                (24, GroupedHopperConfig(128, 32, 64, 10, swap_ab=True)),
                (48, GroupedHopperConfig(128, 64, 64, 8, swap_ab=True)),
                (None, GroupedHopperConfig(128, 256, 64, 4)),
            ),
        },
        everywhere=False,
    )

    @classmethod
    def fits(cls, device, *, n, k):
        """True if the kernel is written for the device, and the copy engine can address every row."""
        return n % 8 == k % 8 == 0 and cls.serves_device(device)

    @staticmethod
    def program(*, n, k, dtype, trans_b, config):
        rows, groups = T.dynamic("rows"), T.dynamic("groups")
        bm, bn, bk, stages = config.block_m, config.block_n, config.block_k, config.num_stages
        teams, blocks, swap = config.groups, config.blocks, config.swap_ab
        share = bm // teams  # rows of a tile that a warp group computes
        high, wide = (bn, bm) if swap else (bm, bn)  # of a tile of the result
        n_tiles = -(-n // wide)
        b_shape = (groups, n, k) if trans_b else (groups, k, n)
        left_shape = (bk, bm) if swap and not trans_b else (bm, bk)
        right_shape = (bn, bk) if swap or trans_b else (bk, bn)

        parts = matmul_parts(n=n, k=k, trans_a=swap and not trans_b, trans_b=swap or trans_b, config=config)
        steps, sum_up, store = parts.steps, parts.sum_up, parts.store
        locate_within, fetch_walk, share_out = parts.locate_within, parts.fetch_walk, parts.share_out

        @T.macro
        def enter(place, sizes, offsets):
            first, last = T.min(place[2], groups - 1), groups - 1
            if place[2] < groups:
                place[3] = offsets[first]
                place[4] = offsets[first] + sizes[first]
            else:
                place[3] = offsets[last] + sizes[last]
                place[4] = rows
            place[5] = T.ceildiv(place[4] - place[3], high) * n_tiles

        @T.macro
        def locate(tile, place, where):
            # (row, column, group, the group's first row, its end, its tiles, tiles before them);
            # group number `groups` has the rows past the last one.
            if tile < blocks:
                place[2] = 0
                place[6] = 0
                enter(place, *where)
            while T.And(place[2] <= groups, tile >= place[6] + place[5]):
                place[6] += place[5]
                place[2] += 1
                enter(place, *where)
            within = tile - place[6]
            if swap:
                place[0] = T.truncmod(within, n_tiles) * bm
                place[1] = place[3] + T.truncdiv(within, n_tiles) * bn
            elif place[2] <= groups:  # which has a tile then
                locate_within(within, place, T.truncdiv(place[5], n_tiles))
                place[0] += place[3]

        @T.macro
        def write(group, place, d, value):
            """Write a warp group's part of a tile, of which rows may belong to the next group."""
            for i, j in T.Parallel(share, bn):
                row = place[1] + j if swap else place[0] + group * share + i
                col = place[0] + group * share + i if swap else place[1] + j
                if T.And(row < place[4], col < n):
                    d[row, col] = value(i, j)

        @T.macro
        def compute(group, tx, block, rounds, where, a_shared, b_shared, d_shared, full, empty, d):
            acc = T.alloc_fragment((share, bn), ACC)
            place = T.alloc_local((7,), _INDEX)
            at = T.alloc_var(_INDEX, init=0)
            T.set_max_nreg(_REGISTERS[1], 1)
            for r in T.serial(rounds):
                locate(block + r * blocks, place, where)
                if place[2] < groups:
                    sum_up(group, tx, acc, at, a_shared, b_shared, full, empty)
                    if swap:
                        write(group, place, d, lambda i, j: T.cast(acc[i, j], dtype))
                    elif place[0] + (group + 1) * share <= place[4]:
                        store(group, acc, place, d_shared, d)
                    else:
                        write(group, place, d, lambda i, j: T.cast(acc[i, j], dtype))
                elif place[2] == groups:
                    write(group, place, d, lambda i, j: T.cast(0, dtype))
            if not swap:
                T.tma_store_wait(0)

        walk = (locate, 7, lambda place: T.if_then_else(place[2] < groups, steps, 0))

        @T.macro
        def nothing(r, step, place):
            pass

        @T.prim_func
        def grouped_gemm_hopper(
            a: T.Tensor((rows, k), dtype),
            b: T.Tensor(b_shape, dtype),
            sizes: T.Tensor((groups,), _INDEX),
            offsets: T.Tensor((groups,), _INDEX),
            d: T.Tensor((rows, n), dtype),
        ):
            with T.Kernel(blocks, threads=(teams + 1) * GROUP) as (block,):
                left = T.alloc_shared((stages, *left_shape), dtype)
                right = T.alloc_shared((stages, *right_shape), dtype)
                d_shared = T.alloc_shared((teams, 2, share, 0 if swap else config.chunk), dtype)
                full = T.alloc_barrier([32] * stages)
                empty = T.alloc_barrier([4 * teams] * stages)
                tx = T.get_thread_binding()
                # At most: a group's last tile may be of one row.
                tiles = (T.floordiv(rows, high) + groups + 1) * n_tiles
                rounds = T.ceildiv(tiles - block, blocks)
                where = (sizes, offsets)
                if tx >= teams * GROUP:
                    T.set_max_nreg(_REGISTERS[0], 0)
                    if tx < teams * GROUP + 32:
                        if swap:
                            fetch_walk(walk, block, rounds, where, left, right, full, empty, b, a, nothing)
                        else:
                            fetch_walk(walk, block, rounds, where, left, right, full, empty, a, b, nothing)
                else:
                    share_out(0, tx, compute, block, rounds, where, left, right, d_shared, full, empty, d)

        return grouped_gemm_hopper

    @classmethod
    def samples(cls):
        nt = {"n": 4096, "k": 4096, "dtype": "bfloat16", "trans_b": True}
        return (nt, {**nt, "trans_b": False})
