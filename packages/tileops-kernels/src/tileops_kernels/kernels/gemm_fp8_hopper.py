"""8-bit products as Hopper runs them fastest: 8-bit tensor cores, the schedule of `gemm_hopper.py`.

The same function as `gemm_fp8.py`, whose tile program is the one that the CPU verifies.

Hopper adds 8-bit products with some 14 bits. So a warp group multiplies one block of 128 columns at a time
and adds what it gives to a float32 sum, where the factors of the block come in too. Factors are fetched for
four blocks at once, into buffers of their own.

Source: arXiv:2412.19437, section 3.3.
"""

from dataclasses import dataclass
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.gemm import tile_time
from tileops_kernels.kernels.gemm_fp8 import BLOCK, FP8, SAMPLES, fp8_program
from tileops_kernels.kernels.gemm_hopper_parts import (
    ACC,
    GROUP,
    REGISTERS,
    HopperProductKernel,
    MatmulHopperConfig,
    matmul_parts,
    only,
)

__all__ = ["GemmFp8HopperConfig", "GemmFp8HopperKernel", "fp8_hopper_product"]

_SLAB = 4  # blocks of columns whose factors are fetched at once: 16 bytes, the least that can be
_SLABS = 2  # buffers for factors


@dataclass(frozen=True)
class GemmFp8HopperConfig(MatmulHopperConfig):
    """Schedule of one 8-bit product; `block_k` is 128.

    Attributes:
        width: columns of a tile that are multiplied at once; divides `block_n`. A thread has registers for
            the sums of a tile and for the products of one width.
    """

    width: int = 128


def fp8_hopper_product(*, m, n, k, out_dtype, per_block, config, biased=False, batch=None):
    """Return the macro `product(a, b, scale_a, scale_b, bias, d)` that `fp8_program` makes a program of."""
    bm, bn, bk, stages = config.block_m, config.block_n, config.block_k, config.num_stages
    groups, blocks, width = config.groups, config.blocks, config.width
    parts = matmul_parts(n=n, k=k, trans_a=False, trans_b=True, config=config)
    rows, steps, n_tiles = parts.rows, parts.steps, parts.n_tiles
    locate, multiply, give_back = parts.locate, parts.multiply, parts.give_back
    store, fetch, share_out = parts.store, parts.fetch, parts.share_out
    slabs = -(-steps // _SLAB)

    @T.macro
    def scale_up(group, total, part, first, slab, place, step, a_factors, b_factors):
        for i, j in T.Parallel(rows, width):
            total[i, first + j] += (
                part[i, j]
                * a_factors[slab, group * rows + i, step % _SLAB]
                * b_factors[slab, first + j, step % _SLAB]
            )

    @T.macro
    def finish(total, place, scale_a, scale_b, bias):
        if not per_block:
            for i, j in T.Parallel(rows, bn):
                total[i, j] *= scale_a[0, 0] * scale_b[0, 0]
        if biased:
            for i, j in T.Parallel(rows, bn):
                total[i, j] += T.cast(bias[T.min(place[1] + j, n - 1)], ACC)

    @T.macro
    def compute(group, tx, block, rounds, m_tiles, buffers, barriers, factors, bias, d):
        a_shared, b_shared, d_shared, a_factors, b_factors = buffers
        full, empty, factors_full, factors_empty = barriers
        scale_a, scale_b = factors
        total = T.alloc_fragment((rows, bn), ACC)
        part = T.alloc_fragment((rows, width), ACC)
        place = T.alloc_local((3,), "int32")
        at = T.alloc_var("int32", init=0)
        T.set_max_nreg(REGISTERS[groups][1], 1)
        for r in T.serial(rounds):
            locate(block + r * blocks, place, m_tiles)
            T.clear(total)
            for step in T.serial(steps):
                slot = at % stages
                slab = r * slabs + step // _SLAB
                if per_block:  # noqa: SIM102 (a choice of program, around a branch of it)
                    if step % _SLAB == 0:
                        T.barrier_wait(factors_full[slab % _SLABS], slab // _SLABS % 2)
                T.barrier_wait(full[slot], at // stages % 2)
                for w in T.unroll(bn // width):
                    multiply(group, a_shared, b_shared, part, slot, True, w * width, width)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(part, num_regs=rows * width // GROUP)
                    if w == bn // width - 1:
                        give_back(tx, empty, slot)
                    if per_block:
                        scale_up(
                            group,
                            total,
                            part,
                            w * width,
                            slab % _SLABS,
                            place,
                            step,
                            a_factors,
                            b_factors,
                        )
                    else:
                        for i, j in T.Parallel(rows, width):
                            total[i, w * width + j] += part[i, j]
                if per_block:  # noqa: SIM102
                    if T.Or(step % _SLAB == _SLAB - 1, step == steps - 1):
                        give_back(tx, factors_empty, slab % _SLABS)
                at = at + 1
            finish(total, place, scale_a, scale_b, bias)
            store(group, total, place, d_shared, d)
        T.tma_store_wait(0)

    @T.macro
    def fetch_factors(r, step, place, a_factors, b_factors, full, empty, scale_a, scale_b):
        if per_block:  # noqa: SIM102
            if step % _SLAB == 0:
                slab = r * slabs + step // _SLAB
                T.barrier_wait(empty[slab % _SLABS], (slab // _SLABS + 1) % 2)
                T.tma_copy(
                    scale_a[place[0] : place[0] + bm, step : step + _SLAB],
                    a_factors[slab % _SLABS, :, :],
                    barrier=full[slab % _SLABS],
                    leader_scope_threads=32,
                )
                T.tma_copy(
                    scale_b[place[1] : place[1] + bn, step : step + _SLAB],
                    b_factors[slab % _SLABS, :, :],
                    barrier=full[slab % _SLABS],
                    leader_scope_threads=32,
                )
                T.barrier_arrive(full[slab % _SLABS])

    @T.macro
    def product(a, b, scale_a, scale_b, bias, d):
        with T.Kernel(blocks, threads=(groups + 1) * GROUP) as (block,):
            a_shared = T.alloc_shared((stages, bm, bk), FP8)
            b_shared = T.alloc_shared((stages, bn, bk), FP8)
            d_shared = T.alloc_shared((groups, 2, rows, config.chunk), out_dtype)
            a_factors = T.alloc_shared((_SLABS, bm, _SLAB), ACC)
            b_factors = T.alloc_shared((_SLABS, bn, _SLAB), ACC)
            full = T.alloc_barrier([32] * stages)
            empty = T.alloc_barrier([4 * groups] * stages)
            factors_full = T.alloc_barrier([32] * _SLABS)
            factors_empty = T.alloc_barrier([4 * groups] * _SLABS)
            T.annotate_layout(
                {
                    f: T.Layout(f.shape, lambda s, i, j, f=f: (s * f.shape[1] + i) * _SLAB + j)
                    for f in (a_factors, b_factors)
                }
            )
            tx = T.get_thread_binding()
            m_tiles = T.ceildiv(m, bm)
            tiles = m_tiles * n_tiles if batch is None else m_tiles * n_tiles * batch
            rounds = T.ceildiv(tiles - block, blocks)
            buffers = (a_shared, b_shared, d_shared, a_factors, b_factors)
            barriers = (full, empty, factors_full, factors_empty)
            context = (a_factors, b_factors, factors_full, factors_empty, scale_a, scale_b)

            if tx >= groups * GROUP:
                T.set_max_nreg(REGISTERS[groups][0], 0)
                if tx < groups * GROUP + 32:
                    fetch(
                        block,
                        rounds,
                        m_tiles,
                        a_shared,
                        b_shared,
                        full,
                        empty,
                        a,
                        b,
                        fetch_factors,
                        *context,
                    )
            else:
                share_out(
                    0, tx, compute, block, rounds, m_tiles, buffers, barriers, (scale_a, scale_b), bias, d
                )

    return product


class GemmFp8HopperKernel(HopperProductKernel):
    """`d[m, n] = (scale_a a)[m, k] @ (scale_b b)[n, k]^T + bias[n]`; m is symbolic, n and k are static."""

    SUPPORTED_DTYPES = frozenset({FP8})
    Config = GemmFp8HopperConfig
    # How fast tiles are computed, next to the first.
    TILES: ClassVar = {
        GemmFp8HopperConfig(128, 256, BLOCK, 4, panel=16): 1.0,
        GemmFp8HopperConfig(128, 192, BLOCK, 4, width=192): 1.05,
        GemmFp8HopperConfig(128, 64, BLOCK, 8, width=64): 0.5,
        GemmFp8HopperConfig(64, 64, BLOCK, 10, groups=1, width=64): 0.3,
        GemmFp8HopperConfig(64, 32, BLOCK, 12, groups=1, chunk=32, width=32): 0.2,
    }
    # With factors per block there is room for fewer buffers.
    BLOCK_TILES: ClassVar = {
        GemmFp8HopperConfig(128, 256, BLOCK, 3): 1.0,
        GemmFp8HopperConfig(128, 192, BLOCK, 4, width=192): 1.0,
        GemmFp8HopperConfig(128, 64, BLOCK, 7, width=64): 0.5,
        GemmFp8HopperConfig(64, 64, BLOCK, 10, groups=1, width=64): 0.3,
        GemmFp8HopperConfig(64, 32, BLOCK, 12, groups=1, chunk=32, width=32): 0.2,
    }
    CONFIGS = only(next(iter(TILES)))

    @classmethod
    def default_config(cls, *, target, arch, n, per_block, m=4096, **sizes):
        """The tile with the least time for `m` rows (default: many)."""
        tiles = cls.BLOCK_TILES if per_block else cls.TILES
        return min(tiles, key=lambda t: tile_time(m, n, 1, t.block_m, t.block_n, tiles[t], cls.UNITS))

    @classmethod
    def fits(cls, device, *, n, k, per_block):
        """True if the kernel is written for the device, and the copy engine can address every row."""
        blocks = -(-k // BLOCK)
        rows_fit = n % 8 == 0 and k % 16 == 0 and k > 0 and not (per_block and blocks % _SLAB)
        return rows_fit and cls.serves_device(device)

    @staticmethod
    def program(*, config, **static):
        m = T.dynamic("m")
        return fp8_program("gemm_fp8_hopper", fp8_hopper_product(m=m, config=config, **static), m=m, **static)

    @classmethod
    def samples(cls):
        return (
            *SAMPLES,
            {**SAMPLES[1], "n": 2112, "out_dtype": "float16", "biased": True},
        )
