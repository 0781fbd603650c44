"""Matrix products as Hopper runs them fastest: one warp loads, two warp groups compute, each its own rows.

The same function as `gemm.py`, whose tile program is the one that the CPU verifies. Here the schedule is
explicit:

* A warp of the last warp group fetches operand tiles with the copy engine into a ring of buffers; `full` and
  `empty` barriers pass the buffers to and fro. It runs ahead over the borders of tiles.
* A computing warp group owns half the rows of a tile and keeps one group of tensor-core instructions in
  flight. The two never wait for each other: while one writes, the other has the tensor cores to itself.
* A fixed number of blocks walks all tiles, in panels whose operands stay in L2.
"""

from dataclasses import dataclass
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.gemm import general_time, tile_time

__all__ = ["BmmHopperKernel", "GemmHopperKernel", "MatmulHopperConfig", "matmul_hopper_program"]

_ACC = "float32"
_GROUP = 128  # threads of a warp group
_GROUPS = 2  # that compute
_REGISTERS = (24, 240)  # of a thread that loads, and of one that computes


@dataclass(frozen=True)
class MatmulHopperConfig:
    """Schedule of one matrix product.

    Attributes:
        block_m, block_n, block_k: tile of the output, and depth of one buffer.
        num_stages: buffers.
        chunk: columns that a warp group writes at once; divides `block_n`.
        panel: rows of tiles that are walked together, column by column.
        blocks: blocks of the grid, each of which takes every `blocks`-th tile.
    """

    block_m: int
    block_n: int
    block_k: int
    num_stages: int
    chunk: int = 64
    panel: int = 8
    blocks: int = 132


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
    chunk, panel, blocks = config.chunk, config.panel, config.blocks
    rows = bm // _GROUPS
    steps = -(-k // bk)
    n_tiles = -(-n // bn)
    lead = (batch,) if batched else ()
    a_shape = (*lead, k, m) if trans_a else (*lead, m, k)
    b_shape = (*lead, n, k) if trans_b else (*lead, k, n)
    d_shape = (*lead, m, n)

    def region(buffer, request, row, col, height, width):
        if batched:
            return buffer[request, row : row + height, col : col + width]
        return buffer[row : row + height, col : col + width]

    @T.macro
    def locate(tile, place, m_tiles):
        """Set (row, column, batch) of a tile."""
        place[2] = T.truncdiv(tile, m_tiles * n_tiles)
        inner = T.truncmod(tile, m_tiles * n_tiles)
        first = T.truncdiv(inner, panel * n_tiles) * panel
        height = T.min(panel, m_tiles - first)
        rest = T.truncmod(inner, panel * n_tiles)
        place[0] = (first + T.truncmod(rest, height)) * bm
        place[1] = T.truncdiv(rest, height) * bn

    @T.macro
    def multiply(group, a_shared, b_shared, acc, slot, clear):
        if trans_a:
            T.wgmma_gemm(
                a_shared[slot, :, group * rows : (group + 1) * rows],
                b_shared[slot, :, :],
                acc,
                transpose_A=True,
                transpose_B=trans_b,
                policy=T.GemmWarpPolicy.FullRow,
                clear_accum=clear,
            )
        else:
            T.wgmma_gemm(
                a_shared[slot, group * rows : (group + 1) * rows, :],
                b_shared[slot, :, :],
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
    def compute(group, tx, block, rounds, m_tiles, a_shared, b_shared, d_shared, full, empty, d):
        acc = T.alloc_fragment((rows, bn), _ACC)
        place = T.alloc_local((3,), "int32")
        at = T.alloc_var("int32", init=0)
        T.set_max_nreg(_REGISTERS[1], 1)
        for r in T.serial(rounds):
            locate(block + r * blocks, place, m_tiles)
            T.barrier_wait(full[at % stages], at // stages % 2)
            multiply(group, a_shared, b_shared, acc, at % stages, True)
            for _ in T.serial(steps - 1):
                T.barrier_wait(full[(at + 1) % stages], (at + 1) // stages % 2)
                multiply(group, a_shared, b_shared, acc, (at + 1) % stages, False)
                T.wait_wgmma(1)
                give_back(tx, empty, at % stages)
                at = at + 1
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(acc, num_regs=rows * bn // _GROUP)
            give_back(tx, empty, at % stages)
            at = at + 1
            # Two chunks of the result are on their way out at a time.
            for c in T.unroll(bn // chunk):
                T.tma_store_wait(1)
                T.copy(acc[0:rows, c * chunk : (c + 1) * chunk], d_shared[group, c % 2, :, :])
                T.fence_proxy_async()
                T.tma_copy(
                    d_shared[group, c % 2, :, :],
                    region(d, place[2], place[0] + group * rows, place[1] + c * chunk, rows, chunk),
                )
        T.tma_store_wait(0)

    @T.macro
    def fetch(block, rounds, m_tiles, a_shared, b_shared, full, empty, a, b):
        place = T.alloc_local((3,), "int32")
        at = T.alloc_var("int32", init=0)
        for r in T.serial(rounds):
            locate(block + r * blocks, place, m_tiles)
            row, col, request = place[0], place[1], place[2]
            for step in T.serial(steps):
                slot = at % stages
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

    @T.prim_func
    def matmul_hopper(a: T.Tensor(a_shape, dtype), b: T.Tensor(b_shape, dtype), d: T.Tensor(d_shape, dtype)):
        with T.Kernel(blocks, threads=(_GROUPS + 1) * _GROUP) as (block,):
            a_shared = T.alloc_shared((stages, bk, bm) if trans_a else (stages, bm, bk), dtype)
            b_shared = T.alloc_shared((stages, bn, bk) if trans_b else (stages, bk, bn), dtype)
            d_shared = T.alloc_shared((_GROUPS, 2, rows, chunk), dtype)
            full = T.alloc_barrier([32] * stages)
            empty = T.alloc_barrier([4 * _GROUPS] * stages)
            tx = T.get_thread_binding()
            m_tiles = T.ceildiv(m, bm)
            tiles = m_tiles * n_tiles * batch if batched else m_tiles * n_tiles
            rounds = T.ceildiv(tiles - block, blocks)
            if tx >= _GROUPS * _GROUP:
                T.set_max_nreg(_REGISTERS[0], 0)
                if tx < _GROUPS * _GROUP + 32:
                    fetch(block, rounds, m_tiles, a_shared, b_shared, full, empty, a, b)
            elif tx < _GROUP:
                compute(0, tx, block, rounds, m_tiles, a_shared, b_shared, d_shared, full, empty, d)
            else:
                compute(1, tx, block, rounds, m_tiles, a_shared, b_shared, d_shared, full, empty, d)

    return matmul_hopper


class _MatmulHopperKernel(Kernel):
    """What the product of two matrices and of two stacks of them share."""

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16"})
    ALIGNMENT = 16
    ARCHS = frozenset({"sm_90a"})
    PASS_CONFIGS: ClassVar = {"tl.disable_warp_specialized": True}  # roles are explicit
    Config = MatmulHopperConfig
    UNITS = 132
    # A narrower tile wins where the last round of the widest would leave most blocks idle. The rates are
    # relative to the widest.
    TILES: ClassVar = {
        MatmulHopperConfig(128, 256, 64, 4): 1.0,
        MatmulHopperConfig(128, 192, 64, 4): 0.97,
        MatmulHopperConfig(128, 128, 64, 6): 0.87,
    }
    CONFIGS = ConfigTable(
        size=lambda s: s["n"], devices={"sm_90a": ((None, next(iter(TILES))),)}, everywhere=False
    )

    @classmethod
    def default_config(cls, *, target, arch, n, m=4096, batch=1, **sizes):
        """The tile with the least time for `m` rows (default: many) and a batch of `batch`."""
        return min(cls.TILES, key=lambda tile: cls.time(tile, m, n, batch))

    @classmethod
    def time(cls, tile, m, n, batch):
        """Return how long a product takes in one of `TILES`, in the unit of `tile_time`."""
        return tile_time(m, n, batch, tile.block_m, tile.block_n, cls.TILES[tile], cls.UNITS)

    @classmethod
    def beats(cls, general, device, *, m, n, k, dtype, batch=1):
        """True if this kernel can form a product, and sooner than the general one with config `general`."""
        if not cls.serves_device(device) or dtype not in cls.SUPPORTED_DTYPES or n % 8 or k % 8:
            return False
        least = min(cls.time(tile, m, n, batch) for tile in cls.TILES)
        return least <= general_time(general, m, n, batch, cls.UNITS)

    @classmethod
    def samples(cls):
        square = {"n": 4096, "k": 4096, "dtype": "bfloat16"}
        return tuple({**square, "trans_a": ta, "trans_b": tb} for ta in (False, True) for tb in (False, True))


class GemmHopperKernel(_MatmulHopperKernel):
    """`d[m, n] = op(a) @ op(b)`; m is symbolic, n and k are static."""

    @staticmethod
    def program(*, n, k, dtype, trans_a, trans_b, config):
        return matmul_hopper_program(
            n=n, k=k, dtype=dtype, trans_a=trans_a, trans_b=trans_b, batched=False, config=config
        )


class BmmHopperKernel(_MatmulHopperKernel):
    """`d[batch, m, n] = op(a) @ op(b)`; batch and m are symbolic, n and k are static."""

    @staticmethod
    def program(*, n, k, dtype, trans_a, trans_b, config):
        return matmul_hopper_program(
            n=n, k=k, dtype=dtype, trans_a=trans_a, trans_b=trans_b, batched=True, config=config
        )
