"""The random numbers of dropout: known answers, and independence of elements, seeds and generators."""

from __future__ import annotations

import pytest
import torch

from tileops_tests.oracles import get_oracle
from tileops_tests.oracles.dropout import philox, philox_of_integers

ONES = 0xFFFFFFFF
# Known answers of the generator's authors (Random123, kat_vectors, philox4x32 10): counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_both_generators_give_the_known_answers(counter, key, words):
    assert philox_of_integers(counter, key) == words
    tensors = tuple(torch.tensor([word], dtype=torch.int64) for word in counter)
    assert tuple(int(word) for word in philox(tensors, key)) == words


def kept(count, **params):
    x = {"input": torch.ones(count)}
    (result,) = get_oracle("DropoutFwdOp").ref_program(x, {"p": 0.5, "seed": 0, "training": True, **params})
    return result != 0


def test_the_first_words_decide_on_the_first_elements():
    words = [word for number in (0, 1) for word in philox_of_integers((number, 0, 0, 0), (7, 3))]
    assert kept(8, p=0.25, seed=(3 << 32) + 7).tolist() == [word >= 0.25 * 2**32 for word in words]


def test_a_longer_input_begins_like_a_shorter_one():
    assert torch.equal(kept(1001)[:37], kept(37))


@pytest.mark.parametrize("seed", [1, -1, 1 << 32])
def test_seeds_are_unrelated(seed):
    same = kept(1 << 16) == kept(1 << 16, seed=seed)
    assert abs(same.double().mean().item() - 0.5) < 6 * 0.5 / 256


def test_neighbours_are_unrelated():
    mask = kept(1 << 16).double() - 0.5
    for lag in (1, 2, 3, 4, 64):
        assert abs((mask[lag:] * mask[:-lag]).mean().item() * 4) < 6 / 256


def test_probabilities_at_their_ends():
    x = torch.tensor([1.0, float("nan"), float("inf"), 2.0], dtype=torch.float64)
    run = get_oracle("DropoutFwdOp").ref_program
    for params in ({"p": 0.0, "training": True}, {"p": 0.3, "training": False}):
        (result,) = run({"input": x}, {"seed": 5, **params})
        assert torch.equal(result.nan_to_num(7), x.nan_to_num(7))
    (dropped,) = run({"input": x}, {"p": 1.0, "seed": 5, "training": True})
    assert dropped[[0, 3]].tolist() == [0, 0]
    assert dropped[[1, 2]].isnan().all()
