"""Dtype names of the manifest as torch dtypes, and the few facts the generator needs about them."""

from __future__ import annotations

import torch

from .errors import UnsupportedDtypeError


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype that the manifest calls `name`.

    Raises:
        UnsupportedDtypeError: torch has no dtype of that name.

    >>> torch_dtype("bfloat16")
    torch.bfloat16
    """
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise UnsupportedDtypeError(f"torch {torch.__version__} has no dtype {name!r}")
    return dtype


def has_infinity(dtype: torch.dtype) -> bool:
    """Whether the dtype can hold an infinity (`float8_e4m3fn`, for one, cannot)."""
    return bool(torch.tensor([float("inf")]).to(dtype).to(torch.float32).isinf().item())
