"""Names of dtypes: manifest strings, torch dtypes and TileLang dtypes.

The manifest and every public interface spell a dtype as torch does, without ``torch.``; TileLang takes the
same names and knows a few aliases.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import torch

TORCH_DTYPES: Final = MappingProxyType(
    {
        str(dtype).removeprefix("torch."): dtype
        for dtype in (
            torch.bool,
            torch.uint8,
            torch.uint16,
            torch.uint32,
            torch.uint64,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.float8_e8m0fnu,
            torch.complex64,
            torch.complex128,
        )
    }
)

# Names that TileLang gives to a dtype which has another name here. tf32 is float32 in memory.
_TILELANG_ALIASES: Final = MappingProxyType({"float8_e4m3": "float8_e4m3fn", "custom[tfloat32]": "float32"})


class UnknownDtypeError(ValueError):
    """A dtype that is not the library's, or that no tile program holds.

    >>> torch_dtype("float12")
    Traceback (most recent call last):
        ...
    tileops_kernels.dtypes.UnknownDtypeError: unknown dtype 'float12', expected one of bool, uint8, ...
    """

    def __init__(self, got: object) -> None:
        super().__init__(f"unknown dtype {got!r}, expected one of {', '.join(TORCH_DTYPES)}")
        self.got = got


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name.

    >>> torch_dtype("bfloat16")
    torch.bfloat16
    """
    try:
        return TORCH_DTYPES[_TILELANG_ALIASES.get(name, name)]
    except (KeyError, TypeError):
        raise UnknownDtypeError(name) from None


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a torch dtype.

    >>> dtype_name(torch.float8_e4m3fn)
    'float8_e4m3fn'
    """
    name = str(dtype).removeprefix("torch.")
    if name not in TORCH_DTYPES:
        raise UnknownDtypeError(name)
    return name


def tilelang_dtype(dtype: str | torch.dtype) -> str:
    """The name by which a tile program declares a buffer of this dtype; complex tensors are pairs of floats
    to it.

    >>> tilelang_dtype(torch.float16)
    'float16'
    """
    known = dtype if isinstance(dtype, torch.dtype) else torch_dtype(dtype)
    if known.is_complex:
        raise UnknownDtypeError(dtype)
    return dtype_name(known)


def from_tilelang(dtype: object) -> str:
    """Our name for the dtype of a TileLang buffer or scalar; raises `UnknownDtypeError` for one that torch
    lacks.

    >>> from_tilelang("float8_e4m3")
    'float8_e4m3fn'
    """
    return dtype_name(torch_dtype(str(dtype)))


def itemsize(name: str) -> int:
    """Bytes of one element.

    >>> itemsize("bfloat16")
    2
    """
    return torch_dtype(name).itemsize
