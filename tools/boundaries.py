"""Check the boundaries between the stages: `python tools/boundaries.py CHECK`.

    declared            pyproject.toml, RULES.md and the environments agree with tools/stages.toml
    imports             sources import, and name in strings, only what their package declares
    lint-imports        the same through the whole import graph (needs import-linter)
    installed STAGE     the running environment holds what STAGE declares and nothing else of ours
    wheels              build and open every wheel, and import all of it alone (needs hatch)
    codeowners          every tracked file has an owner, the manifest one of its own
    rulesets            what the hosting service must enforce, and the workflows, say what the table says
    content             no stage holds what it must not hold (needs ast-grep)
    surface             the classes that the trust model names exist where it puts them
    scope BASE HEAD     one stage a change
    change BASE HEAD    scope, and the versions, tolerances and spec of the change (needs griffe)
    all                 declared, imports, codeowners, rulesets, surface, wheels

Prints what was checked. Exit status 1 where a boundary is broken, 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # PYTHONSAFEPATH keeps the script's own folder off the path

from boundary import (  # noqa: E402
    codeowners,
    content,
    declarations,
    imports,
    installed,
    layers,
    scope,
    surface,
    wheels,
)
from boundary.model import Finding, StageTable, load_table  # noqa: E402


def _declared(table: StageTable, _: argparse.Namespace) -> list[Finding]:
    return [
        *declarations.check_declarations(ROOT, table),
        *declarations.check_rules(ROOT, table),
        *declarations.check_kinds_of_file(ROOT, table),
        *declarations.check_environments(ROOT, table),
    ]


def _wheels(table: StageTable, _: argparse.Namespace) -> list[Finding]:
    return wheels.check_wheels(ROOT, table)


def _installed(table: StageTable, args: argparse.Namespace) -> list[Finding]:
    return installed.check_installed(ROOT, table, args.stage)


def _scope(table: StageTable, args: argparse.Namespace) -> list[Finding]:
    changes = scope.changed_paths(ROOT, args.base, args.head)
    bounds = scope.moved_bounds(ROOT, table, args.base, args.head, [path for _, path in changes])
    return scope.check_scope(table, changes, bounds)


def _change(table: StageTable, args: argparse.Namespace) -> list[Finding]:
    from boundary import change  # the environments of the stages, which run `installed`, lack griffe

    paths = [path for _, path in scope.changed_paths(ROOT, args.base, args.head)]
    judgement = change.judge_change(ROOT, table, args.base, args.head, paths)
    for note in judgement.notes:
        print(note)
    return [*_scope(table, args), *judgement.findings]


def _rulesets(table: StageTable, _: argparse.Namespace) -> list[Finding]:
    from boundary import rulesets  # reads YAML, which a bare interpreter lacks

    return [*rulesets.check_rulesets(ROOT), *rulesets.check_workflows(ROOT, table)]


def _content(table: StageTable, _: argparse.Namespace) -> list[Finding]:
    return [finding for found in content.check_content(ROOT, table).values() for finding in found]


CHECKS = {
    "declared": _declared,
    "imports": lambda table, _: imports.check_imports(ROOT, table),
    "lint-imports": lambda table, _: layers.check_layers(ROOT, table),
    "codeowners": lambda table, _: [
        *codeowners.check_codeowners(ROOT),
        *codeowners.check_apart(ROOT, table.stages["manifest"].folder),
    ],
    "wheels": _wheels,
    "installed": _installed,
    "rulesets": _rulesets,
    "content": _content,
    "surface": lambda table, _: surface.check_surface(ROOT, table),
    "scope": _scope,
    "change": _change,
}
ALL = ("declared", "imports", "codeowners", "rulesets", "surface", "wheels")


def main(argv: list[str] | None = None) -> int:
    table = load_table(ROOT)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="check", required=True)
    for name in (*CHECKS, "all"):
        command = commands.add_parser(name)
        if name == "installed":
            command.add_argument("stage", choices=list(table.stages))
        if name in ("scope", "change"):
            command.add_argument("base")
            command.add_argument("head")
    args = parser.parse_args(argv)
    broken = 0
    for name in ALL if args.check == "all" else (args.check,):
        findings = CHECKS[name](table, args)
        broken += len(findings)
        for finding in findings:
            print(finding, file=sys.stderr)
        print(f"{name}: {len(findings)} broken" if findings else f"{name}: held")
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
