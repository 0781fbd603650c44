"""Command line: `verify`, `list`, `explain`, `schema`. Only this module prints and exits."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from tileops_manifest import Entry, ManifestError, load_manifest
from tileops_tests import __version__
from tileops_tests.calibrate import calibration_record
from tileops_tests.candidate import Candidate
from tileops_tests.cases import TIERS, plan
from tileops_tests.codes import MEANINGS
from tileops_tests.errors import ExitCode, UsageError, VerificationError
from tileops_tests.explain import explain
from tileops_tests.ledger import load_ledger
from tileops_tests.oracles import get_oracle
from tileops_tests.record import json_schema, merge_records, read_record, write_record
from tileops_tests.report import ProgressDisplay, summary_table
from tileops_tests.session import run_session, select_ops
from tileops_tests.verify import Options
from tileops_workloads import DISTRIBUTIONS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (see `ExitCode`)."""
    arguments = _parser().parse_args(argv)
    console = Console(stderr=arguments.command == "verify" and arguments.json == "-")
    previous = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        code = int(arguments.run(arguments, console))
        sys.stdout.flush()
        return code
    except (VerificationError, ManifestError) as error:
        Console(stderr=True).print(
            f"tileops-tests: error: {error}", style="red", markup=False, highlight=False
        )
        return int(getattr(error, "exit_code", ExitCode.USAGE))
    except KeyboardInterrupt:
        Console(stderr=True).print("tileops-tests: interrupted", style="red")
        return int(ExitCode.INTERRUPTED)
    except OSError as error:  # of files there are typed errors: this is the terminal, pipe or log
        Console(stderr=True).print(
            f"tileops-tests: error: cannot write: {error.strerror or error}", style="red", markup=False
        )
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.ENVIRONMENT)
    finally:
        signal.signal(signal.SIGTERM, previous)


def _as_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tileops-tests", description="Independent verdicts on operators.")
    parser.add_argument("--version", action="version", version=f"tileops-tests {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    verify = commands.add_parser(
        "verify", help="judge ops (default: every implemented one) against their oracles"
    )
    verify.add_argument("ops", nargs="*", metavar="OP", help="names as in the manifest")
    verify.add_argument(
        "--candidate", metavar="FILE:OBJECT", help="judge this callable instead of the installed op"
    )
    verify.add_argument(
        "--json", metavar="PATH", help="write the verification record here after every op ('-': stdout)"
    )
    verify.add_argument("--jobs", type=_positive, default=1, metavar="N", help="ops judged at a time")
    verify.add_argument(
        "--ledger", type=Path, metavar="PATH", help="known failures (default: the shipped ledger)"
    )
    verify.set_defaults(run=_verify)

    listing = commands.add_parser("list", help="ops, their status, and the number of cases of each tier")
    listing.add_argument("ops", nargs="*", metavar="OP", help="list the cases of these ops instead")
    listing.set_defaults(run=_list)

    explaining = commands.add_parser(
        "explain", help="how one case is judged: inputs, errors, bound, sensitivity"
    )
    explaining.add_argument("op", metavar="OP")
    explaining.add_argument("case", metavar="CASE", help="a case name from `tileops-tests list OP`")
    explaining.set_defaults(run=_explain)

    for command in (verify, listing):
        command.add_argument(
            "--case", action="append", default=[], dest="only", metavar="PATTERN",
            help="only cases whose name matches (`*`, `?`; may be repeated)",
        )  # fmt: skip
    for command in (verify, listing, explaining):
        command.add_argument(
            "--target", choices=("cpu", "cuda"), default=None, help="default: cuda where there is one"
        )
        command.add_argument("--tier", choices=TIERS, default="smoke")
        command.add_argument("--seed", type=_natural, default=0, metavar="N")
        command.add_argument(
            "--distribution", action="append", choices=DISTRIBUTIONS, default=[], dest="distributions",
            help="only cases of this distribution (may be repeated)",
        )  # fmt: skip
        command.add_argument(
            "--manifest", type=Path, metavar="PATH", help="entries from here instead of the shipped ones"
        )

    calibrating = commands.add_parser(
        "calibrate", help="the calibration record that verification records amount to"
    )
    calibrating.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    calibrating.set_defaults(run=_calibrate)
    merging = commands.add_parser("merge", help="one record of several runs under the same conditions")
    merging.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    merging.add_argument("--json", required=True, metavar="PATH", help="where to write it ('-': stdout)")
    merging.set_defaults(run=_merge)
    codes = commands.add_parser("codes", help="the reason codes and what they mean")
    codes.set_defaults(run=_codes)
    schema = commands.add_parser("schema", help="JSON Schema of the verification record")
    schema.set_defaults(run=_schema)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _target(arguments: argparse.Namespace) -> str:
    available = torch.cuda.is_available()
    if arguments.target == "cuda" and not available:
        raise UsageError("--target is cuda, but this machine has no CUDA device that PyTorch can use")
    return arguments.target or ("cuda" if available else "cpu")


def _verify(arguments: argparse.Namespace, console: Console) -> int:
    target = _target(arguments)
    candidate = Candidate.parse(arguments.candidate) if arguments.candidate else None
    if candidate is not None and len(arguments.ops) != 1:
        raise UsageError(f"--candidate judges one op, got {len(arguments.ops)} op names, expected exactly 1")
    entries = select_ops(load_manifest(arguments.manifest), arguments.ops, target)
    _require_cases(entries, arguments)
    # The shipped ledger speaks of the shipped implementation.
    ledger = load_ledger(arguments.ledger) if arguments.ledger or candidate is None else ()
    options = Options(
        target=target,
        tier=arguments.tier,
        seed=arguments.seed,
        distributions=tuple(arguments.distributions),
        only=tuple(arguments.only),
        candidate=candidate,
        threads=max(1, (os.cpu_count() or 1) // arguments.jobs),
        compile_jobs=max(1, (os.cpu_count() or 1) // arguments.jobs),
        ledger=ledger,
        oracle_device=target,
    )
    path = Path(arguments.json) if arguments.json and arguments.json != "-" else None
    with ProgressDisplay(console, len(entries)) as display:
        outcome = run_session(
            entries, options, get_oracle, jobs=arguments.jobs, path=path,
            device=torch.cuda.get_device_name() if target == "cuda" else None,
            on_progress=display.progress, on_finished=display.finished,
        )  # fmt: skip
    console.print(summary_table(outcome.record))
    if arguments.json == "-":
        print(outcome.record.model_dump_json(by_alias=True, indent=1))
    if outcome.write_error is not None:
        raise outcome.write_error
    if outcome.interrupted:
        raise KeyboardInterrupt
    return ExitCode.PASSED if outcome.record.summary.passed == len(entries) else ExitCode.FAILED


def _require_cases(entries: Sequence[Entry], arguments: argparse.Namespace) -> None:
    """Patterns that select nothing are a mistake, not a pass."""
    if not arguments.only and not arguments.distributions:
        return
    for entry in entries:
        found = plan(
            entry,
            tier=arguments.tier,
            seed=arguments.seed,
            distributions=arguments.distributions,
            only=arguments.only,
        )
        if not found:
            raise UsageError(f"{entry.name}: {[*arguments.only, *arguments.distributions]} matches no case")


def _list(arguments: argparse.Namespace, console: Console) -> int:
    manifest = load_manifest(arguments.manifest)
    target = arguments.target or "cpu"
    if arguments.ops:
        for entry in select_ops(manifest, arguments.ops, target):
            for case in plan(
                entry,
                target=target,
                tier=arguments.tier,
                seed=arguments.seed,
                distributions=arguments.distributions,
                only=arguments.only,
            ):
                console.print(f"{entry.name}  {case.id}", soft_wrap=True, highlight=False, markup=False)
        return ExitCode.PASSED
    table = Table("op", "family", "cpu", "cuda", "cases", title=f"{arguments.tier} tier")
    for entry in manifest.entries.values():
        count = len(
            plan(
                entry,
                target=target,
                tier=arguments.tier,
                distributions=arguments.distributions,
                only=arguments.only,
            )
        )
        table.add_row(entry.name, entry.family, entry.status.cpu, entry.status.cuda, str(count))
    console.print(table)
    return ExitCode.PASSED


def _explain(arguments: argparse.Namespace, console: Console) -> int:
    entry = select_ops(load_manifest(arguments.manifest), [arguments.op], "cpu")[0]
    cases = plan(
        entry,
        target=_target(arguments),
        tier=arguments.tier,
        seed=arguments.seed,
        distributions=arguments.distributions,
    )
    found = [case for case in cases if case.id == arguments.case]
    if not found:
        raise UsageError(
            f"{entry.name} has no case {arguments.case!r} in tier {arguments.tier}; "
            f"see `tileops-tests list {entry.name}`"
        )
    explain(found[0], get_oracle(entry.name), _target(arguments), arguments.seed, console)
    return ExitCode.PASSED


def _calibrate(arguments: argparse.Namespace, console: Console) -> int:
    print(json.dumps(calibration_record([read_record(path) for path in arguments.records]), indent=1))
    return ExitCode.PASSED


def _merge(arguments: argparse.Namespace, console: Console) -> int:
    merged = merge_records([read_record(path) for path in arguments.records])
    if arguments.json == "-":
        print(merged.model_dump_json(by_alias=True, indent=1))
    else:
        write_record(merged, Path(arguments.json))
        console.print(summary_table(merged))
    return ExitCode.PASSED


def _codes(arguments: argparse.Namespace, console: Console) -> int:
    table = Table("code", "meaning")
    for code, meaning in MEANINGS.items():
        table.add_row(code.value, meaning)
    console.print(table)
    return ExitCode.PASSED


def _schema(arguments: argparse.Namespace, console: Console) -> int:
    print(json.dumps(json_schema(), indent=1))
    return ExitCode.PASSED
