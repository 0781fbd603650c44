"""Matrix products as Hopper runs them fastest: one warp loads, warp groups compute, each its own rows.

The same function as `gemm.py`, whose tile program is the one that the CPU verifies. Here the schedule is
explicit:

* A warp of the last warp group fetches operand tiles with the copy engine into a ring of buffers; `full` and
  `empty` barriers pass the buffers to and fro. It runs ahead over the borders of tiles.
* A computing warp group owns its share of the rows of a tile and keeps one group of tensor-core instructions
  in flight. They never wait for each other: while one writes, the others have the tensor cores to themselves.
* A fixed number of blocks walks all tiles, in panels whose operands stay in L2.
"""

from functools import partial
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.gemm import general_time, tile_time
from tileops_kernels.kernels.gemm_hopper_parts import (
    ACC,
    GROUP,
    REGISTERS,
    HopperProductKernel,
    MatmulHopperConfig,
    matmul_parts,
    only,
)

__all__ = ["BmmHopperKernel", "GemmHopperKernel", "MatmulHopperConfig", "matmul_hopper_program"]


def matmul_hopper_program(*, n, k, dtype, trans_a, trans_b, batched, config):
    """Return the tile program of `d[m, n] = op(a)[m, k] @ op(b)[k, n]`; m (and the batch) are symbolic.

    Args:
        n, k: static sizes; rows of every tensor must be a multiple of 16 bytes long.
        dtype: of a, b and d; 16 bits.
        trans_a: a is stored `[k, m]`.
        trans_b: b is stored `[n, k]`.
        batched: a, b and d have a leading batch dim.
        config: a `MatmulHopperConfig`.
    """
    m = T.dynamic("m")
    batch = T.dynamic("batch")
    bm, bn, bk, stages = config.block_m, config.block_n, config.block_k, config.num_stages
    groups, blocks = config.groups, config.blocks
    parts = matmul_parts(n=n, k=k, trans_a=trans_a, trans_b=trans_b, config=config)
    rows, n_tiles, locate, sum_up = parts.rows, parts.n_tiles, parts.locate, parts.sum_up
    store, fetch, share_out = parts.store, parts.fetch, parts.share_out
    lead = (batch,) if batched else ()
    a_shape = (*lead, k, m) if trans_a else (*lead, m, k)
    b_shape = (*lead, n, k) if trans_b else (*lead, k, n)
    d_shape = (*lead, m, n)

    @T.macro
    def compute(group, tx, block, rounds, m_tiles, a_shared, b_shared, d_shared, full, empty, d):
        acc = T.alloc_fragment((rows, bn), ACC)
        place = T.alloc_local((3,), "int32")
        at = T.alloc_var("int32", init=0)
        T.set_max_nreg(REGISTERS[groups][1], 1)
        for r in T.serial(rounds):
            locate(block + r * blocks, place, m_tiles)
            sum_up(group, tx, acc, at, a_shared, b_shared, full, empty)
            store(group, acc, place, d_shared, d)
        T.tma_store_wait(0)

    @T.macro
    def nothing(r, step, place):
        pass

    @T.prim_func
    def matmul_hopper(a: T.Tensor(a_shape, dtype), b: T.Tensor(b_shape, dtype), d: T.Tensor(d_shape, dtype)):
        with T.Kernel(blocks, threads=(groups + 1) * GROUP) as (block,):
            a_shared = T.alloc_shared((stages, bk, bm) if trans_a else (stages, bm, bk), dtype)
            b_shared = T.alloc_shared((stages, bn, bk) if trans_b else (stages, bk, bn), dtype)
            d_shared = T.alloc_shared((groups, 2, rows, config.chunk), dtype)
            full = T.alloc_barrier([32] * stages)
            empty = T.alloc_barrier([4 * groups] * stages)
            tx = T.get_thread_binding()
            m_tiles = T.ceildiv(m, bm)
            tiles = m_tiles * n_tiles * batch if batched else m_tiles * n_tiles
            rounds = T.ceildiv(tiles - block, blocks)
            if tx >= groups * GROUP:
                T.set_max_nreg(REGISTERS[groups][0], 0)
                if tx < groups * GROUP + 32:
                    fetch(block, rounds, m_tiles, a_shared, b_shared, full, empty, a, b, nothing)
            else:
                share_out(
                    0, tx, compute, block, rounds, m_tiles, a_shared, b_shared, d_shared, full, empty, d
                )

    return matmul_hopper


class _MatmulHopperKernel(HopperProductKernel):
    """What the product of two matrices and of two stacks of them share."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    Config = MatmulHopperConfig
    # Another tile wins where the last round of the widest would leave most blocks idle. The rates are
    # relative to the widest.
    TILES: ClassVar = {
        MatmulHopperConfig(128, 256, 64, 4, panel=12): 1.0,
        MatmulHopperConfig(128, 192, 64, 4): 0.99,
        MatmulHopperConfig(192, 176, 64, 4, groups=3, chunk=16, panel=11): 0.99,
        MatmulHopperConfig(128, 128, 64, 6): 0.87,
        MatmulHopperConfig(64, 128, 64, 8, groups=1): 0.6,
    }
    CONFIGS = only(next(iter(TILES)))

    @classmethod
    def default_config(cls, *, target, arch, n, m=4096, batch=1, trans_b=True, **sizes):
        """The tile with the least time for `m` rows (default: many) and a batch of `batch`."""
        return min(cls._tiles(trans_b), key=lambda tile: cls.time(tile, m, n, batch))

    @classmethod
    def _tiles(cls, trans_b):
        """The tiles for b as it is stored: rows of `[k, n]` are fetched in pieces of 64 columns."""
        return [tile for tile in cls.TILES if trans_b or tile.block_n % 64 == 0]

    @classmethod
    def time(cls, tile, m, n, batch):
        """Return how long a product takes in one of `TILES`, in the unit of `tile_time`."""
        return tile_time(m, n, batch, tile.block_m, tile.block_n, cls.TILES[tile], cls.UNITS)

    @classmethod
    def beats(cls, general, device, *, m, n, k, dtype, trans_b, batch=1):
        """True if this kernel can form a product, and sooner than the general one with config `general`."""
        if not cls.serves_device(device) or dtype not in cls.SUPPORTED_DTYPES or n % 8 or k % 8:
            return False
        least = min(cls.time(tile, m, n, batch) for tile in cls._tiles(trans_b))
        return least <= general_time(general, m, n, batch, cls.UNITS)

    @classmethod
    def samples(cls):
        square = {"n": 4096, "k": 4096, "dtype": "bfloat16"}
        return (
            *({**square, "trans_a": ta, "trans_b": tb} for ta in (False, True) for tb in (False, True)),
            {**square, "n": 2112, "trans_a": False, "trans_b": True},
        )


class GemmHopperKernel(_MatmulHopperKernel):
    """`d[m, n] = op(a) @ op(b)`; m is symbolic, n and k are static."""

    program = staticmethod(partial(matmul_hopper_program, batched=False))


class BmmHopperKernel(_MatmulHopperKernel):
    """`d[batch, m, n] = op(a) @ op(b)`; batch and m are symbolic, n and k are static."""

    program = staticmethod(partial(matmul_hopper_program, batched=True))
