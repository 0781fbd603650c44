"""The advice to install OpenMP is given when OpenMP is missing, and only then."""

from __future__ import annotations

import pytest

from tileops_kernels.targets.cpu import compiler


@pytest.mark.parametrize(
    ("message", "missing"),
    [
        ("fatal error: omp.h: No such file or directory", True),
        ("ld: cannot find -lgomp: No such file or directory", True),
        ("ld: cannot find -lomp", True),
        ("fatal error: error writing to program.s: No space left on device\ncompilation terminated.", False),
    ],
)
def test_openmp_advice(message: str, missing: bool) -> None:
    assert bool(compiler._NO_OPENMP.search(message)) is missing
