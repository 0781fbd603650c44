"""Command line: ``tileops-manifest``.

Exit codes: 0 success, 1 an invalid manifest, 2 wrong usage or no way to write, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tileops_manifest import __version__, describe
from tileops_manifest.diff import diff_manifests, next_version, worst
from tileops_manifest.entry import Entry
from tileops_manifest.errors import ManifestError, UnknownOpError
from tileops_manifest.loader import PACKAGED, load_manifest, validate_path
from tileops_manifest.model import FileModel
from tileops_manifest.skeleton import skeleton

OK, INVALID, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()  # a full disk shows here, not after the exit code is decided
        return code
    except ManifestError as error:
        print(error, file=sys.stderr)
        return INVALID
    except (UnknownOpError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:
        _silence_stdout()  # the reader went away (`| head`): not an error
        return OK
    except OSError as error:
        _silence_stdout()
        print(f"error: cannot write: {error.strerror}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED


def _silence_stdout() -> None:
    """Keep the interpreter's final flush from failing once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tileops-manifest", description="The operators of tileops, as data."
    )
    parser.add_argument("--version", action="version", version=f"tileops-manifest {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, run: Any, help: str, manifest: bool = True, as_json: bool = True
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help, description=help)
        sub.set_defaults(run=run)
        if manifest:
            sub.add_argument(
                "--manifest", metavar="PATH", help="entries of your own: a file or a folder of *.yaml"
            )
        if as_json:
            sub.add_argument("--json", action="store_true", help="print JSON for programs")
        return sub

    command("list", _list, "every entry with its status")
    command("show", _show, "one entry in full").add_argument("op", metavar="OP")
    command("validate", _validate, "check every entry on every workload row, and report all problems")
    diff = command("diff", _diff, "name each change as breaking, additive or neutral", manifest=False)
    diff.add_argument("old", metavar="OLD")
    diff.add_argument("new", metavar="NEW")
    command("schema", _schema, "JSON Schema of a manifest file, for editors", manifest=False, as_json=False)
    docs = command("docs", _docs, "the support matrix, as Markdown", as_json=False)
    docs.add_argument(
        "--language", action="store_true", help="the functions of the expression language instead"
    )
    command("new", _new, "a commented entry to start from", manifest=False, as_json=False).add_argument(
        "op", metavar="OP"
    )
    return parser


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _list(arguments: argparse.Namespace) -> int:
    manifest = load_manifest(arguments.manifest)
    if arguments.json:
        _print_json([describe.brief(entry) for entry in manifest.values()])
        return OK
    rows = [
        (entry.name, entry.family, entry.status.cpu, entry.status.cuda, str(len(entry.workloads)))
        for entry in manifest.values()
    ]
    _print_table(("op", "family", "cpu", "cuda", "rows"), rows)
    return OK


def _show(arguments: argparse.Namespace) -> int:
    entry = load_manifest(arguments.manifest)[arguments.op]
    if arguments.json:
        _print_json(describe.full(entry))
    else:
        _print_entry(entry)
    return OK


def _print_entry(entry: Entry) -> None:
    print(f"{entry.name}  {entry.summary}")
    print(f"  {describe.signature(entry)}")
    print(f"  mirrors {entry.ref_api}" + (f"; source {entry.source}" if entry.source else ""))
    for deviation in entry.model.deviations:
        print(f"  deviation: {deviation}")
    print()
    tensors = [*entry.inputs.values(), *entry.outputs.values()]
    _print_table(("tensor", "dtype", "shape", ""), [describe.tensor_line(spec) for spec in tensors])
    if entry.params:
        _print_table(
            ("param", "type", "default", ""), [describe.param_line(spec) for spec in entry.params.values()]
        )
    for name, dtypes in entry.dtypes.items():
        print(f"  {name} is {' | '.join(dtypes)}")
    for rule in entry.rules:
        print(f"  rule: {rule.expr}  ({rule.message})")
    print("  numerics: " + ", ".join(f"{key} {value}" for key, value in entry.numerics.model_dump().items()))
    cases = [
        (case.id, f"{binding.flops:,}", f"{binding.bytes:,}")
        for case in entry.cases()
        for binding in [case.bind()]
    ]
    print()
    _print_table(("workload", "flops", "bytes"), cases)


def _validate(arguments: argparse.Namespace) -> int:
    _, report = validate_path(Path(arguments.manifest) if arguments.manifest else PACKAGED)
    if arguments.json:
        counts = {name: getattr(report, name) for name in ("entries", "rows", "rules", "evaluated")}
        _print_json({**counts, "errors": [asdict(problem) for problem in report.problems]})
    else:
        for problem in report.problems:
            print(problem, file=sys.stderr)
        print(
            f"{report.entries} entries, {report.rows} rows, {report.rules} rules evaluated "
            f"{report.evaluated} times, {len(report.problems)} errors"
        )
    return INVALID if report.problems else OK


def _diff(arguments: argparse.Namespace) -> int:
    old, new = load_manifest(arguments.old), load_manifest(arguments.new)
    changes = diff_manifests(old.entries, new.entries)
    kind = worst(changes)
    version = next_version(__version__, kind)
    if arguments.json:
        _print_json(
            {
                "changes": [asdict(change) for change in changes],
                "worst": kind,
                "from": __version__,
                "to": version,
            }
        )
        return OK
    for change in changes:
        print(f"{change.kind:9} {change}")
    print(f"{len(changes)} changes: {kind} ({__version__} -> {version})" if kind else "no changes")
    return OK


def _schema(_: argparse.Namespace) -> int:
    _print_json({"$schema": "https://json-schema.org/draft/2020-12/schema", **FileModel.model_json_schema()})
    return OK


def _docs(arguments: argparse.Namespace) -> int:
    if arguments.language:
        print(describe.function_table())
    else:
        print(describe.support_matrix(load_manifest(arguments.manifest).values()))
    return OK


def _new(arguments: argparse.Namespace) -> int:
    print(skeleton(arguments.op), end="")
    return OK


def _print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich import box  # rich is a third of this package's import time and only people read tables
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for title in header:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False).print(table)
