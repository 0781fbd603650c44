"""What every matrix product with Hopper's explicit schedule is made of.

* A warp of the last warp group fetches operand tiles with the copy engine into a ring of buffers; `full` and
  `empty` barriers pass the buffers to and fro. It runs ahead over the borders of tiles.
* A computing warp group owns its share of the rows of a tile. They never wait for each other: while one
  writes, the others have the tensor cores to themselves.
* A fixed number of blocks walks all tiles, in panels whose operands stay in L2.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel

__all__ = ["ACC", "GROUP", "REGISTERS", "HopperProductKernel", "MatmulHopperConfig", "matmul_parts", "only"]

ACC = "float32"
GROUP = 128  # threads of a warp group
# Registers of a thread that loads, and of one that computes, by the number of warp groups that compute.
REGISTERS = {1: (40, 232), 2: (24, 240), 3: (32, 160)}


@dataclass(frozen=True)
class MatmulHopperConfig:
    """Schedule of one matrix product.

    Attributes:
        block_m, block_n, block_k: tile of the output, and depth of one buffer.
        num_stages: buffers.
        groups: warp groups that compute, 1 to 3; each takes `block_m / groups` rows, a multiple of 64.
        chunk: columns that a warp group writes at once; divides `block_n`.
        panel: rows of tiles that are walked together, column by column.
        blocks: blocks of the grid, each of which takes every `blocks`-th tile.
    """

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    groups: int = 2
    chunk: int = 64
    panel: int = 8
    blocks: int = 132


class HopperProductKernel(Kernel):
    """Base of the products that are written for Hopper alone."""

    ALIGNMENT = 16
    ARCHS = frozenset({"sm_90a"})
    PASS_CONFIGS: ClassVar = {"tl.disable_warp_specialized": True}  # roles, where there are any, are explicit
    UNITS = 132  # multiprocessors


def only(config: Any) -> ConfigTable:
    """Return the table of a product for Hopper that has one default config, or chooses by itself."""
    return ConfigTable(size=lambda sizes: 0, devices={"sm_90a": ((None, config),)}, everywhere=False)


def matmul_parts(*, n, k, trans_a, trans_b, config):
    """Return the macros that products share, for `op(a)[m, k] @ op(b)[k, n]` in the tiles of `config`.

    An operand of three dims is a stack of matrices.

    * `locate(tile, place, m_tiles)` sets (row, column, matrix) of a tile;
      `locate_within(tile, place, m_tiles)` sets row and column alone.
    * `multiply(group, a_shared, b_shared, acc, slot, clear, first, width)` issues the product of a group's
      rows of buffer `slot` with `width` of its columns from `first` on.
    * `give_back(tx, empty, slot)`: a warp has read a buffer.
    * `sum_up(group, tx, acc, at, a_shared, b_shared, full, empty)` forms a group's rows of a tile in `acc`,
      with one product in flight, from buffer number `at` on, which it moves on.
    * `store(group, acc, place, d_shared, d)` writes a group's rows through two small buffers.
    * `fetch(block, rounds, m_tiles, a_shared, b_shared, full, empty, a, b, also, *context)` is what the
      loading warp does; it calls the macro `also(r, step, place, *context)` ahead of every step.
    * `fetch_walk(walk, ...)` is `fetch` for tiles that are shared out in another way. `walk` has a macro in
      place of `locate`, to which the third argument means what it likes, the count of numbers in its `place`,
      and a function from `place` to the number of steps, 0 where nothing is to be fetched.
    * `share_out(0, tx, compute, *context)` calls the macro `compute(group, tx, *context)` for the warp group
      that a computing thread belongs to.
    """
    bm, bn, bk, stages = config.block_m, config.block_n, config.block_k, config.num_stages
    groups, chunk, panel, blocks = config.groups, config.chunk, config.panel, config.blocks
    rows = bm // groups
    steps = -(-k // bk)
    n_tiles = -(-n // bn)

    def region(buffer, request, row, col, height, width):
        if len(buffer.shape) == 3:
            return buffer[request, row : row + height, col : col + width]
        return buffer[row : row + height, col : col + width]

    @T.macro
    def locate_within(tile, place, m_tiles):
        first = T.truncdiv(tile, panel * n_tiles) * panel
        height = T.min(panel, m_tiles - first)
        rest = T.truncmod(tile, panel * n_tiles)
        place[0] = (first + T.truncmod(rest, height)) * bm
        place[1] = T.truncdiv(rest, height) * bn

    @T.macro
    def locate(tile, place, m_tiles):
        place[2] = T.truncdiv(tile, m_tiles * n_tiles)
        locate_within(T.truncmod(tile, m_tiles * n_tiles), place, m_tiles)

    def columns_of(b_shared, slot, first, width):
        if width == bn:
            return b_shared[slot, :, :]
        return (
            b_shared[slot, first : first + width, :] if trans_b else b_shared[slot, :, first : first + width]
        )

    @T.macro
    def multiply(group, a_shared, b_shared, acc, slot, clear, first, width):
        if trans_a:
            T.wgmma_gemm(
                a_shared[slot, :, group * rows : (group + 1) * rows],
                columns_of(b_shared, slot, first, width),
                acc,
                transpose_A=True,
                transpose_B=trans_b,
                policy=T.GemmWarpPolicy.FullRow,
                clear_accum=clear,
            )
        else:
            T.wgmma_gemm(
                a_shared[slot, group * rows : (group + 1) * rows, :],
                columns_of(b_shared, slot, first, width),
                acc,
                transpose_B=trans_b,
                policy=T.GemmWarpPolicy.FullRow,
                clear_accum=clear,
            )

    @T.macro
    def give_back(tx, empty, slot):
        if tx % 32 == 0:
            T.barrier_arrive(empty[slot])

    @T.macro
    def sum_up(group, tx, acc, at: T.Ref, a_shared, b_shared, full, empty):
        T.barrier_wait(full[at % stages], at // stages % 2)
        multiply(group, a_shared, b_shared, acc, at % stages, True, 0, bn)
        for _ in T.serial(steps - 1):
            T.barrier_wait(full[(at + 1) % stages], (at + 1) // stages % 2)
            multiply(group, a_shared, b_shared, acc, (at + 1) % stages, False, 0, bn)
            T.wait_wgmma(1)
            give_back(tx, empty, at % stages)
            at = at + 1
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(acc, num_regs=rows * bn // GROUP)
        give_back(tx, empty, at % stages)
        at = at + 1

    @T.macro
    def store(group, acc, place, d_shared, d):
        # Two chunks of the result are on their way out at a time.
        for c in T.unroll(bn // chunk):
            T.tma_store_wait(1)
            T.copy(acc[0:rows, c * chunk : (c + 1) * chunk], d_shared[group, c % 2, :, :])
            T.fence_proxy_async()
            T.tma_copy(
                d_shared[group, c % 2, :, :],
                region(d, place[2], place[0] + group * rows, place[1] + c * chunk, rows, chunk),
            )

    @T.macro
    def fetch_walk(walk, block, rounds, where, a_shared, b_shared, full, empty, a, b, also, *context):
        locate_next, numbers, steps_of = walk
        place = T.alloc_local((numbers,), "int32")
        at = T.alloc_var("int32", init=0)
        for r in T.serial(rounds):
            locate_next(block + r * blocks, place, where)
            row, col, request = place[0], place[1], place[2]
            for step in T.serial(steps_of(place)):
                slot = at % stages
                also(r, step, place, *context)
                T.barrier_wait(empty[slot], (at // stages + 1) % 2)
                T.tma_copy(
                    region(a, request, step * bk, row, bk, bm)
                    if trans_a
                    else region(a, request, row, step * bk, bm, bk),
                    a_shared[slot, :, :],
                    barrier=full[slot],
                    leader_scope_threads=32,
                )
                T.tma_copy(
                    region(b, request, col, step * bk, bn, bk)
                    if trans_b
                    else region(b, request, step * bk, col, bk, bn),
                    b_shared[slot, :, :],
                    barrier=full[slot],
                    leader_scope_threads=32,
                )
                T.barrier_arrive(full[slot])
                at = at + 1

    @T.macro
    def fetch(*context):
        fetch_walk((locate, 3, lambda place: steps), *context)

    @T.macro
    def share_out(group, tx, compute, *context):
        # The first branch is a choice of program, around a branch of it.
        if group == groups - 1:  # noqa: SIM114
            compute(group, tx, *context)
        elif tx < (group + 1) * GROUP:
            compute(group, tx, *context)
        else:
            share_out(group + 1, tx, compute, *context)

    return SimpleNamespace(
        rows=rows,
        steps=steps,
        n_tiles=n_tiles,
        locate=locate,
        locate_within=locate_within,
        sum_up=sum_up,
        multiply=multiply,
        give_back=give_back,
        store=store,
        fetch=fetch,
        fetch_walk=fetch_walk,
        share_out=share_out,
    )
