"""What one change does to the versions, the tolerances and the spec: judged between two revisions.

A package whose shipped content changes gets a higher version, at least as high as the change demands, and a
line about it in its CHANGELOG. The size comes from the entries (`tileops_manifest.diff`) and from the public
names (griffe). Lines that only move a sibling's version bound change nothing of a package's own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import griffe

from tileops_manifest import ManifestError, load_manifest
from tileops_manifest.diff import ADDITIVE, BREAKING, NEUTRAL, Change, diff_manifests, next_version

from .model import Finding, Stage, StageTable
from .scope import merge_base, without_bounds

_KINDS = (NEUTRAL, ADDITIVE, BREAKING)
_ENTRIES = "ops"
_CALIBRATION = "calibration.json"
_LEDGER = "known_failures.toml"
# What decides a verdict beside the constants: a change here can loosen it without moving a number.
_JUDGES = (
    "tolerance.py",
    "comparator.py",
    "reference.py",
    "precision.py",
    "sensitivity.py",
    "judge.py",
    "limits.py",
)
_NARROWING = re.compile(
    r"^(op|rules|dims\.|workloads\.|numerics|params\.\w+\.(type|choices)|inputs\.\w+\.(dtype|shape|optional|values))"
)


@dataclass
class Judgement:
    """What is wrong with a change, and what its reviewers must be told."""

    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Revision:
    """One revision's packages, laid out in a folder."""

    def __init__(self, repository: Path, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        # Not `git archive`: it leaves out what a .gitattributes of the change itself marks as export-ignore.
        folder.mkdir(parents=True)
        environment = os.environ | {"GIT_INDEX_FILE": str(folder.with_suffix(".index"))}
        for words in (["read-tree", name], ["checkout-index", "--all", f"--prefix={folder}/"]):
            subprocess.run(["git", *words], cwd=repository, env=environment, check=True, capture_output=True)

    def text(self, path: str) -> str | None:
        """A file's text, None where the revision lacks it."""
        found = self.folder / path
        return found.read_text(encoding="utf-8") if found.is_file() else None

    def project(self, stage: Stage) -> dict:
        return tomllib.loads(self.text(f"{stage.folder}/pyproject.toml") or "").get("project", {})

    def version(self, stage: Stage) -> str:
        return self.project(stage).get("version", "0.0.0")


def judge_change(root: Path, table: StageTable, base: str, head: str, paths: list[str]) -> Judgement:
    """Judge the change from `base` to `head`; `paths` are those that differ."""
    judgement = Judgement()
    with tempfile.TemporaryDirectory() as scratch:
        old = Revision(root, merge_base(root, base, head), Path(scratch) / "old")
        new = Revision(root, head, Path(scratch) / "new")
        for stage in table.stages.values():
            changed = [path for path in paths if path.startswith(f"{stage.folder}/")]
            if changed and (new.folder / stage.folder).is_dir() and (old.folder / stage.folder).is_dir():
                _judge_package(judgement, table, stage, old, new, changed)
        _judge_tolerance(judgement, table.stages["tests"], old, new)
    return judgement


def _judge_package(
    judgement: Judgement, table: StageTable, stage: Stage, old: Revision, new: Revision, changed: list[str]
) -> None:
    if not ships_something_else(table, stage, old, new, changed):
        return
    kind, notes = demanded(stage, old, new)
    judgement.notes += notes
    before, after = old.version(stage), new.version(stage)
    least = next_version(before, kind)
    if _number(after) < _number(least):
        message = f"the version is {after}, but a {kind} change of {before} demands at least {least}"
        judgement.findings.append(Finding(f"{stage.folder}/pyproject.toml", message))
    if not describes(new.text(f"{stage.folder}/CHANGELOG.md") or "", after) or (
        new.text(f"{stage.folder}/CHANGELOG.md") == old.text(f"{stage.folder}/CHANGELOG.md")
    ):
        message = f"has no line about this change under a heading `## {after}`"
        judgement.findings.append(Finding(f"{stage.folder}/CHANGELOG.md", message))


def ships_something_else(
    table: StageTable, stage: Stage, old: Revision, new: Revision, changed: list[str]
) -> bool:
    """Whether what a wheel of the package holds differs, version and siblings' bounds apart."""
    if any(path.startswith(f"{stage.folder}/src/") for path in changed):
        return True
    return without_bounds(table, old.project(stage)) != without_bounds(table, new.project(stage))


def demanded(stage: Stage, old: Revision, new: Revision) -> tuple[str, list[str]]:
    """The kind of the change, and notes that name what it takes away."""
    kinds, notes = [NEUTRAL], []
    for kind, what in public_changes(stage, old, new):
        kinds.append(kind)
        if kind == BREAKING:
            notes.append(f"{stage.dist}: breaking: {what}")
    if stage.name == "manifest":
        for change in spec_changes(stage, old, new):
            kinds.append(change.kind)
            if change.kind == BREAKING:
                narrower = "narrowed" if _NARROWING.match(change.where) else "breaking"
                notes.append(f"{stage.dist}: spec {narrower}: {change}")
    return max(kinds, key=_KINDS.index), notes


def public_changes(stage: Stage, old: Revision, new: Revision) -> Iterator[tuple[str, str]]:
    """(kind, description) of each change of the public names that a package exports."""
    modules = [
        griffe.load(
            stage.module,
            search_paths=[revision.folder / stage.folder / "src"],
            allow_inspection=False,
            resolve_aliases=True,
        )
        for revision in (old, new)
    ]
    before, after = map(_public, modules)
    for name in sorted(before - after):
        yield BREAKING, f"{name} is gone"
    for name in sorted(after - before):
        yield ADDITIVE, f"{name} is new"
    for breakage in griffe.find_breaking_changes(*modules):
        if breakage.obj.path in before:
            values = (breakage.old_value, breakage.new_value)
            name = next((f"({value.name})" for value in values if isinstance(value, griffe.Parameter)), "")
            yield BREAKING, f"{breakage.obj.path}{name}: {breakage.kind.value.lower()}"


def _public(module: griffe.Module) -> set[str]:
    """Paths of what a package offers: the members of its top module and their public members."""
    found = set()
    for name, member in module.members.items():
        if name.startswith("_") or (member.is_alias and not member.is_exported):
            continue
        found.add(f"{module.path}.{name}")
        target = member.final_target if member.is_alias and member.resolved else member
        if target.is_class:
            found |= {f"{target.path}.{m}" for m in target.members if not m.startswith("_")}
            found.add(target.path)
    return found


def spec_changes(stage: Stage, old: Revision, new: Revision) -> list[Change]:
    """Changes of the entries, by the grammar of the revision that judges.

    A manifest that it cannot read has a new grammar, which is breaking by itself.
    """
    folders = [revision.folder / stage.folder / "src" / stage.module / _ENTRIES for revision in (old, new)]
    try:
        before, after = (load_manifest(folder) for folder in folders)
    except ManifestError as error:
        return [Change("*", BREAKING, "grammar", f"entries that the base revision cannot read: {error}")]
    return list(diff_manifests(before.entries, after.entries))


def _judge_tolerance(judgement: Judgement, stage: Stage, old: Revision, new: Revision) -> None:
    """A loosened tolerance is named; it takes a record of its calibration and a minor version."""
    place = f"{stage.folder}/src/{stage.module}/{_CALIBRATION}"
    before, after = (json.loads(r.text(place) or "{}") for r in (old, new))
    loosened = list(looser(before.get("constants", []), after.get("constants", [])))
    judgement.notes += [f"{stage.dist}: tolerance loosened: {what}" for what in loosened]
    if loosened and len(after.get("records", [])) <= len(before.get("records", [])):
        judgement.findings.append(Finding(place, "is loosened without a new calibration record"))
    if loosened and _number(new.version(stage))[:2] <= _number(old.version(stage))[:2]:
        judgement.findings.append(
            Finding(f"{stage.folder}/pyproject.toml", "a loosened tolerance demands a minor version")
        )
    for name in _JUDGES:
        path = f"{stage.folder}/src/{stage.module}/{name}"
        if old.text(path) != new.text(path):
            judgement.notes.append(f"{stage.dist}: the judge changed: {name} decides what passes")
    ledger = f"{stage.folder}/src/{stage.module}/{_LEDGER}"
    known = [tomllib.loads(r.text(ledger) or "").get("failure", []) for r in (old, new)]
    for failure in known[1]:
        if failure not in known[0]:
            judgement.notes.append(f"{stage.dist}: known failure added: {failure['op']} {failure['case']}")


def looser(before: list[dict], after: list[dict]) -> Iterator[str]:
    """Each constant that became larger than what spoke for its op and target before."""
    old = {(row["op"], row["target"]): row for row in before}
    for row in after:
        op, target = row["op"], row["target"]
        spoke = next(
            (old[key] for key in ((op, target), (op, "*"), ("*", target), ("*", "*")) if key in old), None
        )
        for name in ("k", "c", "c2"):
            if spoke is None or row[name] > spoke[name]:
                was = "absent" if spoke is None else spoke[name]
                yield f"{name} of op {op!r}, target {target!r}: {was} became {row[name]}"
    kept = {(row["op"], row["target"]) for row in after}
    for op, target in old.keys() - kept:
        yield f"the row of op {op!r}, target {target!r} is gone, so a wider one speaks"


def describes(changelog: str, version: str) -> bool:
    """Whether a changelog has a heading for a version with a line under it."""
    section = re.search(
        rf"^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    return bool(section and section[1].strip())


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
