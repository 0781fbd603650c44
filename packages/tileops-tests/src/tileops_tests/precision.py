"""Floating-point formats: roundoff, the precision ladder, rounding to a number of significant bits.

All arithmetic on errors is done in float64. `tf32` is a format of arithmetic, not of storage, so the ladder
speaks of formats by name and rounds by significant bits; range is left alone, since a workload whose range
alone exposes a lower precision would say nothing about its precision.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FloatFormat:
    """`bits` significant bits (the implicit one included); `min_exponent`: the exponent of the smallest
    normal number.
    """

    bits: int
    min_exponent: int
    lower: str | None

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest: half a unit in the last place."""
        return 2.0**-self.bits

    @property
    def half_subnormal(self) -> float:
        """Largest absolute error of rounding to nearest below the normal range."""
        return 2.0 ** (self.min_exponent - self.bits)


# The written ladder: `lower` is one step down. float16 and bfloat16 step to fp8; tf32 steps to bfloat16.
FORMATS: dict[str, FloatFormat] = {
    "float64": FloatFormat(53, -1022, "float32"),
    "float32": FloatFormat(24, -126, "tf32"),
    "tf32": FloatFormat(11, -126, "bfloat16"),
    "float16": FloatFormat(11, -14, "float8_e4m3fn"),
    "bfloat16": FloatFormat(8, -126, "float8_e4m3fn"),
    "float8_e4m3fn": FloatFormat(4, -6, "float8_e5m2"),
    "float8_e5m2": FloatFormat(3, -14, "two_bits"),
    "two_bits": FloatFormat(2, -14, None),
}


# Complex dtypes and the dtype of their parts, which are rounded and judged one by one.
PARTS = {"complex64": "float32", "complex128": "float64"}


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that torch spells `torch.<name>`.

    >>> torch_dtype("bfloat16")
    torch.bfloat16
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"got dtype {name!r}, expected a name that torch knows, such as 'float16'")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The inverse of `torch_dtype`.

    >>> dtype_name(torch.float8_e4m3fn)
    'float8_e4m3fn'
    """
    return str(dtype).removeprefix("torch.")


def is_float(name: str) -> bool:
    """Whether values of this dtype are rounded; complex ones are judged as their parts."""
    return name in FORMATS


def one_step_down(name: str, *, tf32_allowed: bool = False) -> str:
    """The next lower format; where the entry allows tf32, float32 arithmetic already is tf32, so the step
    starts there.

    >>> one_step_down("float32"), one_step_down("float32", tf32_allowed=True), one_step_down("bfloat16")
    ('tf32', 'bfloat16', 'float8_e4m3fn')
    """
    start = "tf32" if name == "float32" and tf32_allowed else name
    lower = FORMATS[start].lower
    if lower is None:
        raise ValueError(f"the precision ladder ends at {name!r}")
    return lower


def round_significand(x: Tensor, bits: int) -> Tensor:
    """`x` (float64) rounded to nearest-even with `bits` significant bits; NaN, ±Inf and ±0 are kept.

    >>> round_significand(torch.tensor([1.0625, 3.0], dtype=torch.float64), 4)
    tensor([1., 3.], dtype=torch.float64)
    """
    mantissa, exponent = torch.frexp(x)
    rounded = torch.ldexp(torch.round(mantissa * 2.0**bits) * 2.0**-bits, exponent)
    return torch.where(torch.isfinite(x) & (x != 0), rounded, x)
