"""Rotary position embedding: rotate pairs of elements of a head by an angle that grows with the position.

Angles are products of a position and a frequency, so a float32 product would be wrong by 2^-24 of its size:
6e-3 radians at position 100,000. Here the product is taken in float64 and in quarter turns, whole quarters
are dropped exactly, and only the remainder, at most an eighth of a turn, goes to a float32 sine and cosine:
both are right to 1e-7 for every position up to 2^31. A block computes the angles of its tokens once and uses
them for all heads; what it rotates is on its way from memory meanwhile.

Frequencies are computed from a base, or read from a table that the host has made by one of the rules that
stretch a model's context.

Source: arXiv:2104.09864.
"""

import math
from dataclasses import dataclass

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.elementwise_expressions import select
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS

__all__ = ["RopeKernel", "pair_dtype", "sine"]

_ACC = "float32"
_WIDE = "float64"
# Half a pair, and a pair, as unsigned integers.
_HALF = {2: "uint16", 4: "uint32"}
_PAIR = {2: "uint32", 4: "uint64"}
_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

# Taylor series of sine and cosine, rounded for float32 on [-pi/4, pi/4] (Cephes, sinf.c).
_SIN = (-1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
_COS = (4.166664568298827e-2, -1.388731625493765e-3, 2.443315711809948e-5)


def pair_dtype(dtype: str) -> str:
    """Return the integer that holds two neighbouring elements.

    >>> pair_dtype("bfloat16"), pair_dtype("float32")
    ('uint32', 'uint64')
    """
    return _PAIR[_BYTES[dtype]]


def _polynomial(z, coefficients):
    value = T.float32(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * z + T.float32(coefficient)
    return value


def sine(angle, quarters):
    """sin(angle + quarters * pi / 2), the angle at most an eighth of a turn."""
    z = angle * angle
    sine = angle + angle * z * _polynomial(z, _SIN)
    cosine = T.float32(1) - T.float32(0.5) * z + z * z * _polynomial(z, _COS)
    value = select((quarters & 1) == 1, cosine, sine)
    return select((quarters & 2) == 2, -value, value)


def stretched(value, stretch):
    """The value by a factor, if there is one."""
    return value if stretch is None else value * stretch


class RopeKernel(Kernel):
    """`out[t, h] = stretch * rotate(x[t, h], angle = position(t) * frequency(i))`; tokens are symbolic.

    The position of token t is `t % seq`, or `positions[t]` with `position_dtype`. The frequency of pair i is
    `base^(-2i / rotary_dim)`, or an entry of a table, which may be divided by another one. Pairs are (i, i +
    rotary_dim / 2), or (2i, 2i + 1) if `interleaved`. Elements from `rotary_dim` on are copied.

    Program arguments: x, (positions,) (frequencies, float64, in quarter turns per position, (divisors,
    float32,)) output, (seq,) (stretch). Tensors are (tokens, elements of a token), tables (rotary_dim / 2);
    an interleaved program takes whole pairs as elements, of `pair_dtype`.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16
    PASS_CONFIGS = PASS_CONFIGS

    @dataclass(frozen=True)
    class Config:
        """A block is `block_t` tokens of as many heads as give each of its `threads` one vector of pairs."""

        block_t: int
        threads: int

    # By vectors of pairs of a token.
    CONFIGS = ConfigTable(
        size=lambda s: s["heads"] * (s["rotary_dim"] // 2) // s["vec"],
        devices={
            "cpu": ((16, Config(8, 64)), (None, Config(2, 128))),
            "sm_80": (
                (8, Config(16, 128)),
                (16, Config(8, 128)),
                (32, Config(4, 128)),
                (64, Config(2, 128)),
                (256, Config(1, 256)),
                (None, Config(1, 512)),
            ),
        },
    )

    @staticmethod
    def program(
        *, heads, head_dim, rotary_dim, interleaved, position_dtype, base, dtype, vec, config, divided=False
    ):
        """Return the tile program.

        Args:
            heads: heads of a token.
            head_dim: elements of a head.
            rotary_dim: elements that are rotated.
            interleaved: pairs are neighbours.
            position_dtype: dtype of the tokens' own positions, or None.
            base: of the frequencies, or None: they are a table, and so are the positions 0, 1, ... of a
            sequence. dtype: dtype of x and output. vec: pairs that a thread rotates; divides `rotary_dim /
            2` and the elements (or pairs) of a head. config: block geometry. divided: the table is divided
            by another one.
        """
        tokens = T.dynamic("tokens")
        bt, threads = config.block_t, config.threads
        half = rotary_dim // 2
        per_half = half // vec
        rotated = bt * heads * per_half
        # In vectors of stored elements: a head, what of it is rotated, and where a second half begins.
        stored = pair_dtype(dtype) if interleaved else dtype
        pitch = head_dim // (2 if interleaved else 1) // vec
        reach = per_half if interleaved else 2 * per_half
        copied = bt * heads * (pitch - reach)
        angles = bt * half
        octaves = None if base is None else -2.0 * math.log2(base) / rotary_dim
        quarters_per_radian = 2.0 / math.pi
        radians_per_quarter = math.pi / 2.0
        blocks_y = -(-rotated // threads)
        single, bits = _HALF[_BYTES[dtype]], 8 * _BYTES[dtype]

        def first_of(pair):
            return T.cast(T.reinterpret(T.cast(pair, single), dtype), _ACC)

        def second_of(pair):
            return first_of(T.shift_right(pair, tirx.const(bits, stored)))

        def as_bits(value):
            return T.cast(T.reinterpret(T.cast(value, dtype), single), stored)

        def paired(a, b):
            return T.bitwise_or(as_bits(a), T.shift_left(as_bits(b), tirx.const(bits, stored)))

        def plain(pair):
            return T.exp2(T.cast(pair, _WIDE) * T.float64(octaves)) * T.float64(quarters_per_radian)

        @T.macro
        def fill_tables(sines, cosines, position_of, frequency_of, stretch, first):
            # Fragments: an expression that is used twice would be spelled, and on a CPU computed, twice.
            quarters = T.alloc_fragment((threads,), _WIDE)
            whole = T.alloc_fragment((threads,), _WIDE)
            rest = T.alloc_fragment((threads,), _ACC)
            for step in T.unroll(-(-angles // threads)):
                for t in T.Parallel(threads):
                    if tirx.all(step * threads + t < angles, first + (step * threads + t) // half < tokens):
                        quarters[t] = T.cast(
                            position_of(first + (step * threads + t) // half), _WIDE
                        ) * frequency_of((step * threads + t) % half)
                    else:
                        quarters[t] = T.float64(0)
                for t in T.Parallel(threads):
                    whole[t] = T.floor(quarters[t] + T.float64(0.5))
                for t in T.Parallel(threads):
                    rest[t] = T.cast(quarters[t] - whole[t], _ACC) * T.float32(radians_per_quarter)
                for t in T.Parallel(threads):
                    if step * threads + t < angles:
                        sines[step * threads + t] = stretched(
                            sine(rest[t], T.cast(whole[t], "int32")), stretch
                        )
                        cosines[step * threads + t] = stretched(
                            sine(rest[t], T.cast(whole[t], "int32") + 1), stretch
                        )

        @T.macro
        def rotate(x, out, position_of, frequency_of, stretch, bx, by):
            token = T.alloc_fragment((threads,), "int32")
            place = T.alloc_fragment((threads,), "int32")
            angle = T.alloc_fragment((threads,), "int32")
            sines = T.alloc_shared((angles,), _ACC)
            cosines = T.alloc_shared((angles,), _ACC)
            a = T.alloc_fragment((threads, vec), stored)
            result = T.alloc_fragment((threads, vec), stored if interleaved else _ACC)
            for t in T.Parallel(threads):
                token[t] = (by * threads + t) // (heads * per_half)
                place[t] = (by * threads + t) // per_half % heads * pitch + (by * threads + t) % per_half
                angle[t] = token[t] * per_half + (by * threads + t) % per_half
                if by * threads + t >= rotated:
                    token[t] = tokens
                    angle[t] = 0
                token[t] += bx * bt

            for t, v in T.Parallel(threads, vec):
                if token[t] < tokens:
                    a[t, v] = x[token[t], place[t] * vec + v]
            if interleaved:
                fill_tables(sines, cosines, position_of, frequency_of, stretch, bx * bt)
                for t, v in T.Parallel(threads, vec):
                    result[t, v] = paired(
                        first_of(a[t, v]) * cosines[angle[t] * vec + v]
                        - second_of(a[t, v]) * sines[angle[t] * vec + v],
                        second_of(a[t, v]) * cosines[angle[t] * vec + v]
                        + first_of(a[t, v]) * sines[angle[t] * vec + v],
                    )
                for t, v in T.Parallel(threads, vec):
                    if token[t] < tokens:
                        out[token[t], place[t] * vec + v] = result[t, v]
            else:
                b = T.alloc_fragment((threads, vec), dtype)
                second = T.alloc_fragment((threads, vec), _ACC)
                for t, v in T.Parallel(threads, vec):
                    if token[t] < tokens:
                        b[t, v] = x[token[t], (place[t] + per_half) * vec + v]
                fill_tables(sines, cosines, position_of, frequency_of, stretch, bx * bt)
                for t, v in T.Parallel(threads, vec):
                    result[t, v] = (
                        T.cast(a[t, v], _ACC) * cosines[angle[t] * vec + v]
                        - T.cast(b[t, v], _ACC) * sines[angle[t] * vec + v]
                    )
                for t, v in T.Parallel(threads, vec):
                    second[t, v] = (
                        T.cast(b[t, v], _ACC) * cosines[angle[t] * vec + v]
                        + T.cast(a[t, v], _ACC) * sines[angle[t] * vec + v]
                    )
                for t, v in T.Parallel(threads, vec):
                    if token[t] < tokens:
                        out[token[t], place[t] * vec + v] = T.cast(result[t, v], dtype)
                for t, v in T.Parallel(threads, vec):
                    if token[t] < tokens:
                        out[token[t], (place[t] + per_half) * vec + v] = T.cast(second[t, v], dtype)

            if copied:
                for step in T.serial(-(-copied // (threads * blocks_y))):
                    for t in T.Parallel(threads):
                        at = (step * blocks_y + by) * threads + t
                        token[t] = bx * bt + at // (heads * (pitch - reach))
                        place[t] = at // (pitch - reach) % heads * pitch + reach + at % (pitch - reach)
                        if at >= copied:
                            token[t] = tokens
                    for t, v in T.Parallel(threads, vec):
                        if token[t] < tokens:
                            out[token[t], place[t] * vec + v] = x[token[t], place[t] * vec + v]

        width = heads * pitch * vec

        if position_dtype is not None:

            @T.prim_func
            def rope_at(
                x: T.Tensor((tokens, width), stored),
                positions: T.Tensor((tokens,), position_dtype),
                out: T.Tensor((tokens, width), stored),
            ):
                with T.Kernel(T.ceildiv(tokens, bt), blocks_y, threads=threads) as (bx, by):
                    rotate(x, out, lambda token: positions[token], plain, None, bx, by)

            return rope_at

        if divided:

            @T.prim_func
            def rope_by_divided_table(
                x: T.Tensor((tokens, width), stored),
                frequencies: T.Tensor((half,), _WIDE),
                divisors: T.Tensor((half,), _ACC),
                out: T.Tensor((tokens, width), stored),
                seq: T.int32,
                stretch: T.float32,
            ):
                with T.Kernel(T.ceildiv(tokens, bt), blocks_y, threads=threads) as (bx, by):
                    rotate(
                        x,
                        out,
                        lambda token: T.truncmod(token, seq),
                        lambda pair: frequencies[pair] / T.cast(divisors[pair], _WIDE),
                        stretch,
                        bx,
                        by,
                    )

            return rope_by_divided_table

        if base is None:

            @T.prim_func
            def rope_by_table(
                x: T.Tensor((tokens, width), stored),
                frequencies: T.Tensor((half,), _WIDE),
                out: T.Tensor((tokens, width), stored),
                seq: T.int32,
                stretch: T.float32,
            ):
                with T.Kernel(T.ceildiv(tokens, bt), blocks_y, threads=threads) as (bx, by):
                    rotate(
                        x,
                        out,
                        lambda token: T.truncmod(token, seq),
                        lambda pair: frequencies[pair],
                        stretch,
                        bx,
                        by,
                    )

            return rope_by_table

        @T.prim_func
        def rope(x: T.Tensor((tokens, width), stored), out: T.Tensor((tokens, width), stored), seq: T.int32):
            with T.Kernel(T.ceildiv(tokens, bt), blocks_y, threads=threads) as (bx, by):
                rotate(x, out, lambda token: T.truncmod(token, seq), plain, None, bx, by)

        return rope

    @classmethod
    def samples(cls):
        neox = {"heads": 32, "head_dim": 128, "rotary_dim": 128, "interleaved": False, "base": 10000.0}
        neox = {**neox, "position_dtype": None, "dtype": "bfloat16", "vec": 8}
        return (
            neox,
            {**neox, "interleaved": True, "dtype": "float16", "vec": 4},
            {**neox, "interleaved": True, "dtype": "float32", "vec": 2},
            {**neox, "heads": 1, "head_dim": 64, "rotary_dim": 64, "dtype": "float32", "vec": 4},
            {**neox, "position_dtype": "int64"},
            {**neox, "base": None},
            {**neox, "base": None, "divided": True},
            {
                **neox,
                "heads": 3,
                "head_dim": 26,
                "rotary_dim": 10,
                "position_dtype": "int32",
                "base": 500000.0,
                "vec": 1,
            },
        )
