"""Every clause of the trust model, checked: `hatch run tools:trust`.

A clause of tools/stages.toml is held when the checks that hold it find nothing in this tree, and the tests
that break it on purpose see it broken. Prints what was checked and `N clauses, N held`; exit status 1
otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # PYTHONSAFEPATH keeps the script's own folder off the path

import evidence  # noqa: E402
from boundary import (  # noqa: E402
    codeowners,
    content,
    declarations,
    entries,
    imports,
    layers,
    rulesets,
    surface,
    wheels,
)
from boundary.model import Clause, Finding, StageTable, load_table  # noqa: E402

Check = Callable[[Path, StageTable], list[Finding]]

CHECKS: dict[str, tuple[str, Check]] = {
    "rules": ("each RULES.md names its three lists", declarations.check_rules),
    "declared": ("packages declare the stages that they may see", declarations.check_declarations),
    "kinds": ("packages ship text that the checks can read", declarations.check_kinds_of_file),
    "environments": ("environments hold what a stage may see", declarations.check_environments),
    "imports": ("imports and names in strings are declared ones", imports.check_imports),
    "graph": ("no import reaches a hidden stage on a detour", layers.check_layers),
    "codeowners": ("every file has an owner", lambda root, table: codeowners.check_codeowners(root)),
    "apart": (
        "the manifest has owners of its own",
        lambda root, table: codeowners.check_apart(root, table.stages["manifest"].folder),
    ),
    "rulesets": (
        "branch and tag rules demand review and the gate",
        lambda root, _: rulesets.check_rulesets(root),
    ),
    "workflows": ("workflows show each stage its own, and judge by the base", rulesets.check_workflows),
    "entries": ("entries stand in the manifest alone", entries.check_entries),
    "labels": ("the implementation knows no workload by name", entries.check_labels),
    "registered": ("every registered kernel class exists", entries.check_registered),
    "records": (
        "an implemented op has a record in which it passed",
        lambda root, table: _records(root, table),
    ),
    "surface": ("the named classes stand where they belong", surface.check_surface),
    "subclasses": ("ops with structured inputs have workload classes", surface.check_subclasses),
    "units": ("what changes together, and what alone", lambda root, table: surface.check_units(table)),
    "wheels": (
        "wheels hold their stage's files and declared dependencies, and import alone",
        wheels.check_wheels,
    ),
}


def _records(root: Path, table: StageTable) -> list[Finding]:
    """That the records are of the state at hand is held by `tools/evidence.py`, which knows the digests."""
    statuses = {name: entry.get("status", {}) for name, entry in entries.entries(root, table).items()}
    digests: Mapping[str, dict[str, dict[str, str]]] = {
        target: {name: {} for name in statuses} for target in evidence.TARGETS
    }
    gaps = evidence.find_gaps(statuses, digests, evidence.read_records(root))
    return [Finding(f"{gap.op} on {gap.target}", gap.message) for gap in gaps if not gap.stale]


@dataclass(frozen=True)
class Row:
    """What came of one clause."""

    clause: Clause
    findings: tuple[str, ...]
    missed: tuple[str, ...]

    @property
    def held(self) -> bool:
        return not self.findings and not self.missed

    def data(self) -> dict:
        return asdict(self.clause) | {"held": self.held, "findings": self.findings, "missed": self.missed}


class Outcomes:
    """A pytest plugin that keeps how each test ended."""

    def __init__(self) -> None:
        self.passed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # pytest escapes what is not ASCII and control characters in a test's name.
        name = report.nodeid.rpartition("tools/tests/")[2]
        self.passed[name] = self.passed.get(name, True) and report.outcome == "passed"


def run_breaking_tests(root: Path, names: set[str]) -> dict[str, bool]:
    """Run the named tests; whether each passed. A name without parameters stands for all of its cases."""
    outcomes = Outcomes()
    files = sorted({f"{root}/tools/tests/{name.partition('::')[0]}" for name in names})
    functions = sorted({name.partition("::")[2].partition("[")[0] for name in names})
    options = [
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(root),
        "-c",
        str(root / "pyproject.toml"),
    ]
    with contextlib.redirect_stdout(io.StringIO()):  # what came of each test is in the rows
        pytest.main([*options, "-k", " or ".join(functions), *files], plugins=[outcomes])
    return outcomes.passed


def caught(name: str, passed: Mapping[str, bool]) -> bool:
    """Whether a breaking test exists and saw what it planted."""
    cases = [ok for test, ok in passed.items() if test == name or test.startswith(f"{name}[")]
    return bool(cases) and all(cases)


def judge(root: Path, table: StageTable, passed: Mapping[str, bool]) -> list[Row]:
    """Every clause with what its checks found and which of its breaking tests saw nothing."""
    found = {name: [str(f) for f in check(root, table)] for name, (_, check) in CHECKS.items()}
    by_rule = content.check_content(root, table)
    for rule in {n.partition(":")[2] for c in table.clauses for n in c.held_by if n.startswith("content:")}:
        found[f"content:{rule}"] = [str(f) for f in by_rule.get(rule, [])]
    return [
        Row(
            clause,
            tuple(f"{name}: {text}" for name in clause.held_by for text in found[name]),
            tuple(name for name in clause.breaks if not caught(name, passed)),
        )
        for clause in table.clauses
    ]


def report(table: StageTable, rows: list[Row]) -> None:
    """Print what was checked, and what came of each clause."""
    for name, (what, _) in CHECKS.items():
        print(f"checked {name}: {what}")
    rules = {name for clause in table.clauses for name in clause.held_by if name.startswith("content:")}
    print(f"checked content: {len(rules)} rules over the syntax trees, {len(table.allowed)} exceptions\n")
    for row in rows:
        clause = row.clause
        mark = "held" if row.held else "BROKEN"
        print(f"{clause.number:3} {mark:6} {clause.strength:10} {clause.part}: {clause.kind} {clause.text}")
        for text in (*row.findings, *(f"nothing breaks it: {name}" for name in row.missed)):
            print(f"           {text}")
    print(f"\n{len(rows)} clauses, {sum(row.held for row in rows)} held")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hatch run tools:trust", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    args = parser.parse_args(argv)
    table = load_table(ROOT)
    rows = judge(ROOT, table, run_breaking_tests(ROOT, {name for c in table.clauses for name in c.breaks}))
    held = sum(row.held for row in rows)
    if args.json:
        print(
            json.dumps({"clauses": len(rows), "held": held, "rows": [row.data() for row in rows]}, indent=1)
        )
    else:
        report(table, rows)
    return 0 if held == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
