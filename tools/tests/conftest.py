"""A miniature monorepo with the real stage table, in which tests plant violations."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from boundary.model import StageTable, load_table  # noqa: E402


@pytest.fixture(scope="session")
def table() -> StageTable:
    return load_table(ROOT)


@pytest.fixture
def repository(tmp_path: Path, table: StageTable) -> Path:
    """Five empty packages with the real metadata, rules and environments."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/stages.toml", tmp_path / "tools")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for stage in table.stages.values():
        source = tmp_path / stage.folder / "src" / stage.module
        source.mkdir(parents=True)
        (source / "__init__.py").touch()
        (source / "py.typed").touch()
        for name in ("pyproject.toml", "README.md", "RULES.md", "CHANGELOG.md", "LICENSE"):
            shutil.copy(ROOT / stage.folder / name, tmp_path / stage.folder)
    return tmp_path
