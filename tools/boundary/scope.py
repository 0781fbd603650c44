"""One change touches one stage; the manifest and the infrastructure change alone."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

from .model import Finding, StageTable, normalise, requirement_name

SYMLINK, SUBMODULE, GONE = "120000", "160000", "000000"


def changed_paths(root: Path, base: str, head: str) -> list[tuple[str, str]]:
    """(mode after the change, path) of each file that differs; a move shows as both of its sides."""
    fields = _git(root, "diff", "--raw", "-z", "--no-renames", f"{base}...{head}").split("\0")
    return [(meta.split()[1], path) for meta, path in zip(fields[0::2], fields[1::2], strict=False)]


def merge_base(root: Path, base: str, head: str) -> str:
    """Where the change began: `base` may have moved on since."""
    return _git(root, "merge-base", base, head).strip()


def moved_bounds(root: Path, table: StageTable, base: str, head: str, paths: list[str]) -> frozenset[str]:
    """The pyproject.toml of packages in which nothing but a sibling's version bound differs."""
    manifests = {f"{stage.folder}/pyproject.toml" for stage in table.stages.values()}.intersection(paths)
    start, found = merge_base(root, base, head), set()
    for path in manifests:
        try:
            before, after = (_git(root, "show", f"{revision}:{path}") for revision in (start, head))
        except subprocess.CalledProcessError:  # added or removed: more than a bound
            continue
        if bounds_only(table, before, after):
            found.add(path)
    return frozenset(found)


def bounds_only(table: StageTable, before: str, after: str) -> bool:
    """Whether two texts of a pyproject.toml differ in the version bounds of siblings alone."""
    old, new = tomllib.loads(before), tomllib.loads(after)
    if old.get("project", {}).get("version") != new.get("project", {}).get("version"):
        return False
    return all(
        without_bounds(table, old.get(key)) == without_bounds(table, new.get(key))
        for key in old.keys() | new.keys()
    )


def without_bounds(table: StageTable, project: object) -> object:
    """A table of a pyproject.toml without the package's own version, and with siblings by name alone."""
    if not isinstance(project, dict):
        return project
    siblings = {normalise(stage.dist) for stage in table.stages.values()}

    def short(requirement: str) -> str:
        name = requirement_name(requirement)
        return name if name in siblings else requirement

    kept = {key: value for key, value in project.items() if key != "version"}
    if "dependencies" in kept:
        kept["dependencies"] = sorted(map(short, kept["dependencies"]))
    return kept


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout


def owner(table: StageTable, path: str) -> str | None:
    """The unit of change that a path belongs to, or None where it may travel with any."""
    for stage in table.stages.values():
        if path.startswith(f"{stage.folder}/"):
            return stage.change
    return None if path.startswith(table.travels) else "infra"


def check_scope(
    table: StageTable, changes: list[tuple[str, str]], travelling: frozenset[str] = frozenset()
) -> list[Finding]:
    """Judge the changed paths of one pull request; those in `travelling` may accompany any stage."""
    findings = [
        Finding(path, "symbolic links and submodules reach across stages and are refused")
        for mode, path in changes
        if mode in (SYMLINK, SUBMODULE)
    ]
    folders = tuple(f"{stage.folder}/" for stage in table.stages.values())
    findings += [
        Finding(path, "lies in packages/ and belongs to no stage")
        for mode, path in changes
        if path.startswith("packages/") and not path.startswith(folders) and mode != GONE
    ]
    units: dict[str, list[str]] = {}
    for _, path in changes:
        unit = owner(table, path)
        if unit is not None and path not in travelling:
            units.setdefault(unit, []).append(path)
    if len(units) > 1:
        listed = "; ".join(
            f"{unit}: {paths[0]}" + (f" (+{len(paths) - 1})" if paths[1:] else "")
            for unit, paths in sorted(units.items())
        )
        rule = "must change alone" if units.keys() & table.alone else "one stage a change"
        findings.append(Finding("change", f"touches {sorted(units)}; {rule} ({listed})"))
    return findings
