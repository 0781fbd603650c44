"""Params as the float32 numbers that programs take."""

from __future__ import annotations

import torch

__all__ = ["as_epsilon"]

_SMALLEST = torch.finfo(torch.float32).tiny


def as_epsilon(eps: float) -> float:
    """Return what keeps a divisor from zero: in float32 it must not become zero unless it is.

    Squares below float32's smallest normal number are lost, so that a smaller eps gives no other result.

    >>> as_epsilon(1e-60) == as_epsilon(1e-40) == torch.finfo(torch.float32).tiny
    True
    >>> as_epsilon(0.0), as_epsilon(1e-5)
    (0.0, 1e-05)
    """
    return max(float(eps), _SMALLEST) if eps else 0.0
