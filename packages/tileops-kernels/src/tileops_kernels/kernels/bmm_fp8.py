"""Products of two batches of 8-bit matrices, `d[i] = scale_a scale_b a[i] @ op(b[i])`.

* `BmmFp8Kernel` forms them in float16, as `gemm_fp8.py` does: for the CPU, for GPUs without 8-bit tensor
  cores and for rows that the copy engine cannot address. It reads b either way.
* `BmmFp8HopperKernel` is the schedule of `gemm_fp8_hopper.py` over a batch. 8-bit tensor cores read both
  operands along k alone, so that matrices stored `[k, n]` are turned first, by `TurnFp8Kernel`.

Source: arXiv:2209.05433.
"""

from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.gemm import tile_time
from tileops_kernels.kernels.gemm_fp8 import FP8, fp8_program
from tileops_kernels.kernels.gemm_fp8_hopper import (
    GemmFp8HopperConfig,
    GemmFp8HopperKernel,
    fp8_hopper_product,
)
from tileops_kernels.kernels.gemm_hopper_parts import HopperProductKernel, only

__all__ = ["BmmFp8HopperKernel", "BmmFp8Kernel", "TurnFp8Kernel"]

_ACC = "float32"
_WIDE = "float16"


class BmmFp8Kernel(Kernel):
    """`d[batch, m, n] = scale_a scale_b a @ op(b)`; batch and m are symbolic, n and k are static.

    `trans_b`: b is stored `[batch, n, k]`, else `[batch, k, n]`.
    """

    SUPPORTED_DTYPES = frozenset({FP8})
    ALIGNMENT = 16

    @dataclass(frozen=True)
    class Config:
        """`block_m`, `block_n`, `block_k`: tile of the output, and depth of one step."""

        block_m: int
        block_n: int
        block_k: int
        threads: int

    CONFIGS = ConfigTable(
        size=lambda s: s["n"],
        devices={
            "cpu": ((None, Config(64, 64, 128, 128)),),
            "sm_80": ((64, Config(64, 64, 64, 128)), (None, Config(128, 64, 128, 256))),
        },
    )

    @staticmethod
    def program(*, n, k, out_dtype, trans_b, config):
        m, batch = T.dynamic("m"), T.dynamic("batch")
        bm, bn, bk = config.block_m, config.block_n, config.block_k

        @T.macro
        def product(a, b, scale_a, scale_b, bias, d):
            with T.Kernel(T.ceildiv(m, bm), T.ceildiv(n, bn), batch, threads=config.threads) as (bx, by, bz):
                a_shared = T.alloc_shared((bm, bk), _WIDE)
                b_shared = T.alloc_shared((bn, bk) if trans_b else (bk, bn), _WIDE)
                d_shared = T.alloc_shared((bm, bn), out_dtype)
                total = T.alloc_fragment((bm, bn), _ACC)
                row0, col0 = bx * bm, by * bn
                T.clear(total)
                for step in T.serial(-(-k // bk)):
                    T.copy(a[bz, row0 : row0 + bm, step * bk : (step + 1) * bk], a_shared)
                    if trans_b:
                        T.copy(b[bz, col0 : col0 + bn, step * bk : (step + 1) * bk], b_shared)
                    else:
                        T.copy(b[bz, step * bk : (step + 1) * bk, col0 : col0 + bn], b_shared)
                    T.gemm(a_shared, b_shared, total, transpose_B=trans_b)
                for i, j in T.Parallel(bm, bn):
                    total[i, j] *= scale_a[0, 0] * scale_b[0, 0]
                T.copy(total, d_shared)
                T.copy(d_shared, d[bz, row0 : row0 + bm, col0 : col0 + bn])

        return fp8_program(
            "bmm_fp8", product, m=m, n=n, k=k, out_dtype=out_dtype, batch=batch, trans_b=trans_b
        )

    @classmethod
    def samples(cls):
        square = {"n": 1024, "k": 1024, "out_dtype": "bfloat16"}
        return (
            {**square, "trans_b": True},
            {**square, "trans_b": False},
            {"n": 53, "k": 77, "out_dtype": "float16", "trans_b": False},
        )


class BmmFp8HopperKernel(HopperProductKernel):
    """`d[batch, m, n] = scale_a scale_b a[batch, m, k] @ b[batch, n, k]^T`; batch and m are symbolic."""

    SUPPORTED_DTYPES = frozenset({FP8})
    Config = GemmFp8HopperConfig
    CONFIGS = only(next(iter(GemmFp8HopperKernel.TILES)))

    @classmethod
    def default_config(cls, *, target, arch, n, m=4096, batch=1, **sizes):
        """The tile with the least time for `batch` products of `m` rows (default: one of many)."""
        tiles = GemmFp8HopperKernel.TILES
        return min(tiles, key=lambda t: tile_time(m, n, batch, t.block_m, t.block_n, tiles[t], cls.UNITS))

    @classmethod
    def fits(cls, device, *, n, k):
        """True if the kernel is written for the device, and the copy engine can address every row."""
        return GemmFp8HopperKernel.fits(device, n=n, k=k, per_block=False)

    @staticmethod
    def program(*, n, k, out_dtype, config):
        m, batch = T.dynamic("m"), T.dynamic("batch")
        static = {"m": m, "n": n, "k": k, "out_dtype": out_dtype, "per_block": False, "batch": batch}
        return fp8_program("bmm_fp8_hopper", fp8_hopper_product(config=config, **static), **static)

    @classmethod
    def samples(cls):
        return (
            {"n": 2048, "k": 2048, "out_dtype": "bfloat16"},
            {"n": 128, "k": 128, "out_dtype": "float16"},
        )


class TurnFp8Kernel(Kernel):
    """`turned[i, n, k] = b[i, k, n]`, byte by byte; batch is symbolic, n and k are static."""

    SUPPORTED_DTYPES = frozenset({FP8})
    ALIGNMENT = 16

    @dataclass(frozen=True)
    class Config:
        """`block_k`, `block_n`: tile that a block turns."""

        block_k: int
        block_n: int
        threads: int

    CONFIGS = ConfigTable(
        size=lambda s: s["n"],
        devices={"cpu": ((None, Config(64, 64, 128)),), "sm_80": ((None, Config(128, 64, 256)),)},
    )

    @staticmethod
    def program(*, n, k, config):
        batch = T.dynamic("batch")
        bk, bn = config.block_k, config.block_n

        @T.prim_func
        def turn_fp8(b: T.Tensor((batch, k, n), FP8), turned: T.Tensor((batch, n, k), FP8)):
            with T.Kernel(T.ceildiv(k, bk), T.ceildiv(n, bn), batch, threads=config.threads) as (bx, by, bz):
                rows = T.alloc_shared((bk, bn), FP8)
                columns = T.alloc_shared((bn, bk), FP8)
                T.copy(b[bz, bx * bk : (bx + 1) * bk, by * bn : (by + 1) * bn], rows)
                for j, i in T.Parallel(bn, bk):
                    columns[j, i] = rows[i, j]
                T.copy(columns, turned[bz, by * bn : (by + 1) * bn, bx * bk : (bx + 1) * bk])

        return turn_fp8

    @classmethod
    def samples(cls):
        return ({"n": 2048, "k": 2048}, {"n": 144, "k": 208})
