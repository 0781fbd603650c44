"""Declared dependencies and environments agree with the stage table."""

from __future__ import annotations

import tomllib
from pathlib import Path

from .model import Finding, StageTable, declared, normalise, project


def check_declarations(root: Path, table: StageTable) -> list[Finding]:
    """A package declares exactly the stages that it may see, and ships its rules and licence."""
    findings = []
    dists = {normalise(stage.dist): name for name, stage in table.stages.items()}
    for stage in table.stages.values():
        place = f"{stage.folder}/pyproject.toml"
        siblings = {dists[d] for d in declared(root, stage, extras=True) if d in dists}
        if siblings != stage.depends:
            findings.append(
                Finding(place, f"declares stages {sorted(siblings)}, expected {sorted(stage.depends)}")
            )
        findings += [Finding(place, problem) for problem in _problems(project(root, stage), stage.dist)]
        groups = set(project(root, stage).get("entry-points", {}))
        if groups:
            findings.append(
                Finding(place, f"entry points run inside other stages' processes: {sorted(groups)}")
            )
        for name in ("README.md", "RULES.md", "CHANGELOG.md", "LICENSE", f"src/{stage.module}/py.typed"):
            if not (root / stage.folder / name).is_file():
                findings.append(Finding(f"{stage.folder}/{name}", "is missing"))
    return findings


def _problems(table: dict, dist: str) -> list[str]:
    """What a `[project]` table must not say, whatever it depends on."""
    found = []
    scripts = {*table.get("scripts", {}), *table.get("gui-scripts", {})}
    if scripts - {dist}:
        # A script called `pytest` would run in place of the one that judges.
        found.append(f"installs the commands {sorted(scripts)}, expected {dist} alone")
    if "dependencies" in table.get("dynamic", ()):
        found.append("dependencies are computed by the build: they cannot be read before it")
    direct = [r for r in table.get("dependencies", []) if "@" in r]
    if direct:
        found.append(f"takes {direct} from a place of its own, not by name")
    return found


# Kinds of file that the checks can read, or that cannot run.
_READABLE = frozenset({".py", ".typed", ".yaml", ".toml", ".json", ".css", ".js"})


def check_kinds_of_file(root: Path, table: StageTable) -> list[Finding]:
    """A package ships text that the checks read: no compiled code, no sources of other languages.

    The implementation's C headers are what its targets compile against.
    """
    findings = []
    for name, stage in table.stages.items():
        allowed = _READABLE | ({".h"} if name == "kernels" else frozenset())
        for path in sorted((root / stage.folder / "src").rglob("*")):
            if path.is_file() and path.suffix not in allowed and "__pycache__" not in path.parts:
                place = path.relative_to(root).as_posix()
                findings.append(
                    Finding(place, f"is a {path.suffix or 'nameless'} file, which no check reads")
                )
    return findings


def check_rules(root: Path, table: StageTable) -> list[Finding]:
    """Each RULES.md names its three clauses and the package's dependencies."""
    findings = []
    for stage in table.stages.values():
        path = root / stage.folder / "RULES.md"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        for clause in ("OWNS", "MUST NOT", "MAY READ"):
            if clause not in text:
                findings.append(Finding(f"{stage.folder}/RULES.md", f"does not say what the stage {clause}"))
    return findings


def check_environments(root: Path, table: StageTable) -> list[Finding]:
    """The root's matrix and wheels environments hold, per stage, the stage and what it may see; of the others
    one alone holds stages that may not see each other."""
    environments = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"][
        "envs"
    ]
    matrix = environments["matrix"]["overrides"]["matrix"]["stage"]["workspace"]["members"]
    wheels = environments["wheels"]["overrides"]["matrix"]["stage"]["dependencies"]
    findings = []
    for env, members in (("matrix", matrix), ("wheels", wheels)):
        if environments[env]["matrix"] != [{"stage": list(table.stages)}]:
            findings.append(Finding("pyproject.toml", f"{env}: the stages are not {list(table.stages)}"))
        for name in table.stages:
            found = {_folder(m) for m in members if isinstance(m, str) or name in m["if"]}
            expected = _folders(table, name)
            if found != expected:
                findings.append(
                    Finding(
                        "pyproject.toml", f"{env}.{name} holds {sorted(found)}, expected {sorted(expected)}"
                    )
                )
    for env in environments.keys() - {"matrix", "wheels"}:
        held = _held(environments[env])
        apart = not any(held <= _folders(table, name) for name in table.stages)
        if apart != (env == table.together):
            found = f"{env} holds {sorted(held)}"
            expected = "all stages" if env == table.together else "stages that may see each other"
            findings.append(Finding("pyproject.toml", f"{found}, expected {expected}"))
    sources = environments["matrix"].get("sources", {})
    for stage in table.stages.values():
        if sources.get(stage.dist) != stage.folder:
            findings.append(
                Finding("pyproject.toml", f"matrix.sources does not pin {stage.dist} to {stage.folder}")
            )
    return findings


def _folders(table: StageTable, name: str) -> set[str]:
    """Folders of a stage and of what it may see."""
    return {table.stages[other].folder for other in table.closure(name)}


def _held(environment: dict) -> set[str]:
    """Folders of the packages that an environment of one stage or of none installs."""
    members = [*environment.get("workspace", {}).get("members", ()), *environment.get("dependencies", ())]
    return {_folder(member) for member in members if "packages/" in str(member)}


def _folder(member: str | dict) -> str:
    text = member if isinstance(member, str) else member["value"]
    return text[text.index("packages/") :]
