"""The bound of an element: `k·e_base + c·u_out·|ref| + c2·u_acc·scale`, with its constants and their record.

`e_base` enters as the maximum over the element's tile, so that an element is not judged by the luck of its
own rounding. Where rounding to the output dtype is absolute (below its normal range) `u_out·|ref|` is at
least half a subnormal step.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.precision import FORMATS

# An output is seen as rows by columns (its last dim); a tile is a block of it. Small enough that one bad tile
# cannot hide among good ones, large enough that its maximum of e_base is a statistic.
TILE_ROWS = 16
TILE_COLUMNS = 128


@dataclass(frozen=True)
class Constants:
    """Calibrated constants; `c2` is multiplied by √n, where n is the reduction's length."""

    k: float
    c: float
    c2: float


@cache
def calibration() -> dict:
    """The shipped table with its record: date, device, observed maximum, sample count."""
    return json.loads(files("tileops_tests").joinpath("calibration.json").read_text(encoding="utf-8"))


def tolerance_digest() -> str:
    """Digest of the constants and the tile size: what a verification record names as its tolerance."""
    material = {"constants": calibration()["constants"], "tile": [TILE_ROWS, TILE_COLUMNS]}
    return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()


def constants_for(op: str, target: str) -> Constants:
    """The most specific row of the table: op and target, then op, then target, then the default."""
    table = calibration()["constants"]
    for wanted in ((op, target), (op, "*"), ("*", target), ("*", "*")):
        for row in table:
            if (row["op"], row["target"]) == wanted:
                return Constants(row["k"], row["c"], row["c2"])
    raise ValueError("calibration.json lacks the default row (op '*', target '*')")


def tile_max(x: Tensor) -> Tensor:
    """Each element replaced by the largest value of its tile; `x` is non-negative and finite, any shape,
    float64.
    """
    if x.numel() == 0:
        return x
    grid = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    rows, columns = grid.shape
    padded = F.pad(grid, (0, -columns % TILE_COLUMNS, 0, -rows % TILE_ROWS))
    blocks = padded.reshape(
        padded.shape[0] // TILE_ROWS, TILE_ROWS, padded.shape[1] // TILE_COLUMNS, TILE_COLUMNS
    )
    peaks = blocks.amax(dim=(1, 3), keepdim=True).expand_as(blocks)
    return peaks.reshape(padded.shape)[:rows, :columns].reshape(x.shape)


def rounding_error(ref: Tensor, dtype: str) -> Tensor:
    """Largest error of rounding `ref` to `dtype`, element by element."""
    fmt = FORMATS[dtype]
    return (ref.abs() * fmt.unit_roundoff).clamp_min(fmt.half_subnormal)


def bound_of(
    ref: Tensor,
    e_base: Tensor,
    scale: Tensor | None,
    reduction_length: int,
    *,
    out_dtype: str,
    acc_dtype: str,
    constants: Constants,
) -> Tensor:
    """The largest permitted error per element; all tensors float64, `scale` broadcastable to `ref` (None:
    |ref|).

    Elements of `ref` or `e_base` that are not finite get no contribution from them: they are compared as
    masks.
    """
    finite_ref = torch.where(torch.isfinite(ref), ref, torch.zeros_like(ref))
    finite_base = torch.where(torch.isfinite(e_base), e_base, torch.zeros_like(e_base))
    magnitude = finite_ref.abs() if scale is None else scale.to(torch.float64).expand(ref.shape)
    magnitude = torch.where(torch.isfinite(magnitude), magnitude, torch.zeros_like(magnitude))
    accumulated = (
        constants.c2 * math.sqrt(max(reduction_length, 1)) * FORMATS[acc_dtype].unit_roundoff * magnitude
    )
    return (
        constants.k * tile_max(finite_base)
        + constants.c * rounding_error(finite_ref, out_dtype)
        + accumulated
    )
