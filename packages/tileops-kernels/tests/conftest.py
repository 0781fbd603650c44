"""What the kernels' tests need of a machine."""

from __future__ import annotations

import pytest

from tileops_kernels.targets import CompilerNotFoundError
from tileops_kernels.targets.cuda import find_toolkit


@pytest.fixture(scope="session")
def nvcc() -> None:
    """The CUDA compiler; a machine without one skips the test and says so."""
    try:
        find_toolkit()
    except CompilerNotFoundError:
        pytest.skip("no nvcc on this machine")
