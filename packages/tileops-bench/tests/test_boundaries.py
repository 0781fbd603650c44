"""This stage reads what it may read, judges no values, and its examples are true."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
from pathlib import Path

import pytest

import tileops_bench

ROOT = Path(tileops_bench.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ALLOWED = {"tileops_bench", "tileops_manifest", "tileops_workloads", "tileops_kernels"}
COMPARISONS = {"allclose", "assert_close", "isclose"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_file_imports_allowed_stages_only_and_compares_no_values(path):
    tree = ast.parse(path.read_text())
    assert {name for name in imports(tree) if name.startswith("tileops_")} <= ALLOWED
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not called & COMPARISONS


def test_only_the_measuring_process_imports_kernels():
    users = {
        p.relative_to(ROOT).as_posix()
        for p in FILES
        if "tileops_kernels" in imports(ast.parse(p.read_text()))
    }
    assert users == {"resolve.py", "configs.py"}


def imports(tree: ast.AST) -> set[str]:
    """Top-level names of everything that a module imports, at any depth."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_in_docstrings_are_true(path):
    if path.name == "__main__.py":
        assert ">>>" not in path.read_text()
        return
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    module = importlib.import_module(".".join(p for p in parts if p != "__init__"))
    assert doctest.testmod(module).failed == 0


def test_the_package_ships_its_style_script_and_type_marker():
    for name in ("py.typed", "report/style.css", "report/table.js"):
        assert (ROOT / name).is_file()
    assert importlib.util.find_spec("tileops_bench.__main__")
