"""Rotary position embedding: rotate pairs of elements of a head by an angle that grows with the position.

Angles are products of a position and a frequency, so a float32 product would be wrong by 2^-24 of its size:
6e-3 radians at position 100,000. Here the product is taken in float64 and in quarter turns, whole quarters
are dropped exactly, and only the remainder, at most an eighth of a turn, goes to a float32 sine and cosine:
both are right to 1e-7 for every position up to 2^31. A block computes the angles of its tokens once and uses
them for all heads; of one head, every thread has angles of its own. What a block rotates is on its way from
memory meanwhile.

Frequencies are read from a table that the host has made, from a base alone or by one of the rules that
stretch a model's context: one program serves all of them.

Source: arXiv:2104.09864.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import ConfigTable, Kernel
from tileops_kernels.kernels.elementwise_expressions import select
from tileops_kernels.kernels.rowwise_tile import PASS_CONFIGS
from tileops_kernels.kernels.signatures import prim_func

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


def _within_quarter(angle):
    """Sine and cosine of at most an eighth of a turn."""
    z = angle * angle
    cosine = T.float32(1) - T.float32(0.5) * z + z * z * _polynomial(z, _COS)
    return angle + angle * z * _polynomial(z, _SIN), cosine


def _after_quarters(sine, cosine, quarters):
    """The sine, turned on by whole quarters."""
    value = select((quarters & 1) == 1, cosine, sine)
    return select((quarters & 2) == 2, -value, value)


def sine(angle, quarters):
    """sin(angle + quarters * pi / 2), the angle at most an eighth of a turn."""
    return _after_quarters(*_within_quarter(angle), quarters)


class RopeKernel(Kernel):
    """`out[t, h] = stretch * rotate(x[t, h], angle = position(t) * frequency(i))`; tokens are symbolic.

    The position of token t is `t % seq`, or `positions[t]` with `position_dtype`. The frequency of pair i is
    an entry of a table, which may be divided by another one. Pairs are (i, i + rotary_dim / 2), or (2i, 2i +
    1) if `interleaved`. Elements from `rotary_dim` on are copied.

    Program arguments: x, (positions,) frequencies (float64, in quarter turns per position), (divisors
    (float32),) output, (seq,) stretch. Tensors are (tokens, elements of a token), tables (rotary_dim / 2); an
    interleaved program takes whole pairs as elements, of `pair_dtype`.
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
        *, heads, head_dim, rotary_dim, interleaved, position_dtype, dtype, vec, config, divided=False
    ):
        """Return the tile program.

        Args:
            heads: heads of a token.
            head_dim: elements of a head.
            rotary_dim: elements that are rotated.
            interleaved: pairs are neighbours.
            position_dtype: dtype of the tokens' own positions; None: they are 0, 1, ... of each sequence.
            dtype: dtype of x and output.
            vec: pairs that a thread rotates; divides `rotary_dim / 2` and the elements (or pairs) of a head.
            config: block geometry.
            divided: the table is divided by another one.
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
        # Every thread rotates pairs that no other one does by the same angles.
        own = heads == 1
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

        @T.macro
        def turn(quarters, sines, cosines, stretch, shape):
            # Fragments: an expression that is used twice would be spelled, and on a CPU computed, twice; on a
            # GPU there would be a branch around each.
            whole = T.alloc_fragment(shape, _WIDE)
            rest = T.alloc_fragment(shape, _ACC)
            plain_sine = T.alloc_fragment(shape, _ACC)
            plain_cosine = T.alloc_fragment(shape, _ACC)
            for t, v in T.Parallel(*shape):
                whole[t, v] = T.floor(quarters[t, v] + T.float64(0.5))
            for t, v in T.Parallel(*shape):
                rest[t, v] = T.cast(quarters[t, v] - whole[t, v], _ACC) * T.float32(radians_per_quarter)
            for t, v in T.Parallel(*shape):
                plain_sine[t, v], plain_cosine[t, v] = _within_quarter(rest[t, v])
            for t, v in T.Parallel(*shape):
                sines[t, v] = (
                    _after_quarters(plain_sine[t, v], plain_cosine[t, v], T.cast(whole[t, v], "int32"))
                    * stretch
                )
                cosines[t, v] = (
                    _after_quarters(plain_cosine[t, v], -plain_sine[t, v], T.cast(whole[t, v], "int32"))
                    * stretch
                )

        @T.macro
        def fill_own(sines, cosines, position_of, frequency_of, stretch, token, by):
            shape = (threads, vec)
            position = T.alloc_fragment((threads,), _WIDE)
            quarters = T.alloc_fragment(shape, _WIDE)
            for t, v in T.Parallel(*shape):
                quarters[t, v] = frequency_of((by * threads + t) % per_half * vec + v)
            for t in T.Parallel(threads):
                position[t] = T.float64(0)
                if token[t] < tokens:
                    position[t] = T.cast(position_of(token[t]), _WIDE)
            for t, v in T.Parallel(*shape):
                quarters[t, v] = quarters[t, v] * position[t]
            turn(quarters, sines, cosines, stretch, shape)

        @T.macro
        def fill_tables(sines, cosines, position_of, frequency_of, stretch, first):
            shape = (threads, 1)
            quarters = T.alloc_fragment(shape, _WIDE)
            of_sine = T.alloc_fragment(shape, _ACC)
            of_cosine = T.alloc_fragment(shape, _ACC)
            for step in T.unroll(-(-angles // threads)):
                for t, v in T.Parallel(*shape):
                    if tirx.all(step * threads + t < angles, first + (step * threads + t) // half < tokens):
                        quarters[t, v] = T.cast(
                            position_of(first + (step * threads + t) // half), _WIDE
                        ) * frequency_of((step * threads + t) % half)
                    else:
                        quarters[t, v] = T.float64(0)
                turn(quarters, of_sine, of_cosine, stretch, shape)
                for t, v in T.Parallel(*shape):
                    if step * threads + t < angles:
                        sines[step * threads + t] = of_sine[t, v]
                        cosines[step * threads + t] = of_cosine[t, v]

        @T.macro
        def rotate_pairs(a, b, sines, cosines, at, token, place, out):
            first = T.alloc_fragment((threads, vec), stored if interleaved else _ACC)
            if interleaved:
                for t, v in T.Parallel(threads, vec):
                    first[t, v] = paired(
                        first_of(a[t, v]) * cosines[at(t, v)] - second_of(a[t, v]) * sines[at(t, v)],
                        second_of(a[t, v]) * cosines[at(t, v)] + first_of(a[t, v]) * sines[at(t, v)],
                    )
                for t, v in T.Parallel(threads, vec):
                    if token[t] < tokens:
                        out[token[t], place[t] * vec + v] = first[t, v]
            else:
                second = T.alloc_fragment((threads, vec), _ACC)
                for t, v in T.Parallel(threads, vec):
                    first[t, v] = (
                        T.cast(a[t, v], _ACC) * cosines[at(t, v)] - T.cast(b[t, v], _ACC) * sines[at(t, v)]
                    )
                for t, v in T.Parallel(threads, vec):
                    second[t, v] = (
                        T.cast(b[t, v], _ACC) * cosines[at(t, v)] + T.cast(a[t, v], _ACC) * sines[at(t, v)]
                    )
                for t, v in T.Parallel(threads, vec):
                    if token[t] < tokens:
                        out[token[t], place[t] * vec + v] = T.cast(first[t, v], dtype)
                for t, v in T.Parallel(threads, vec):
                    if token[t] < tokens:
                        out[token[t], (place[t] + per_half) * vec + v] = T.cast(second[t, v], dtype)

        @T.macro
        def rotate(x, out, position_of, frequency_of, stretch, bx, by):
            token = T.alloc_fragment((threads,), "int32")
            place = T.alloc_fragment((threads,), "int32")
            angle = T.alloc_fragment((threads,), "int32")
            a = T.alloc_fragment((threads, vec), stored)
            b = a if interleaved else T.alloc_fragment((threads, vec), dtype)
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
            if not interleaved:
                for t, v in T.Parallel(threads, vec):
                    if token[t] < tokens:
                        b[t, v] = x[token[t], (place[t] + per_half) * vec + v]
            if own:
                sines = T.alloc_fragment((threads, vec), _ACC)
                cosines = T.alloc_fragment((threads, vec), _ACC)
                fill_own(sines, cosines, position_of, frequency_of, stretch, token, by)
                rotate_pairs(a, b, sines, cosines, lambda t, v: (t, v), token, place, out)
            else:
                shared_sines = T.alloc_shared((angles,), _ACC)
                shared_cosines = T.alloc_shared((angles,), _ACC)
                fill_tables(shared_sines, shared_cosines, position_of, frequency_of, stretch, bx * bt)
                rotate_pairs(
                    a, b, shared_sines, shared_cosines, lambda t, v: angle[t] * vec + v, token, place, out
                )

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

        @T.macro
        def launch(x, out, position_of, frequency_of, stretch):
            with T.Kernel(T.ceildiv(tokens, bt), blocks_y, threads=threads) as (bx, by):
                rotate(x, out, position_of, frequency_of, stretch, bx, by)

        width = heads * pitch * vec

        given = position_dtype is not None
        parameters: Mapping[str, Any] = {
            "x": T.Tensor((tokens, width), stored),
            **({"positions": T.Tensor((tokens,), position_dtype)} if given else {}),
            "frequencies": T.Tensor((half,), _WIDE),
            **({"divisors": T.Tensor((half,), _ACC)} if divided else {}),
            "out": T.Tensor((tokens, width), stored),
            **({} if given else {"seq": T.int32}),
            "stretch": T.float32,
        }

        def body(x, frequencies, out, stretch, positions=None, divisors=None, seq=None):
            def position_of(token):
                return positions[token] if given else T.truncmod(token, seq)

            def frequency_of(pair):
                plain = frequencies[pair]
                return plain / T.cast(divisors[pair], _WIDE) if divided else plain

            launch(x, out, position_of, frequency_of, stretch)

        return prim_func("rope_at" if given else "rope", parameters, body)

    @classmethod
    def samples(cls):
        neox = {"heads": 32, "head_dim": 128, "rotary_dim": 128, "interleaved": False}
        neox = {**neox, "position_dtype": None, "dtype": "bfloat16", "vec": 8}
        return (
            neox,
            {**neox, "interleaved": True, "dtype": "float16", "vec": 4},
            {**neox, "interleaved": True, "dtype": "float32", "vec": 2},
            {**neox, "heads": 1},
            {**neox, "heads": 1, "head_dim": 64, "rotary_dim": 64, "dtype": "float32", "vec": 4},
            {**neox, "position_dtype": "int64"},
            {**neox, "divided": True},
            {
                **neox,
                "heads": 3,
                "head_dim": 26,
                "rotary_dim": 10,
                "position_dtype": "int32",
                "vec": 1,
            },
        )
