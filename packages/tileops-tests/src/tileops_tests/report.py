"""What a person sees: progress while ops are judged, and the table at the end."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from tileops_tests.record import OpRecord, Record

_STYLES = {"passed": "green", "failed": "red", "refused": "yellow", "error": "red"}
MAX_LINES = 5


class ProgressDisplay:
    """A bar over ops with the case at hand; finished ops that did not pass are printed with their reasons at
    once.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("verify", total=total)

    def progress(self, op: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=f"{op} {done}/{total}")

    def finished(self, op: OpRecord) -> None:
        self._bar.advance(self._task)
        for line in problem_lines(op):
            self._console.print(line, soft_wrap=True, highlight=False)

    def __enter__(self) -> ProgressDisplay:
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()


def problem_lines(op: OpRecord) -> list[str]:
    """One line per failure and refusal, the first few of each op."""
    problems = [*op.failures, *op.refusals]
    style = _STYLES[op.status]
    lines = [
        f"[{style}]{escape(op.op)}[/] {escape(p.case)}: [bold]{p.code}[/]: {escape(p.message)}"
        for p in problems[:MAX_LINES]
    ]
    if len(problems) > MAX_LINES:
        lines.append(
            f"[{style}]{escape(op.op)}[/] and {len(problems) - MAX_LINES} more; --json keeps them all"
        )
    return lines


def summary_table(record: Record) -> Table:
    """One row per op: verdict, cases, worst error against its bound."""
    table = Table(title=f"{record.target} · {record.device} · {record.tier} tier", caption=_caption(record))
    for name in ("op", "verdict", "cases", "worst error", "bound", "ratio", "in case", "s"):
        right = name in ("worst error", "bound", "ratio", "s")
        names = name in ("op", "in case")  # long, without spaces: folded, so that nothing is cut
        table.add_column(
            name,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=not names,
            min_width=12 * names,
        )
    for op in record.ops:
        style = _STYLES[op.status]
        worst = op.worst
        numbers = ("exact" if op.status == "passed" else "", "", "", "")
        if worst is not None:
            numbers = (f"{worst.error:.2e}", f"{worst.bound:.2e}", f"{worst.ratio:.3g}", worst.case)
        cases = f"{op.cases.passed}/{op.cases.declared}" + (
            f" ({op.cases.refused} refused)" if op.cases.refused else ""
        )
        table.add_row(op.op, f"[{style}]{op.status}[/]", cases, *numbers, f"{op.seconds:.1f}")
    return table


def _caption(record: Record) -> str:
    s = record.summary
    text = f"{s.passed} of {s.ops} ops passed, {s.failed} failed, {s.refused} refused, {s.error} undecided"
    return text if s.complete else f"{text}; incomplete"
