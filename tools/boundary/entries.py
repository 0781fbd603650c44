"""Entries stand in the manifest alone, and the implementation cannot tell a workload by its name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import yaml

from .model import Finding, StageTable

# A plain word (`ragged`, `ceil`) may mean something else to a program; `llama-8b-prefill` may not.
_TELLING = re.compile(r"[-\d]")


def check_entries(root: Path, table: StageTable) -> list[Finding]:
    """No data file that another package ships reads like an entry: ops, or inputs beside outputs."""
    manifest = table.stages["manifest"]
    findings = []
    for path in sorted((root / "packages").glob("*/src/**/*.y*ml")):
        place = path.relative_to(root).as_posix()
        if place.startswith(f"{manifest.folder}/"):
            continue
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and ("ops" in data or {"inputs", "outputs"} <= data.keys()):
            findings.append(Finding(place, "reads like a manifest entry, which only the manifest may hold"))
    return findings


def check_labels(root: Path, table: StageTable) -> list[Finding]:
    """The label of no workload row is a string in the implementation's sources."""
    labels = workload_labels(root, table)
    findings = []
    stage = table.stages["kernels"]
    for path in sorted((root / stage.folder / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in labels:
                place = f"{path.relative_to(root).as_posix()}:{node.lineno}"
                findings.append(Finding(place, f"knows the workload {node.value!r}"))
    return findings


def check_registered(root: Path, table: StageTable) -> list[Finding]:
    """Each class that the kernel_map of an implemented entry registers is a Kernel of the implementation."""
    stage = table.stages["kernels"]
    defined = {
        node.name
        for path in sorted((root / stage.folder / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    return [
        Finding(name, f"its kernel_map registers {kernel}, which {stage.dist} does not define")
        for name, entry in entries(root, table).items()
        if "implemented" in entry.get("status", {}).values()
        for kernel in entry.get("kernel_map", {}).values()
        if kernel not in defined
    ]


def entries(root: Path, table: StageTable) -> dict[str, dict]:
    """Every entry below `root`, as it is written."""
    stage = table.stages["manifest"]
    files = sorted((root / stage.folder / "src" / stage.module / "ops").glob("*.yaml"))
    return {
        name: entry
        for path in files
        for name, entry in yaml.safe_load(path.read_text(encoding="utf-8"))["ops"].items()
    }


def workload_labels(root: Path, table: StageTable) -> frozenset[str]:
    """Labels of the rows of every entry below `root` that can mean nothing else."""
    found = entries(root, table).values()
    labels = {row["label"] for entry in found for row in entry["workloads"]}
    return frozenset(label for label in labels if _TELLING.search(label))
