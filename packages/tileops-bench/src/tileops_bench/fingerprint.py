"""Fingerprints of tensor contents: equal bits, shape and dtype give equal strings. On the tensor's own
device."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_CHUNK = 1 << 22
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def fingerprint(tensor: torch.Tensor) -> str:
    """Position-sensitive 64-bit checksum of the bits, with shape and dtype in front.

    Any single changed byte changes it: each 8-byte word is multiplied by an odd number that depends on its
    position. It guards against accidents and stale results, not against a forger who knows it.

    >>> a = torch.tensor([1.0, 2.0])
    >>> fingerprint(a) == fingerprint(a.clone()), fingerprint(a) == fingerprint(a.flip(0))
    (True, False)
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    tail = data.numel() % 8
    if tail:
        data = torch.cat((data, data.new_zeros(8 - tail)))
    words = data.view(torch.int64)
    total = 0
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK]
        weights = torch.arange(part.numel(), device=part.device, dtype=torch.int64) * 2 + 1
        total = (total * _MIX + int((part * weights).sum().item())) & _MASK
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}:{total:016x}"


def fingerprints(tensors: Iterable[torch.Tensor | None]) -> str:
    """One fingerprint for several tensors, absent ones included."""
    return " ".join("none" if t is None else fingerprint(t) for t in tensors)
