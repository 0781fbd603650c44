"""A whole run: plan, resume, measure, stream to disk, count."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tileops_bench.baselines import baselines_for
from tileops_bench.certificate import certified
from tileops_bench.conditions import read_conditions
from tileops_bench.contenders import split_baselines
from tileops_bench.digests import package_digest, text_digest
from tileops_bench.errors import ResultsError, UsageError
from tileops_bench.plan import PlannedRow, baselines_digest
from tileops_bench.prepare import prepare
from tileops_bench.protocol import Phase, Ready
from tileops_bench.records import Header, Row, Status
from tileops_bench.rowrunner import RowRunner, RunSettings
from tileops_bench.session import ChildSession
from tileops_bench.store import Results, ResultsWriter, finished_keys, read_results


class RunObserver:
    """Progress of a run; every method may be overridden."""

    def begin(self, total: int, skipped: int) -> None:
        """`total` rows are declared, `skipped` of them are finished already."""

    def row_prepared(self, row: PlannedRow, trouble: str) -> None:
        """A row's contenders have compiled; `trouble` is what they said. Called from several threads."""

    def row_begins(self, row: PlannedRow) -> None:
        """A row is about to be measured."""

    def phase(self, phase: Phase) -> None:
        """The measuring process says what it does."""

    def row_done(self, row: Row) -> None:
        """A row is finished and on disk."""

    def notice(self, text: str) -> None:
        """Something that the reader of the results should know."""


@dataclass(frozen=True)
class RunOutcome:
    """What a run left behind."""

    measured: tuple[Row, ...]
    skipped: int
    not_measured: tuple[str, ...]


@dataclass(frozen=True)
class RunRequest:
    """Everything that a run needs beside its settings."""

    rows: Sequence[PlannedRow]
    settings: RunSettings
    ready: Ready
    out: Path
    command: Sequence[str]
    resume: bool = False
    overwrite: bool = False
    total_budget_s: float | None = None
    prepare_jobs: int = 0
    clean: ChildSession | None = None  # the process that `ready` is from: no candidate was ever in it


def execute(request: RunRequest, observer: RunObserver | None = None) -> RunOutcome:
    """Measure every declared row that is not finished yet; each is on disk before the next begins.

    Raises:
        UsageError: the file exists and neither resuming nor overwriting was asked for.
        ResultsError: the file to resume is damaged or was made on another device or with another timer.
        StorageError: the file cannot be written; finished rows are kept.
    """
    observer = observer or RunObserver()
    earlier = _earlier(request, observer)
    digests = {row.id: row_digests(row, request.settings) for row in request.rows}
    done = finished_keys(earlier.rows) if earlier else set()
    todo = [row for row in request.rows if (row.id, tuple(sorted(digests[row.id].items()))) not in done]
    skipped = len(request.rows) - len(todo)
    observer.begin(len(request.rows), skipped)
    known = certificate_counts(request.rows, request.settings)
    observer.notice("baselines: " + ", ".join(f"{count} {word}" for word, count in known.items()))
    deadline = None if request.total_budget_s is None else time.monotonic() + request.total_budget_s
    if request.prepare_jobs:
        prepare(todo, request.settings, request.prepare_jobs, observer.row_prepared)
    with ResultsWriter(request.out, earlier.complete_bytes if earlier else 0) as writer:
        writer.append(_header(request, resumed=earlier is not None))
        measured = _measure_all(request, todo, digests, writer, observer, deadline)
    not_measured = tuple(row.id for row in todo[len(measured) :])
    if not_measured:
        observer.notice(f"the budget was spent with {len(not_measured)} rows not measured")
    return RunOutcome(tuple(measured), skipped, not_measured)


def _measure_all(
    request: RunRequest,
    todo: Sequence[PlannedRow],
    digests: Mapping[str, Mapping[str, str]],
    writer: ResultsWriter,
    observer: RunObserver,
    deadline: float | None,
) -> list[Row]:
    measured: list[Row] = []
    with RowRunner(request.settings, request.ready.device, observer.phase, request.clean) as runner:
        for row in todo:
            if deadline is not None and time.monotonic() > deadline:
                break
            observer.row_begins(row)
            record = runner.run(row, digests[row.id])
            writer.append(record)
            measured.append(record)
            observer.row_done(record)
    return measured


def _earlier(request: RunRequest, observer: RunObserver) -> Results | None:
    exists = request.out.is_file() and request.out.stat().st_size > 0
    if not exists:
        return None
    if request.overwrite:
        return None
    if not request.resume:
        raise UsageError(f"{request.out} exists; add --resume to continue it or --overwrite to replace it")
    earlier = read_results(request.out)
    for notice in earlier.notices:
        observer.notice(notice)
    held = earlier.header.conditions
    now = {"device": request.ready.device, "timer": request.settings.timer, "threads": request.ready.threads}
    for name, value in now.items():
        if getattr(held, name) != value:
            raise ResultsError(
                f"{request.out}: cannot be resumed: {name} was {getattr(held, name)!r}, is {value!r}"
            )
    return earlier


def row_digests(row: PlannedRow, settings: RunSettings) -> dict[str, str]:
    """Digests of everything that a row's result depends on."""
    return {
        "entry": row.entry_digest,
        "inputs": row.inputs_digest(package_digest("tileops_workloads"), settings.seed),
        "candidate": settings.candidate_digest,
        "baselines": baselines_digest(baselines_for(row.op)),
        "certificates": text_digest(
            f"{b.name} {certified(settings.certificates, b.digest)}" for b in baselines_for(row.op)
        ),
        "verification": settings.record_of(row.op),
        "bench": package_digest("tileops_bench"),
    }


def certificate_counts(rows: Sequence[PlannedRow], settings: RunSettings) -> dict[str, int]:
    """How many of the baselines that could take part are certified, rejected, or not judged."""
    counts = Counter()
    for op in {row.op for row in rows}:
        running, absent = split_baselines(
            baselines_for(op), settings.target, settings.certificates, settings.only_baselines
        )
        counts["rejected"] += sum(baseline.status is Status.REJECTED for baseline in absent)
        for baseline in running:
            known = certified(settings.certificates, baseline.digest)
            counts["certified" if known == "yes" else "unknown"] += 1
    return {word: counts[word] for word in ("certified", "rejected", "unknown")}


def _header(request: RunRequest, resumed: bool) -> Header:
    settings = request.settings
    scrub = settings.scrub_bytes or 2 * request.ready.l2_bytes
    return Header(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=tuple(request.command),
        candidate=settings.candidate,
        declared=tuple(row.id for row in request.rows),
        conditions=read_conditions(request.ready, settings.target, settings.timer, scrub),
        calibration=_calibration(settings),
        options={
            "budget_s": settings.budget_s,
            "min_samples": settings.min_samples,
            "max_samples": settings.max_samples,
            "seed": settings.seed,
            "alone": settings.alone,
            "confirm": settings.confirm,
            "prepared": request.prepare_jobs > 0,
            "certificates": certificate_counts(request.rows, settings),
            "only_baselines": sorted(settings.only_baselines)
            if settings.only_baselines is not None
            else None,
        },
        resumed=resumed,
    )


def _calibration(settings: RunSettings) -> dict[str, Any] | None:
    return settings.calibration.model_dump(by_alias=True) if settings.calibration else None


def available_cpus(count: int | None = None) -> tuple[int, ...]:
    """The CPUs to pin to: the first `count` of those that this process may use.

    Raises:
        UsageError: fewer CPUs than asked for.
    """
    allowed = tuple(sorted(os.sched_getaffinity(0)))
    if count is None:
        return allowed
    if not 1 <= count <= len(allowed):
        raise UsageError(f"--threads {count}: this process may use 1 to {len(allowed)} CPUs")
    return allowed[:count]
