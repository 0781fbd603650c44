"""Random bits as a pure function of a key and a position: Philox-4x32-10 in integer tensor arithmetic.

`torch.randn` differs between devices, and even between CPUs. Here block `i` of a stream is the Philox
bijection of the counter `i` under the stream's key, computed with 64-bit integer operations only, which are
exact everywhere: the bits depend neither on the device, nor on the number of threads, nor on how the range
is cut into chunks.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW32 = 0xFFFFFFFF
_ROUNDS = 10

# Blocks per chunk. On a CPU the registers of a chunk should stay in the caches, and below torch's threshold
# for threads, whose barriers cost more than they gain on a shared machine; on a device fewer launches win.
_CHUNK_BLOCKS = {"cpu": 15 << 10, "device": 1 << 23}


@dataclass(frozen=True)
class Stream:
    """Identity of an endless sequence of random words: 64 bits of key and 64 bits of counter prefix."""

    key: tuple[int, int]
    prefix: tuple[int, int]

    @classmethod
    def named(cls, *parts: object) -> Stream:
        """The stream whose name is `parts`, each written out with `str`. Different names give unrelated
        streams.

        >>> Stream.named("RMSNormFwdOp", "x", 0) == Stream.named("RMSNormFwdOp", "x", 1)
        False
        """
        name = "\x1f".join(str(part) for part in parts)
        digest = hashlib.sha256(name.encode()).digest()
        words = [int.from_bytes(digest[i : i + 4], "little") for i in (0, 4, 8, 12)]
        return cls(key=(words[0], words[1]), prefix=(words[2], words[3]))


def philox(counter: tuple[torch.Tensor, ...], key: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    """Philox-4x32-10 of four int64 tensors that hold 32-bit words. Overwrites them; returns the four result
    words.

    A 32 x 32-bit product fits 64 bits; that it may read as negative does no harm, since the high word is
    masked.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    p0, p1 = torch.empty_like(c0), torch.empty_like(c2)
    for _ in range(_ROUNDS):
        torch.mul(c0, _MULTIPLIERS[0], out=p0)
        torch.mul(c2, _MULTIPLIERS[1], out=p1)
        torch.bitwise_right_shift(p1, 32, out=c0)
        c0.bitwise_and_(_LOW32).bitwise_xor_(c1).bitwise_xor_(k0)
        torch.bitwise_right_shift(p0, 32, out=c2)
        c2.bitwise_and_(_LOW32).bitwise_xor_(c3).bitwise_xor_(k1)
        torch.bitwise_and(p1, _LOW32, out=c1)
        torch.bitwise_and(p0, _LOW32, out=c3)
        k0, k1 = (k0 + _WEYL[0]) & _LOW32, (k1 + _WEYL[1]) & _LOW32
    return c0, c1, c2, c3


def word_pairs(
    stream: Stream, count: int, device: torch.device | str = "cpu"
) -> Iterator[tuple[int, int, torch.Tensor, torch.Tensor]]:
    """Yield `(start, stop, low, high)`: two 32-bit words for each of the elements `start … stop - 1` out of
    `count`.

    `low` and `high` are int64 tensors with values in [0, 2^32). One Philox block serves elements 2i and 2i +
    1.
    """
    device = torch.device(device)
    chunk = _CHUNK_BLOCKS["cpu" if device.type == "cpu" else "device"]
    blocks = (count + 1) // 2
    for first in range(0, blocks, chunk):
        size = min(chunk, blocks - first)
        index = torch.arange(first, first + size, dtype=torch.int64, device=device)
        counter = (
            index & _LOW32,
            index >> 32,
            torch.full_like(index, stream.prefix[0]),
            torch.full_like(index, stream.prefix[1]),
        )
        words = philox(counter, stream.key)
        start, stop = 2 * first, min(2 * (first + size), count)
        low = torch.stack((words[0], words[2]), dim=1).reshape(-1)[: stop - start]
        high = torch.stack((words[1], words[3]), dim=1).reshape(-1)[: stop - start]
        yield start, stop, low, high


def words64(stream: Stream, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """`count` random int64 values, uniform over the whole range.

    >>> words64(Stream.named("example"), 2).tolist() == words64(Stream.named("example"), 3).tolist()[:2]
    True
    """
    out = torch.empty(count, dtype=torch.int64, device=device)
    for start, stop, low, high in word_pairs(stream, count, device):
        torch.bitwise_or(low, high << 32, out=out[start:stop])
    return out


def below(stream: Stream, count: int, limit: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """`count` int64 values, uniform over [0, limit), for 0 < limit <= 2^31 (bias below limit / 2^32)."""
    if not 0 < limit <= 1 << 31:
        raise ValueError(f"limit is {limit}, expected 0 < limit <= 2^31")
    out = torch.empty(count, dtype=torch.int64, device=device)
    for start, stop, low, _ in word_pairs(stream, count, device):
        torch.bitwise_right_shift(low.mul_(limit), 32, out=out[start:stop])
    return out


def ranks(stream: Stream, rows: int, columns: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """A random permutation of 0 … columns - 1 in each of `rows` rows: int64 [rows, columns]."""
    keys = words64(stream, rows * columns, device).reshape(rows, columns)
    return torch.argsort(keys, dim=-1, stable=True)
