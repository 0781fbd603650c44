"""The generator is Philox-4x32-10, and its bits depend on the key and the position alone."""

from __future__ import annotations

import hashlib

import pytest
import torch

from tileops_workloads import bits
from tileops_workloads.bits import Stream, below, philox, ranks, words64

# Known answers of the Random123 distribution: counter, key, result.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_known_answers(counter, key, expected):
    words = philox(tuple(torch.tensor([word]) for word in counter), key)
    assert tuple(word.item() for word in words) == expected


def test_words_are_the_philox_blocks_in_order():
    stream = Stream(key=(1, 2), prefix=(3, 4))
    drawn = words64(stream, 5)
    for element in range(5):
        counter = (element // 2, 0, 3, 4)
        block = [word.item() for word in philox(tuple(torch.tensor([c]) for c in counter), (1, 2))]
        low, high = block[2 * (element % 2)], block[2 * (element % 2) + 1]
        assert drawn[element].item() & (2**64 - 1) == high << 32 | low


def test_words_have_golden_bytes():
    data = bytes(words64(Stream.named("golden", 1), 1000).view(torch.uint8).tolist())
    assert (
        hashlib.sha256(data).hexdigest() == "813653aa84761f7f21b851c9056150b40116bf23b596a657450ca3dc09a8485f"
    )


def test_chunk_size_does_not_change_the_bits(monkeypatch):
    whole = words64(Stream.named("chunks"), 1001)
    monkeypatch.setattr(bits, "_CHUNK_BLOCKS", {"cpu": 7, "device": 7})
    assert torch.equal(words64(Stream.named("chunks"), 1001), whole)


def test_thread_count_does_not_change_the_bits():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = words64(Stream.named("threads"), 40_000)
        torch.set_num_threads(2)
        assert torch.equal(words64(Stream.named("threads"), 40_000), one)
    finally:
        torch.set_num_threads(before)


def test_a_shorter_request_is_a_prefix_of_a_longer_one():
    assert torch.equal(words64(Stream.named("p"), 10), words64(Stream.named("p"), 100)[:10])


def test_streams_of_different_names_are_unrelated():
    a, b = (words64(Stream.named("x", seed), 10_000) for seed in (0, 1))
    agreement = (a ^ b).view(torch.uint8).tolist()
    ones = sum(byte.bit_count() for byte in agreement) / (8 * len(agreement))
    assert abs(ones - 0.5) < 0.005


def test_below_is_uniform_and_in_range():
    drawn = below(Stream.named("below"), 60_000, 6)
    counts = torch.bincount(drawn, minlength=6)
    assert counts.numel() == 6
    assert ((counts - 10_000).abs() < 500).all()


@pytest.mark.parametrize("limit", [0, -1, (1 << 31) + 1])
def test_below_refuses_a_limit_that_would_overflow(limit):
    with pytest.raises(ValueError, match="limit is"):
        below(Stream.named("below"), 1, limit)


def test_ranks_are_permutations_and_differ_between_rows():
    rows = ranks(Stream.named("ranks"), 4, 50)
    assert torch.equal(rows.sort(dim=-1).values, torch.arange(50).expand(4, 50))
    assert not torch.equal(rows[0], rows[1])
