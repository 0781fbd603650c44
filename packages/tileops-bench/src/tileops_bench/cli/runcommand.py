"""`tileops-bench run`."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tileops_bench.calibrate import find_calibration
from tileops_bench.certificate import read_certificates
from tileops_bench.conditions import cpu_scrub_bytes
from tileops_bench.digests import candidate_digest
from tileops_bench.errors import ProtocolError, UsageError
from tileops_bench.plan import PlannedRow, plan
from tileops_bench.protocol import Phase
from tileops_bench.records import Row
from tileops_bench.report.format import time_text
from tileops_bench.rowrunner import RunSettings
from tileops_bench.runner import RunObserver, RunOutcome, RunRequest, available_cpus, execute
from tileops_bench.session import ChildDied, ChildSession
from tileops_bench.stats import Verdict
from tileops_bench.timers import DEFAULT_TIMER, TARGETS
from tileops_bench.verification import read_verified

STYLES = {
    Verdict.FAST: "bold blue",
    Verdict.SAME: "white",
    Verdict.SLOW: "bold yellow",
    Verdict.AMBIGUOUS: "magenta",
    Verdict.INVALID: "bold red",
}


def run(options: argparse.Namespace) -> int:
    """Measure, stream, and say what was kept."""
    observer = ConsoleObserver(quiet=options.quiet)
    request = build_request(options)
    try:
        with observer, request.clean:
            outcome = execute(request, observer)
    except KeyboardInterrupt:
        print(
            f"tileops-bench: interrupted; {observer.kept} rows of this run are kept in {options.out}; "
            "continue with --resume",
            file=sys.stderr,
        )
        return 130
    return _exit_code(outcome, options.fail_on)


def _exit_code(outcome: RunOutcome, fail_on: str) -> int:
    verdicts = {row.verdict for row in outcome.measured}
    if fail_on == "never":
        return 0
    if Verdict.INVALID in verdicts or outcome.not_measured:
        return 1
    return int(fail_on == "slow" and Verdict.SLOW in verdicts)


def choose_target(target: str | None) -> str:
    """The target asked for, else CUDA where torch sees a device."""
    import torch

    return target or ("cuda" if torch.cuda.is_available() else "cpu")


def choose_timer(timer: str | None, target: str) -> str:
    """The timer asked for, else the target's own.

    Raises:
        UsageError: the timer times another target.
    """
    chosen = timer or DEFAULT_TIMER[target]
    if TARGETS[chosen] != target:
        raise UsageError(f"--timer {chosen} times {TARGETS[chosen]}, the target is {target}")
    return chosen


def build_request(options: argparse.Namespace) -> RunRequest:
    """Check every option before anything is measured."""
    from tileops_manifest import load_manifest

    target = choose_target(options.target)
    timer = choose_timer(options.timer, target)
    fewest, most = options.samples
    if fewest > most:
        raise UsageError(f"--samples {fewest} {most}: the least is larger than the most")
    digest = candidate_digest(options.candidate)
    scale = {"auto": "cpu" if target == "cpu" else None, "cpu": "cpu", "none": None}[options.scale]
    manifest = load_manifest(options.manifest)
    rows = plan(manifest, options.ops, target, options.candidate, options.rows, options.dtypes, scale)
    _check_baselines(rows, options.baselines)
    certificates = read_certificates(options.certificates, target)
    verified = read_verified(options.verified, target, digest)
    cpus = available_cpus(options.threads)
    child = _start_child(target, cpus)
    try:
        calibration = find_calibration(options.calibration, child.ready.device, child.ready.threads)
    except BaseException:
        child.close()
        raise
    settings = RunSettings(
        target=target,
        timer=timer,
        candidate=options.candidate,
        candidate_digest=digest,
        cpus=cpus,
        scrub_bytes=cpu_scrub_bytes() if target == "cpu" else 0,
        manifest=str(options.manifest) if options.manifest else None,
        budget_s=options.row_budget,
        min_samples=fewest,
        max_samples=most,
        timeout_s=options.timeout,
        seed=options.seed,
        alone=not options.no_alone,
        confirm=not options.no_confirm,
        only_baselines=frozenset(options.baselines) if options.baselines else None,
        certificates=certificates,
        verified=verified,
        calibration=calibration,
    )
    return RunRequest(
        rows, settings, child.ready, options.out, options.command_line, options.resume, options.overwrite,
        options.budget, options.prepare, child,
    )  # fmt: skip


def _start_child(target: str, cpus: tuple[int, ...]) -> ChildSession:
    try:
        return ChildSession(target, cpus)
    except ChildDied as error:
        raise ProtocolError(f"the measuring process does not start: {error}") from error


def _check_baselines(rows: list[PlannedRow], wanted: list[str] | None) -> None:
    from tileops_bench.baselines import baselines_for

    known = {b.name for op in {row.op for row in rows} for b in baselines_for(op)}
    for name in wanted or ():
        if name not in known:
            raise UsageError(
                f"no baseline {name!r} for these ops; known: {', '.join(sorted(known)) or 'none'}"
            )


class ConsoleObserver(RunObserver):
    """Progress bar on stderr, one line per finished row on stdout."""

    def __init__(self, quiet: bool = False) -> None:
        self.kept = 0
        self._prepared = 0
        self._console = Console()
        self._progress = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
            TimeElapsedColumn(), console=Console(stderr=True), disable=quiet,
        )  # fmt: skip
        self._task = self._progress.add_task("starting", total=None)
        self._row = ""

    def __enter__(self) -> ConsoleObserver:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, total: int, skipped: int) -> None:
        """Set the length of the bar."""
        self._progress.update(self._task, total=total, completed=skipped)
        if skipped:
            self.notice(f"{skipped} of {total} rows are finished already")

    def row_prepared(self, row: PlannedRow, trouble: str) -> None:
        """Show how far compiling is."""
        self._prepared += 1
        self._progress.update(self._task, description=f"compiling · {self._prepared} rows · {row.id}")

    def row_begins(self, row: PlannedRow) -> None:
        """Show the row."""
        self._row = row.id
        self._progress.update(self._task, description=row.id)

    def phase(self, phase: Phase) -> None:
        """Show what is being done to whom."""
        text = f"{self._row} · {phase.name} {phase.contender}".rstrip()
        self._progress.update(self._task, description=text)

    def row_done(self, row: Row) -> None:
        """Print the row's outcome."""
        self.kept += 1
        self._progress.advance(self._task)
        self._console.print(
            f"[{STYLES[row.verdict]}]{row.verdict.value:<9}[/] {row.id}  {describe(row)}", soft_wrap=True
        )

    def notice(self, text: str) -> None:
        """Print a notice."""
        self._console.print(f"note: {text}", soft_wrap=True, markup=False)


def describe(row: Row) -> str:
    """A row's outcome in one line: times and ratio, or the reasons why it is invalid."""
    if row.problems:
        return "; ".join(f"{p.code.value}: {p.detail}" for p in row.problems).replace("[", "\\[")
    against = next(b for b in row.baselines if b.name == row.against)
    ratio, c = row.comparison.speedup, row.comparison
    reached = f", {row.efficiency:.0%} of the {row.bound} ceiling" if row.efficiency is not None else ""
    own, other = time_text(row.candidate.summary.median), time_text(against.summary.median)
    return f"{own} against {other} ({row.against}): {ratio:.2f}x, {c.low:.2f} to {c.high:.2f}{reached}"
