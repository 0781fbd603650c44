"""The stage table (`tools/stages.toml`) and what a check reports."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finding:
    """One broken boundary: where, and what is wrong there."""

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True)
class Stage:
    """One stage: its package, the stages it may import, and distributions its environment must lack."""

    name: str
    dist: str
    module: str
    change: str
    depends: frozenset[str]
    absent: frozenset[str]

    @property
    def folder(self) -> str:
        return f"packages/{self.dist}"


@dataclass(frozen=True)
class Exemption:
    """A module that may be imported or named below a path, and why."""

    path: str
    module: str
    reason: str


@dataclass(frozen=True)
class Allowed:
    """An exception to a content rule: below a path, text that contains something, and why."""

    rule: str
    path: str
    reason: str
    contains: str = ""

    def covers(self, rule: str, path: str, text: str) -> bool:
        return rule == self.rule and path.startswith(self.path) and self.contains in text


@dataclass(frozen=True)
class Surface:
    """A class that the trust model names: where it stands, and what it has and must not have."""

    name: str
    stage: str
    bases: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Clause:
    """One clause of the trust model, in its own order.

    Attributes:
        part: the stage or section that it stands in.
        kind: OWNS, MUST NOT, MAY READ, or SAYS for a sentence beside the three lists.
        text: its words.
        held_by: names of the checks whose findings break it.
        strength: impossible, refused or reviewed.
        breaks: the tests that break it on purpose.
        why: what no check can see, where it is only reviewed.
    """

    number: int
    part: str
    kind: str
    text: str
    held_by: tuple[str, ...]
    strength: str
    breaks: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True)
class StageTable:
    """All stages, plus the few facts about third-party names that imports need.

    `together` names the one environment that may hold stages which may not see each other.
    """

    stages: dict[str, Stage]
    provides: dict[str, tuple[str, ...]]
    test_imports: frozenset[str]
    exemptions: tuple[Exemption, ...]
    allowed: tuple[Allowed, ...]
    surface: tuple[Surface, ...]
    clauses: tuple[Clause, ...]
    together: str
    alone: frozenset[str]
    travels: tuple[str, ...]

    def closure(self, name: str) -> frozenset[str]:
        """The stage itself and every stage it may see."""
        return frozenset({name}).union(*(self.closure(other) for other in self.stages[name].depends))

    def by_module(self, module: str) -> Stage | None:
        return next((stage for stage in self.stages.values() if stage.module == module), None)


def load_table(root: Path) -> StageTable:
    """Read `tools/stages.toml` below `root`."""
    data = tomllib.loads((root / "tools/stages.toml").read_text(encoding="utf-8"))
    stages = {
        name: Stage(name=name, dist=s["dist"], module=s["module"], change=s["change"],
                    depends=frozenset(s["depends"]), absent=frozenset(s["absent"]))
        for name, s in data["stage"].items()
    }  # fmt: skip
    return StageTable(
        stages=stages,
        provides={normalise(dist): tuple(names) for dist, names in data["provides"].items()},
        test_imports=frozenset(data["tests"]["imports"]),
        exemptions=tuple(Exemption(**exception) for exception in data.get("exception", ())),
        allowed=tuple(Allowed(**exception) for exception in data.get("allowed", ())),
        surface=tuple(Surface(**_tuples(row)) for row in data.get("surface", ())),
        clauses=tuple(Clause(number=n, **_tuples(row)) for n, row in enumerate(data.get("clause", ()), 1)),
        together=data["together"]["environment"],
        alone=frozenset(data["change"]["alone"]),
        travels=tuple(data["change"]["travels"]),
    )


def _tuples(row: dict) -> dict:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def normalise(dist: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", dist).lower()


def requirement_name(requirement: str) -> str:
    """`tileops-manifest>=0.1,<0.2` -> `tileops-manifest`."""
    return normalise(re.match(r"[A-Za-z0-9._-]+", requirement).group())


def project(root: Path, stage: Stage) -> dict:
    """The `[project]` table of a stage's pyproject.toml."""
    path = root / stage.folder / "pyproject.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"]


def declared(root: Path, stage: Stage, *, extras: bool = False) -> frozenset[str]:
    """Names of the distributions that a stage's package declares, its optional ones included on request."""
    table = project(root, stage)
    requirements = list(table.get("dependencies", []))
    if extras:
        requirements += [r for group in table.get("optional-dependencies", {}).values() for r in group]
    return frozenset(requirement_name(r) for r in requirements)
