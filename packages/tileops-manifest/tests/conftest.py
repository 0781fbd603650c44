"""Helpers: a small valid manifest to break in one place at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tileops_manifest.loader import Report, validate_path

BASE = """\
grammar: 1
family: toy
ops:
  ScaleFwdOp:
    summary: Rows scaled by a weight.
    ref_api: none
    dtypes: {T: float16 | float32}
    dims: {"*batch": leading dims, H: {doc: row, min: 1}}
    inputs:
      x: {dtype: T, shape: "[*batch, H]"}
      weight: {dtype: T, shape: "[H]"}
      index: {dtype: int32, shape: "[H]", optional: true, values: {kind: range, high: H}}
    outputs:
      output: {dtype: T, shape: "[*batch, H]"}
    params:
      factor: {type: float, default: 1.0}
      mode: {type: str, default: fast, choices: [fast, slow], kw_only: true}
    rules:
      - {expr: "factor > 0", message: factor must be positive}
    numerics: {accumulate: float32, nan: propagate}
    roofline: {flops: "prod(batch) * H"}
    workloads:
      - {label: small, dims: {batch: [2], H: 8}, dtypes: [float16, float32]}
"""


@pytest.fixture
def base() -> str:
    """The text of a small valid manifest."""
    return BASE


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., Report]:
    """Validate BASE with the given (old, new) replacements; each old text must be there."""

    def run(*changes: tuple[str, str], text: str = BASE) -> Report:
        for old, new in changes:
            assert text.count(old) >= 1, old
            text = text.replace(old, new, 1)
        path = tmp_path / "toy.yaml"
        path.write_text(text, encoding="utf-8")
        return validate_path(path)[1]

    return run
