"""Product of 16-bit activations with 4-bit weights: the weights are unpacked in registers, never in memory.

`w[n, k] = (nibble - zero[n, g]) * scale[n, g]` with `g = k // group_size`. The tile is computed transposed:
weights are the left operand, out of registers, so that the few rows of activations lie where the tensor core
wants 8 columns. A step of the loop over k lies in one group where the group's size allows; the products are
then formed with whole numbers, exactly, and scaled as sums. Other sizes scale weight by weight and round to
float16, as the entry lets them.

A nibble becomes a float16 number without a conversion: 0x6400 | nibble are the bits of 1024 + nibble, and
1024 + zero is exact too.

Source: arXiv:2306.00978.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.gemm import pick_split

__all__ = ["GemmW4A16Kernel", "W4A16Config"]

_ACC = "float32"
_WIDE = "float16"
_BITS_OF_1024 = 0x6400
_PAD = 16  # bytes between rows of packed weights, so that 8 rows are read from different banks
_PIECE, _LEAST_PIECE = 128, 32  # weights along k that are multiplied at once


@dataclass(frozen=True)
class W4A16Config:
    """Schedule of one product.

    Attributes:
        block_m, block_n, block_k: rows of activations, rows of weights, and depth of one pipeline stage.
        threads: threads of a block.
        num_stages: depth of the copy pipeline.
        split_k: number of blocks that share the sum over k.
    """

    block_m: int
    block_n: int
    block_k: int
    threads: int
    num_stages: int
    split_k: int = 1


def _number(byte, odd):
    """1024 plus the low half of a byte, or plus the high one."""
    nibble = T.bitwise_and(
        T.shift_right(T.cast(byte, "uint16"), T.cast(odd * 4, "uint16")), T.cast(15, "uint16")
    )
    return T.reinterpret(T.bitwise_or(nibble, T.cast(_BITS_OF_1024, "uint16")), _WIDE)


def piece_of(group_size: int, block_k: int) -> int:
    """Return how many weights along k are multiplied at once as whole numbers, because they share a factor.

    0 where a step of `block_k` neither lies in one group nor consists of groups of a fair size.

    >>> piece_of(128, 512), piece_of(32, 512), piece_of(1024, 512), piece_of(42, 512), piece_of(384, 512)
    (128, 32, 128, 0, 0)
    """
    if group_size % block_k == 0:
        return min(block_k, _PIECE)
    if block_k % group_size == 0 and group_size >= _LEAST_PIECE:
        return min(group_size, _PIECE)
    return 0


class GemmW4A16Kernel(Kernel):
    """`d[m, n] = x[m, k] @ w[n, k]^T`; m is symbolic, n, k and the size of a group are static.

    With `split_k > 1` the program writes `[split_k, m, n]` float32 partial sums.
    """

    SUPPORTED_DTYPES = frozenset({"float16"})
    ALIGNMENT = 16
    # A warp group that only fetched would take the place of one that unpacks.
    PASS_CONFIGS: ClassVar = {"tl.disable_warp_specialized": True}
    Config = W4A16Config
    CONFIGS = ConfigTable(
        size=lambda s: s.get("m", 1),
        devices={
            "cpu": ((None, W4A16Config(16, 64, 128, 128, 0)),),
            "sm_80": ((16, W4A16Config(16, 64, 256, 128, 3)), (None, W4A16Config(64, 64, 128, 128, 2))),
            "sm_90a": (
                (8, W4A16Config(8, 64, 512, 128, 2)),
                (16, W4A16Config(16, 64, 512, 128, 2)),
                (None, W4A16Config(64, 64, 128, 128, 3)),
            ),
        },
    )

    # Blocks that run at the same time.
    _SLOTS: ClassVar = {"sm_80": 2 * 108, "sm_90a": 4 * 132}

    @classmethod
    def default_config(cls, *, target, arch, n, k, m=1, **sizes):
        """The table's tile for `m` rows (default: one), with `split_k` set so that the GPU is full."""
        config = cls.CONFIGS.pick(target, arch, {"m": m})
        if target == "cpu":
            return config
        tiles = -(-n // config.block_n) * -(-m // config.block_m)
        slots = cls._SLOTS["sm_90a" if arch == "sm_90a" else "sm_80"]
        return dataclasses.replace(config, split_k=pick_split(tiles, -(-k // config.block_k), slots))

    @staticmethod
    def program(*, n, k, group_size, config):
        m = T.dynamic("m")
        bm, bn, bk, split = config.block_m, config.block_n, config.block_k, config.split_k
        groups = k // group_size
        shared = piece_of(group_size, bk)
        piece = shared or min(bk, _PIECE)
        factors = max(bk // group_size, 1)  # of a step; they come with its weights
        steps = -(-k // bk)
        depth = -(-steps // split)
        d_shape = (split, m, n) if split > 1 else (m, n)
        d_dtype = _ACC if split > 1 else _WIDE

        @T.macro
        def whole_numbers(packed, scale, zero, x, weights, offset, part, total):
            for p in T.unroll(bk // piece):
                group = p * piece // group_size
                for i in T.Parallel(bn):
                    offset[i] = T.cast(zero[i, group], _WIDE) + T.cast(1024, _WIDE)
                for i, j in T.Parallel(bn, piece):
                    weights[i, j] = _number(packed[i, (p * piece + j) // 2], j % 2) - offset[i]
                T.gemm(weights, x[:, p * piece : (p + 1) * piece], part, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(bn, bm):
                    total[i, j] += part[i, j] * scale[i, group]

        @T.macro
        def scaled(packed, scale, zero, x, weights, col0, at, total):
            for p in T.unroll(bk // piece):
                for i, j in T.Parallel(bn, piece):
                    row, group = T.min(col0 + i, n - 1), T.min((at + p * piece + j) // group_size, groups - 1)
                    offset = T.cast(zero[row, group], _WIDE) + T.cast(1024, _WIDE)
                    number = T.cast(_number(packed[i, (p * piece + j) // 2], j % 2) - offset, _ACC)
                    weights[i, j] = T.cast(number * scale[row, group], _WIDE)
                T.gemm(weights, x[:, p * piece : (p + 1) * piece], total, transpose_B=True)

        @T.prim_func
        def gemm_w4a16(
            x: T.Tensor((m, k), _WIDE),
            packed: T.Tensor((n, k // 2), "uint8"),
            scale: T.Tensor((n, groups), _ACC),
            zero: T.Tensor((n, groups), "uint8"),
            d: T.Tensor(d_shape, d_dtype),
        ):
            with T.Kernel(T.ceildiv(n, bn), T.ceildiv(m, bm), split, threads=config.threads) as (bx, by, bz):
                x_shared = T.alloc_shared((bm, bk), _WIDE)
                packed_shared = T.alloc_shared((bn, bk // 2 + _PAD), "uint8")
                scale_shared = T.alloc_shared((bn, factors), _ACC)
                zero_shared = T.alloc_shared((bn, factors), "uint8")
                d_shared = T.alloc_shared((bm, bn), d_dtype)
                weights = T.alloc_fragment((bn, piece), _WIDE)
                offset = T.alloc_fragment((bn,), _WIDE)
                part = T.alloc_fragment((bn, bm), _ACC)
                total = T.alloc_fragment((bn, bm), _ACC)
                col0, row0 = bx * bn, by * bm

                T.clear(total)
                for step in T.Pipelined(depth, num_stages=config.num_stages):
                    at = (bz * depth + step) * bk
                    T.copy(x[row0 : row0 + bm, at : at + bk], x_shared)
                    T.copy(packed[col0 : col0 + bn, at // 2 : (at + bk) // 2], packed_shared[:, 0 : bk // 2])
                    if shared:
                        first = at // group_size
                        T.copy(scale[col0 : col0 + bn, first : first + factors], scale_shared)
                        T.copy(zero[col0 : col0 + bn, first : first + factors], zero_shared)
                        whole_numbers(
                            packed_shared, scale_shared, zero_shared, x_shared, weights, offset, part, total
                        )
                    else:
                        scaled(packed_shared, scale, zero, x_shared, weights, col0, at, total)
                for i, j in T.Parallel(bn, bm):
                    d_shared[j, i] = total[i, j]
                if split > 1:
                    T.copy(d_shared, d[bz, row0 : row0 + bm, col0 : col0 + bn])
                else:
                    T.copy(d_shared, d[row0 : row0 + bm, col0 : col0 + bn])

        return gemm_w4a16

    @classmethod
    def samples(cls):
        return (
            {"n": 8192, "k": 8192, "group_size": 128},
            {"n": 131, "k": 210, "group_size": 42},
            {"n": 7168, "k": 20480, "group_size": 64},
        )
