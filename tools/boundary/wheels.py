"""A stage's wheel holds that stage's files, and its metadata the declared dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

from .alone import check_wheels_alone
from .model import Finding, Stage, StageTable, declared, requirement_name


class WheelBuildError(RuntimeError):
    """A package does not build."""


def check_wheels(root: Path, table: StageTable) -> list[Finding]:
    """Build every stage's wheel, look into it, and import all of it in an environment of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        built = build_wheels(root, table, Path(scratch))
        held = [f for name, wheel in built.items() for f in check_wheel(root, table.stages[name], wheel)]
        return [*held, *check_wheels_alone(root, table, built)]


def build_wheels(root: Path, table: StageTable, out: Path) -> dict[str, Path]:
    """Build every stage's wheel into `out/<stage>/` and return their paths.

    Raises:
        WheelBuildError: a build failed; carries what the builder printed.
    """
    wheels = {}
    # Inside `hatch run` this names an environment of the root, which the package's own project does not have.
    environment = {name: value for name, value in os.environ.items() if name != "HATCH_ENV_ACTIVE"}
    for name, stage in table.stages.items():
        target = out / name
        command = [sys.executable, "-m", "hatch", "build", "-t", "wheel", str(target)]
        done = subprocess.run(
            command, cwd=root / stage.folder, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise WheelBuildError(f"{stage.dist}: {(done.stdout + done.stderr).strip()}")
        (wheels[name],) = target.glob("*.whl")
    return wheels


def check_wheel(root: Path, stage: Stage, wheel: Path) -> list[Finding]:
    """Look into one built wheel."""
    findings = []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(n.partition("/")[0] for n in names if n.partition("/")[0].endswith(".dist-info"))
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
        entry_points = (
            archive.read(f"{info}/entry_points.txt").decode() if f"{info}/entry_points.txt" in names else ""
        )
    for name in names:
        if name.partition("/")[0] not in (stage.module, info):
            findings.append(Finding(wheel.name, f"{name} lies outside {stage.module}/"))
    for needed in (f"{stage.module}/__init__.py", f"{stage.module}/py.typed"):
        if needed not in names:
            findings.append(Finding(wheel.name, f"{needed} is missing"))
    if not any(n.startswith(f"{info}/") and n.endswith("LICENSE") for n in names):
        findings.append(Finding(wheel.name, "ships no licence text"))
    required = {requirement_name(r) for r in metadata.get_all("Requires-Dist") or () if "extra ==" not in r}
    if required != declared(root, stage):
        findings.append(
            Finding(wheel.name, f"requires {sorted(required)}, declared {sorted(declared(root, stage))}")
        )
    commands = [line.partition("=")[0].strip() for line in entry_points.splitlines() if "=" in line]
    if set(commands) - {stage.dist}:
        findings.append(Finding(wheel.name, f"installs the commands {commands}, expected {stage.dist} alone"))
    groups = [line.strip("[] ") for line in entry_points.splitlines() if line.startswith("[")]
    if set(groups) - {"console_scripts"}:
        findings.append(
            Finding(wheel.name, f"registers entry points {groups}; only console_scripts is allowed")
        )
    return findings
