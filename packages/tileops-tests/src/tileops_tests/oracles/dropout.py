"""Oracle of dropout: x of any shape, element by element; the random numbers are part of the definition.

Word i of Philox4x32-10 (J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) belongs to
element i, counted in row-major order: counter i // 4 (64 bits, the upper half of 128 being 0), key `seed`
modulo 2^64, lane i % 4. An element is kept where its word is at least p 2^32, and then x / (1 - p); else it
is x * 0, which leaves NaN, as torch does. Without training the result is x. torch promises no numbers: the
second opinion is the generator in the integers of Python.

Sources: arXiv:1207.0580 for dropout, the paper above for its numbers.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call
from tileops_tests.oracles.forms import single
from tileops_tests.oracles.properties import Inputs, Params, Run, is_homogeneous

_WORD = 0xFFFFFFFF
_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)


def _product(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """Upper and lower word of a * b, for words in int64 tensors: by halves of b, so nothing overflows."""
    low = a * (b & 0xFFFF)
    high = a * (b >> 16) + (low >> 16)
    return high >> 16, (high << 16 | low & 0xFFFF) & _WORD


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """The four words of Philox4x32-10 for each counter (int64 tensors of words, least significant first)."""
    a, b, c, d = counter
    for number in range(_ROUNDS):
        k0, k1 = ((k + number * step) & _WORD for k, step in zip(key, _KEY_STEPS, strict=True))
        (high0, low0), (high1, low1) = _product(_MULTIPLIERS[0], a), _product(_MULTIPLIERS[1], c)
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
    return a, b, c, d


def philox_of_integers(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The same words in the integers of Python, which do not overflow."""
    a, b, c, d = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        p, q = _MULTIPLIERS[0] * a, _MULTIPLIERS[1] * c
        a, b, c, d = q >> 32 ^ b ^ k0, q & _WORD, p >> 32 ^ d ^ k1, p & _WORD
        k0, k1 = k0 + _KEY_STEPS[0] & _WORD, k1 + _KEY_STEPS[1] & _WORD
    return a, b, c, d


def _key(seed: int) -> tuple[int, int]:
    return seed & _WORD, seed >> 32 & _WORD


def _words(count: int, seed: int, device: torch.device) -> Tensor:
    number = torch.arange(-(-count // 4), dtype=torch.int64, device=device)
    zero = torch.zeros_like(number)
    return torch.stack(philox((number & _WORD, number >> 32, zero, zero), _key(seed)), dim=-1).flatten()[
        :count
    ]


@lru_cache(maxsize=4)
def _words_of_integers(count: int, seed: int) -> Tensor:
    counters = ((number & _WORD, number >> 32, 0, 0) for number in range(-(-count // 4)))
    words = [word for counter in counters for word in philox_of_integers(counter, _key(seed))]
    return torch.tensor(words[:count], dtype=torch.int64)


def _applied(call: Call, words: Tensor) -> Tensor:
    p = call.param("p")
    kept = (words >= math.ceil(p * 2.0**32)).reshape(call["input"].shape)
    return call["input"] * (kept.to(call.dtype) * (1 / (1 - p) if p < 1 else 0.0))


def _dropout(call: Call) -> Tensor:
    x = call["input"]
    return (
        _applied(call, _words(x.numel(), call.param("seed"), x.device))
        if call.param("training")
        else x.clone()
    )


def _dropout_of_integers(call: Call) -> Tensor:
    """Kept elements are picked, not multiplied."""
    x, p = call["input"], call.param("p")
    if not call.param("training"):
        return x.clone()
    words = _words_of_integers(x.numel(), call.param("seed")).to(x.device).reshape(x.shape)
    return torch.where(words.to(torch.float64) / 2**32 < p, x * 0, x / (1 - p))


def keeps_about_as_many_as_asked(run: Run, inputs: Inputs, params: Params) -> bool:
    """Within six standard deviations; ones show which are kept, and their mean stays one."""
    ones = torch.ones(inputs["input"].shape, dtype=torch.float64)
    (result,) = run({"input": ones}, params)
    share = 1 - params["p"] if params["training"] else 1.0
    deviation = math.sqrt(share * (1 - share) / max(ones.numel(), 1))
    kept = (result != 0).double().mean() if ones.numel() else share
    return abs(float(kept) - share) <= 6 * deviation + 2.0**-32


ORACLES = (
    single("DropoutFwdOp", _dropout, _dropout_of_integers, is_homogeneous, keeps_about_as_many_as_asked),
)
