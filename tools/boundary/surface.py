"""The classes that the trust model names: where they are, what they derive from, what they offer."""

from __future__ import annotations

import ast
from pathlib import Path

from .model import Finding, StageTable, Surface


def check_surface(root: Path, table: StageTable) -> list[Finding]:
    """Each named class stands in its stage, with its bases and members, and in no other stage."""
    classes = {name: _classes(root / stage.folder / "src") for name, stage in table.stages.items()}
    return [finding for wanted in table.surface for finding in check_one(wanted, classes)]


def check_one(wanted: Surface, classes: dict[str, dict[str, ast.ClassDef]]) -> list[Finding]:
    """Findings about one class; `classes` are those of every stage, by name."""
    place = f"{wanted.stage}: {wanted.name}"
    findings = [
        Finding(f"{other}: {wanted.name}", f"belongs to {wanted.stage}, and is defined here too")
        for other, found in classes.items()
        if other != wanted.stage and wanted.name in found
    ]
    node = classes[wanted.stage].get(wanted.name)
    if node is None:
        return [*findings, Finding(place, "is not defined")]
    bases = {ast.unparse(base) for base in node.bases}
    findings += [Finding(place, f"does not derive from {base}") for base in wanted.bases if base not in bases]
    members = {n.name for n in node.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    members |= {
        n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
    members |= {
        t.id for n in node.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
    }
    findings += [Finding(place, f"lacks {name}") for name in wanted.members if name not in members]
    findings += [Finding(place, f"must not have {name}") for name in wanted.without if name in members]
    return findings


def check_units(table: StageTable) -> list[Finding]:
    """A change sees workloads and tests as one unit, every other stage as its own; the spec comes alone."""
    units = {name: stage.change for name, stage in table.stages.items()}
    expected = {name: "test" if name in ("workloads", "tests") else name for name in units}
    findings = [
        Finding(f"stage {name}", f"changes as {units[name]!r}, expected {unit!r}")
        for name, unit in expected.items()
        if units[name] != unit
    ]
    return findings + [
        Finding("change", f"{name} must change alone")
        for name in ("manifest", "infra")
        if name not in table.alone
    ]


def check_subclasses(root: Path, table: StageTable) -> list[Finding]:
    """Ops whose inputs have structure have workload classes of their own."""
    classes = _classes(root / table.stages["workloads"].folder / "src")
    found = [n for n, node in classes.items() if "WorkloadBase" in {ast.unparse(base) for base in node.bases}]
    return [] if found else [Finding("workloads", "no class derives from WorkloadBase")]


def _classes(folder: Path) -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
