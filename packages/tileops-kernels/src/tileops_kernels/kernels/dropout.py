"""Dropout by a counter-based generator: what is kept depends on the seed and the place of an element alone.

Word i of Philox4x32-10 decides over element i. A thread makes the four words of a counter and uses them at
once: no mask is stored, no state is shared, and the same seed gives the same result on every device and
block shape.

Sources: arXiv:1207.0580; J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from dataclasses import dataclass

import tilelang.language as T
from tvm import tirx

from tileops_kernels.kernels.base import ConfigTable, Kernel

__all__ = ["WORDS", "DropoutKernel"]

WORDS = 4
"""Words of a counter."""

_ROUNDS, _LANES = tuple(range(10)), tuple(range(WORDS))
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def _high(product):
    return T.cast(T.shift_right(product, tirx.const(32, "uint64")), "uint32")


def _low(product):
    return T.cast(product, "uint32")


def _multiplier(k):
    return tirx.const(_MULTIPLIERS[k], "uint64")


def _key(keys, k, number):
    """Return half `k` of the key in a round."""
    return keys[k] + tirx.const(number * _KEY_STEPS[k] & 0xFFFFFFFF, "uint32")


class DropoutKernel(Kernel):
    """`output[i] = x[i] * (scale if word[first + i] >= threshold else 0)`, so that NaN stays NaN.

    Program arguments: x, output (flat, 16-byte aligned), number of the first counter, two halves of the key
    and threshold (32 bits each), scale.
    """

    SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})
    ALIGNMENT = 16

    @dataclass(frozen=True)
    class Config:
        """`counters` per thread and block."""

        threads: int
        counters: int

    # 16 bytes of each operand per thread.
    CONFIGS = ConfigTable(
        size=lambda sizes: 4 if sizes["dtype"] == "float32" else 2,
        devices={
            "cpu": ((None, Config(threads=64, counters=2)),),
            "sm_80": ((2, Config(threads=256, counters=2)), (None, Config(threads=256, counters=1))),
        },
    )

    @staticmethod
    def program(*, dtype, config):
        """Return the tile program.

        Args:
            dtype: dtype of x and output.
            config: block geometry.
        """
        threads, counters = config.threads, config.counters
        shape = (threads, counters, WORDS)
        block = threads * counters * WORDS
        n = T.dynamic("n")

        by_counter = (threads, counters)
        layout = T.Fragment(by_counter, forward_fn=lambda t, c: (t, c))

        @T.macro
        def generate(words, start, first, keys):
            # A fragment each: inside one loop a fragment is addressed in one way.
            products = [T.alloc_fragment(by_counter, "uint64") for _ in range(2)]
            T.annotate_layout(dict.fromkeys(products, layout))
            for t, c in T.Parallel(*by_counter):
                words[0][t, c] = T.cast(first + (start + t) * counters + c, "uint32")
                words[1][t, c] = T.cast(
                    T.shift_right(first + (start + t) * counters + c, tirx.const(32, "int64")), "uint32"
                )
                words[2][t, c] = tirx.const(0, "uint32")
                words[3][t, c] = tirx.const(0, "uint32")
            for number in _ROUNDS:
                for t, c in T.Parallel(*by_counter):
                    products[0][t, c] = T.cast(words[0][t, c], "uint64") * _multiplier(0)
                    products[1][t, c] = T.cast(words[2][t, c], "uint64") * _multiplier(1)
                    words[0][t, c] = _high(products[1][t, c]) ^ words[1][t, c] ^ _key(keys, 0, number)
                    words[1][t, c] = _low(products[1][t, c])
                    words[2][t, c] = _high(products[0][t, c]) ^ words[3][t, c] ^ _key(keys, 1, number)
                    words[3][t, c] = _low(products[0][t, c])

        @T.macro
        def load(x, narrow, bx, in_bounds):
            for t, c, w in T.Parallel(*shape):
                if in_bounds(bx * block + (t * counters + c) * WORDS + w):
                    narrow[t, c, w] = x[bx * block + (t * counters + c) * WORDS + w]

        @T.macro
        def store(result, output, bx, in_bounds):
            for t, c, w in T.Parallel(*shape):
                if in_bounds(bx * block + (t * counters + c) * WORDS + w):
                    output[bx * block + (t * counters + c) * WORDS + w] = T.cast(result[t, c, w], dtype)

        @T.prim_func
        def dropout(
            x: T.Tensor((n,), dtype),
            output: T.Tensor((n,), dtype),
            first: T.int64,
            key_low: T.uint32,
            key_high: T.uint32,
            threshold: T.uint32,
            scale: T.float32,
        ):
            with T.Kernel(T.ceildiv(n, block), threads=threads) as bx:
                words = [T.alloc_fragment(by_counter, "uint32") for _ in range(WORDS)]
                narrow = T.alloc_fragment(shape, dtype)
                result = T.alloc_fragment(shape, "float32")
                by_thread = T.Fragment(shape, forward_fn=lambda t, c, w: (t, c * WORDS + w))
                T.annotate_layout({narrow: by_thread, result: by_thread, **dict.fromkeys(words, layout)})

                # Ahead of the words: x is on its way while they are made.
                if (bx + 1) * block <= n:
                    load(x, narrow, bx, lambda i: True)
                else:
                    load(x, narrow, bx, lambda i: i < n)
                generate(words, bx * threads, first, [key_low, key_high])
                for w in _LANES:
                    for t, c in T.Parallel(*by_counter):
                        result[t, c, w] = T.cast(narrow[t, c, w], "float32") * tirx.Select(
                            words[w][t, c] >= threshold, scale, T.float32(0)
                        )
                if (bx + 1) * block <= n:
                    store(result, output, bx, lambda i: True)
                else:
                    store(result, output, bx, lambda i: i < n)

        return dropout

    @classmethod
    def samples(cls):
        """Return 16-bit and 32-bit elements."""
        return ({"dtype": "bfloat16"}, {"dtype": "float32"})
