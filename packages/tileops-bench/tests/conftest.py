"""Fixtures. Puts this folder on the path, so that test modules can share `bench_builders`."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def candidate_file(tmp_path: Path):
    """Write candidate source to a file and return the reference to its function `run`."""

    def write(source: str, name: str = "candidate") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(source))
        return f"{path}:run"

    return write
