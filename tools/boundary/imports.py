"""What a stage's sources import, or name in a string, is what its package declares."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from .model import Finding, Stage, StageTable, declared, normalise


def check_imports(root: Path, table: StageTable) -> list[Finding]:
    """Every import, wherever it stands, and every string that reads like a sibling module."""
    findings = []
    for stage in table.stages.values():
        allowed = _allowed_modules(root, table, stage)
        folder = root / stage.folder
        for path in sorted(folder.rglob("*.py")):
            in_tests = path.is_relative_to(folder / "tests")
            names = allowed | table.test_imports if in_tests or stage.name == "tests" else allowed
            exempt = {
                e.module for e in table.exemptions if path.relative_to(root).as_posix().startswith(e.path)
            }
            findings += _check_file(root, path, table, stage, names | exempt)
    return findings


def _allowed_modules(root: Path, table: StageTable, stage: Stage) -> frozenset[str]:
    third_party = {
        module
        for dist in declared(root, stage, extras=True)
        for module in table.provides.get(dist, (normalise(dist).replace("-", "_"),))
    }
    siblings = {table.stages[name].module for name in table.closure(stage.name)}
    return frozenset(sys.stdlib_module_names) | third_party | siblings


def _check_file(
    root: Path, path: Path, table: StageTable, stage: Stage, allowed: frozenset[str]
) -> list[Finding]:
    place = path.relative_to(root)
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(place))
    findings = []
    for line, module in _imported(tree):
        top = module.partition(".")[0]
        if top not in allowed and not _is_local(path, top):
            findings.append(
                Finding(f"{place}:{line}", f"imports {module}, which {stage.dist} does not declare")
            )
    visible = {table.stages[name].module for name in table.closure(stage.name)}
    hidden = [other.module for other in table.stages.values() if other.module not in visible | allowed]
    docstrings = _docstring_lines(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno not in docstrings:
            for module in hidden:
                if re.search(rf"\b{module}\b", node.value):
                    findings.append(
                        Finding(f"{place}:{node.lineno}", f"names {module}, which {stage.name} may not see")
                    )
    return findings


def _imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""


def _is_local(path: Path, top: str) -> bool:
    """A module beside the importing file, as test helpers and standalone scripts have."""
    return (path.parent / f"{top}.py").is_file() or (path.parent / top).is_dir()


def _docstring_lines(tree: ast.AST) -> frozenset[int]:
    """Docstrings may speak of other stages; code may not."""
    scopes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(
        scope.body[0].lineno
        for scope in ast.walk(tree)
        if isinstance(scope, scopes) and scope.body and isinstance(scope.body[0], ast.Expr)
        and isinstance(scope.body[0].value, ast.Constant)
    )  # fmt: skip
