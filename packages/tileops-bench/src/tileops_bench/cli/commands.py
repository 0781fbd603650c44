"""Every command but `run`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tileops_bench import history as histories
from tileops_bench.baselines import baselines_for, ops_with_baselines
from tileops_bench.calibrate import default_path, measure_calibration, write_calibration
from tileops_bench.cli.runcommand import choose_target, choose_timer
from tileops_bench.errors import UsageError
from tileops_bench.files import replace_file
from tileops_bench.records import json_schema
from tileops_bench.report import document_of, history_document, read_sections, render
from tileops_bench.report.format import rate_text, time_text
from tileops_bench.runner import available_cpus
from tileops_bench.stats import Verdict
from tileops_bench.store import Results, merged_text, read_results
from tileops_bench.summary import as_json, summarise_results
from tileops_bench.verification import stand_on_records


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _console() -> Console:
    return Console(soft_wrap=True)


def _read(path: Path) -> Results:
    results = read_results(path)
    for notice in results.notices:
        Console(stderr=True, soft_wrap=True).print(f"note: {notice}", markup=False)
    return results


def _write(path: Path, text: str) -> None:
    replace_file(path, text)
    print(path)


def report(options: argparse.Namespace) -> int:
    """Write the HTML page and print its path."""
    before = read_sections(options.sections) if options.sections else ()
    _write(options.out, render(document_of(_read(options.results), options.title, before)))
    return 0


def summary(options: argparse.Namespace) -> int:
    """Print the summary, as JSON or as a table."""
    data = as_json(summarise_results(_read(options.results)))
    if options.json:
        _print_json(data)
        return 0
    table = Table(show_header=False)
    for name, value in data.items():
        table.add_row(
            name, "–" if value is None else json.dumps(value) if isinstance(value, dict) else str(value)
        )
    _console().print(table)
    return 0


def merge(options: argparse.Namespace) -> int:
    """Write one file of several runs, and print its path."""
    parts = [_read(path) for path in options.results]
    text = merged_text(parts)
    if options.verified is not None:
        text = stand_on_records(text, options.verified, parts[0].header.conditions.target)
    _write(options.out, text)
    return 0


def compare(options: argparse.Namespace) -> int:
    """Print the change of each row; 1 when one is SLOW."""
    changes = histories.compare_runs(_read(options.old), _read(options.new))
    if options.json:
        _print_json([c.model_dump(mode="json") for c in changes])
    else:
        table = Table("row", "change", "ratio", "interval", "note")
        for c in changes:
            table.add_row(*_change_cells(c))
        _console().print(table)
    return int(any(c.comparison is not None and c.comparison.verdict is Verdict.SLOW for c in changes))


def _change_cells(change: histories.Change) -> tuple[str, ...]:
    c = change.comparison
    if c is None:
        return change.id, change.kind, "–", "–", change.note
    return change.id, c.verdict.value, f"{c.speedup:.3f}x", f"{c.low:.3f} to {c.high:.3f}", change.note


def history(options: argparse.Namespace) -> int:
    """Print trends and change points; write charts where asked."""
    trends, notes = histories.read_history(options.directory)
    if options.json:
        _print_json({"trends": [t.model_dump(mode="json") for t in trends], "notes": notes})
    else:
        table = Table("row", "runs", "now", "of the last", "of the best", "changes at")
        for t in trends:
            table.add_row(*_trend_cells(t))
        _console().print(table)
        for note in notes:
            _console().print(f"note: {note}", markup=False)
    if options.out:
        _write(options.out, render(history_document(trends, notes)))
    return 0


def _trend_cells(t: histories.Trend) -> tuple[str, ...]:
    last = "–" if t.against_last is None else f"{t.against_last:.3f}x"
    best = "–" if t.against_best is None else f"{t.against_best:.3f}x"
    changes = ", ".join(t.created[i] for i in t.change_points) or "none"
    return t.id, str(len(t.medians)), time_text(t.medians[-1]), last, best, changes


def calibrate(options: argparse.Namespace) -> int:
    """Measure and store the ceilings."""
    target = choose_target(options.target)
    timer = choose_timer(options.timer, target)
    found = measure_calibration(target, timer, available_cpus(options.threads))
    path = options.out or default_path(found.device, found.threads)
    write_calibration(found, path)
    if options.json:
        _print_json(found.model_dump(by_alias=True, mode="json"))
        return 0
    table = Table("ceiling", "measured", title=f"{found.device}, {found.threads} threads, {found.timer}")
    table.add_row("copy", rate_text(found.copy_rate, "B/s"))
    table.add_row("read", rate_text(found.read_rate, "B/s"))
    for dtype, rate in found.matmul.items():
        table.add_row(f"matmul {dtype}", rate_text(rate, "FLOP/s"))
    _console().print(table)
    print(path)
    return 0


def tune(options: argparse.Namespace) -> int:
    """Measure configs and write the tuning file."""
    from tileops_bench.tune import tune_op

    target = choose_target(options.target)
    outcome = tune_op(
        options.op, target, choose_timer(options.timer, target), kernel=options.kernel, labels=options.rows,
        dtypes=options.dtypes, limit=options.limit, budget_s=options.row_budget,
        cpus=available_cpus(options.threads),
    )  # fmt: skip
    table = Table("row", "best config", "time", "of the default")
    for best in outcome.rows:
        table.add_row(best.row, json.dumps(best.config), time_text(best.median_ns), f"{best.speedup:.2f}x")
    _console().print(table)
    _write(options.out, outcome.model_dump_json(indent=2, by_alias=True) + "\n")
    return 0


def baselines(options: argparse.Namespace) -> int:
    """List baselines; an op without any is named as such."""
    known = ops_with_baselines()
    unknown = [op for op in options.ops if op not in known]
    if unknown:
        raise UsageError(f"no baselines for {', '.join(unknown)}")
    entries = [b for op in (options.ops or known) for b in baselines_for(op)]
    if options.json:
        _print_json(
            [
                {"op": b.op, "name": b.name, "library": b.library, "installed": b.installed,
                 "targets": b.targets, "local": b.local, "digest": b.digest}
                for b in entries
            ]
        )  # fmt: skip
        return 0
    table = Table("op", "baseline", "library", "here", "targets", "digest")
    for b in entries:
        here = "yes" if b.installed else "not installed"
        table.add_row(b.op, b.name, b.library, here, ", ".join(b.targets), b.digest[:12])
    _console().print(table)
    return 0


def schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema."""
    _print_json(json_schema())
    return 0
