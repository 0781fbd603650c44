"""This stage must not reach into the tests stage, and must not claim to judge correctness."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

import tileops_bench

ROOT = Path(tileops_bench.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
COMPARISONS = {"allclose", "assert_close", "isclose"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_imports_the_tests_stage_or_compares_values(path):
    tree = ast.parse(path.read_text())
    imported = {
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not [name for name in imported if name.split(".")[0] == "tileops_tests"]
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not called & COMPARISONS


def test_only_the_measuring_process_imports_kernels():
    users = {p.relative_to(ROOT).as_posix() for p in FILES if "tileops_kernels" in _imports(p)}
    assert users <= {"resolve.py", "configs.py"}


def _imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_the_package_ships_its_style_script_and_type_marker():
    for name in ("py.typed", "report/style.css", "report/table.js"):
        assert (ROOT / name).is_file()
    assert importlib.util.find_spec("tileops_bench.__main__")
