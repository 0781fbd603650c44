"""Rotary position embedding: rotate pairs of elements of a head by an angle that grows with the position.

Angles are products of a position and a frequency, so a float32 product would be wrong by 2^-24 of its size:
6e-3 radians at position 100,000. Here the product is taken in float64 and in quarter turns, whole quarters
are dropped exactly, and only the remainder, at most an eighth of a turn, goes to the float32 sine and cosine:
both are right to 1e-7 for every position up to 2^31. A block computes the angles of its tokens once and uses
them for all heads.

Source: arXiv:2104.09864.
"""

import math
from dataclasses import dataclass

import tilelang.language as T

from tileops_kernels.kernels.base import ConfigTable, Kernel

__all__ = ["RopeKernel"]

_ACC = "float32"
_WIDE = "float64"


class RopeKernel(Kernel):
    """`out[t, h] = rotate(x[t, h], angle = position(t) * base^(-2i / rotary_dim))`; tokens are symbolic.

    The position of token t is `t % seq`, or `positions[t]` with `position_dtype`. Pairs are (i, i +
    rotary_dim / 2), or (2i, 2i + 1) if `interleaved`. Elements from `rotary_dim` on are copied.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16

    @dataclass(frozen=True)
    class Config:
        """`block_t` tokens and `block_h` heads of one block."""

        block_t: int
        block_h: int
        threads: int

    CONFIGS = ConfigTable(
        size=lambda s: s["heads"],
        devices={
            "cpu": ((1, Config(32, 1, 128)), (None, Config(4, 8, 128))),
            "sm_80": ((1, Config(16, 1, 128)), (8, Config(4, 8, 128)), (None, Config(2, 32, 128))),
        },
    )

    @staticmethod
    def program(*, heads, head_dim, rotary_dim, interleaved, position_dtype, base, dtype, config):
        tokens = T.dynamic("tokens")
        bt, bh = config.block_t, config.block_h
        half = rotary_dim // 2
        width = 1 << (half - 1).bit_length()
        first_stride, pair_stride = (2, 1) if interleaved else (1, half)
        octaves = -2.0 * math.log2(base) / rotary_dim
        quarters_per_radian = 2.0 / math.pi
        radians_per_quarter = math.pi / 2.0
        own_positions = position_dtype is not None

        @T.macro
        def rotate(x, out, position_of, bx, by):
            cos = T.alloc_shared((bt, width), _ACC)
            sin = T.alloc_shared((bt, width), _ACC)
            for t, i in T.Parallel(bt, width):
                if i < half and bx * bt + t < tokens:
                    frequency = T.exp2(T.cast(i, _WIDE) * T.float64(octaves)) * T.float64(quarters_per_radian)
                    quarters = T.cast(position_of(bx * bt + t), _WIDE) * frequency
                    whole = T.floor(quarters + T.float64(0.5))
                    angle = T.cast(quarters - whole, _ACC) * T.float32(radians_per_quarter)
                    quadrant = T.cast(whole, "int32") & 3
                    swapped = (quadrant & 1) == 1
                    cos[t, i] = T.if_then_else(swapped, T.sin(angle), T.cos(angle))
                    sin[t, i] = T.if_then_else(swapped, T.cos(angle), T.sin(angle))
                    if quadrant == 1 or quadrant == 2:
                        cos[t, i] = -cos[t, i]
                    if quadrant >= 2:
                        sin[t, i] = -sin[t, i]
            for t, h, i in T.Parallel(bt, bh, width):
                if i < half and bx * bt + t < tokens and by * bh + h < heads:
                    token, head = bx * bt + t, by * bh + h
                    a = T.cast(x[token, head, i * first_stride], _ACC)
                    b = T.cast(x[token, head, i * first_stride + pair_stride], _ACC)
                    out[token, head, i * first_stride] = T.cast(a * cos[t, i] - b * sin[t, i], dtype)
                    out[token, head, i * first_stride + pair_stride] = T.cast(
                        b * cos[t, i] + a * sin[t, i], dtype
                    )
            if rotary_dim < head_dim:
                T.copy(
                    x[bx * bt : (bx + 1) * bt, by * bh : (by + 1) * bh, rotary_dim:head_dim],
                    out[bx * bt : (bx + 1) * bt, by * bh : (by + 1) * bh, rotary_dim:head_dim],
                )

        if own_positions:

            @T.prim_func
            def rope_at(
                x: T.Tensor((tokens, heads, head_dim), dtype),
                positions: T.Tensor((tokens,), position_dtype),
                out: T.Tensor((tokens, heads, head_dim), dtype),
            ):
                with T.Kernel(T.ceildiv(tokens, bt), T.ceildiv(heads, bh), threads=config.threads) as (
                    bx,
                    by,
                ):
                    rotate(x, out, lambda token: positions[token], bx, by)

            return rope_at

        @T.prim_func
        def rope(
            x: T.Tensor((tokens, heads, head_dim), dtype),
            out: T.Tensor((tokens, heads, head_dim), dtype),
            seq: T.int32,
        ):
            with T.Kernel(T.ceildiv(tokens, bt), T.ceildiv(heads, bh), threads=config.threads) as (bx, by):
                rotate(x, out, lambda token: token % seq, bx, by)

        return rope

    @classmethod
    def samples(cls):
        neox = {"heads": 32, "head_dim": 128, "rotary_dim": 128, "interleaved": False, "base": 10000.0}
        neox = {**neox, "position_dtype": None, "dtype": "bfloat16"}
        return (
            neox,
            {**neox, "interleaved": True, "dtype": "float16"},
            {**neox, "heads": 1, "head_dim": 64, "rotary_dim": 64, "dtype": "float32"},
            {**neox, "position_dtype": "int64"},
            {
                **neox,
                "heads": 3,
                "head_dim": 26,
                "rotary_dim": 10,
                "position_dtype": "int32",
                "base": 500000.0,
            },
        )
