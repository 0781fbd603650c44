"""The second set of values of a case: all of them other, or only a few.

A result that is remembered by address belongs to other values when all of them change. One that is
remembered by a sample of the content is only found out when the sample does not change: every other case
keeps its first values but for a few elements at places that its name determines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from tileops_tests.sensitivity import raw_bits

SHARE = 64  # one element in this many changes
MOST = 4096


def changes_few(name: str) -> bool:
    """Whether the case of this name keeps most of its first values in its second set; half of all do."""
    return _digest(name)[0] % 2 == 0


def keep_most(name: str, first: Mapping[str, Tensor | None], second: Mapping[str, Tensor | None]) -> None:
    """Write the first values into the second set, in place, but for a few elements of each floating input.

    Without a floating input nothing is written: integer values may have to fit each other, so all of them
    change. An input whose elements share memory keeps its second values too.
    """
    floating = [n for n, t in first.items() if t is not None and t.is_floating_point() and t.numel()]
    if not floating:
        return
    generator = torch.Generator().manual_seed(int.from_bytes(_digest(name)[1:8], "little"))
    for key, old in first.items():
        new = second[key]
        if old is None or new is None or old.is_complex() or 0 in new.stride():
            continue
        values = raw_bits(old).clone().view(-1)
        if key in floating:
            count = min(MOST, -(-old.numel() // SHARE))
            places = torch.randint(old.numel(), (count,), generator=generator).to(old.device)
            values[places] = raw_bits(new).view(-1)[places]
        new.copy_(values.view(old.shape).view(old.dtype))


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
