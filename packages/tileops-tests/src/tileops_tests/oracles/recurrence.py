"""What oracles of recurrences share: a state that tokens add to and that they read."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

# Rounds a named intermediate value as the entry allows: `Call.rounded`.
Rounding = Callable[[str, Tensor], Tensor]


def not_rounded(name: str, x: Tensor) -> Tensor:
    """For entries that name no intermediate values."""
    return x


def outer(a: Tensor, b: Tensor) -> Tensor:
    """a b^T: [..., M] and [..., N] to [..., M, N]."""
    return a[..., :, None] * b[..., None, :]


def scaled(rounded: Rounding, x: Tensor) -> Tensor:
    """Queries or keys as they meet a state: within a chunk they are multiplied by decays, and may then be
    rounded. Three quarters, like a decay, change every significand, and are taken back without an error.
    """
    return rounded("scaled_tokens", x * 0.75) / 0.75
