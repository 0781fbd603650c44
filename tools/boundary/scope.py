"""One change touches one stage; the manifest and the infrastructure change alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .model import Finding, StageTable

SYMLINK, SUBMODULE = "120000", "160000"


def changed_paths(root: Path, base: str, head: str) -> list[tuple[str, str]]:
    """(mode after the change, path) of each file that differs; a move shows as both of its sides."""
    command = ["git", "diff", "--raw", "-z", "--no-renames", f"{base}...{head}"]
    fields = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    return [(meta.split()[1], path) for meta, path in zip(fields[0::2], fields[1::2], strict=False)]


def owner(table: StageTable, path: str) -> str | None:
    """The unit of change that a path belongs to, or None where it may travel with any."""
    for stage in table.stages.values():
        if path.startswith(f"{stage.folder}/"):
            return stage.change
    return None if path.startswith(table.travels) else "infra"


def check_scope(table: StageTable, changes: list[tuple[str, str]]) -> list[Finding]:
    """Judge the changed paths of one pull request."""
    findings = [
        Finding(path, "symbolic links and submodules reach across stages and are refused")
        for mode, path in changes
        if mode in (SYMLINK, SUBMODULE)
    ]
    units: dict[str, list[str]] = {}
    for _, path in changes:
        unit = owner(table, path)
        if unit is not None:
            units.setdefault(unit, []).append(path)
    if len(units) > 1:
        listed = "; ".join(
            f"{unit}: {paths[0]}" + (f" (+{len(paths) - 1})" if paths[1:] else "")
            for unit, paths in sorted(units.items())
        )
        rule = "must change alone" if units.keys() & table.alone else "one stage a change"
        findings.append(Finding("change", f"touches {sorted(units)}; {rule} ({listed})"))
    return findings
