"""One row from plan to record: measure, judge, time the baseline alone, confirm, record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from tileops_bench.baselines import Baseline, baselines_for
from tileops_bench.calibrate import Calibration
from tileops_bench.certificate import Certificate
from tileops_bench.conditions import ThrottleWatch
from tileops_bench.contenders import (
    baseline_record,
    baseline_spec,
    candidate_record,
    candidate_spec,
    failed,
    split_baselines,
)
from tileops_bench.errors import ProtocolError, UsageError
from tileops_bench.plan import PlannedRow
from tileops_bench.protocol import Measured, Phase, RowJob, Spec
from tileops_bench.records import UNVERIFIED, Contender, Row
from tileops_bench.roofline import Efficiency, Floor, Work, efficiency, physical_floor
from tileops_bench.session import ChildDied, ChildSession
from tileops_bench.stats import Comparison, Verdict
from tileops_bench.verdict import TRANSIENT, Bulk, Evidence, Judgement, judge, strongest

MAX_DEATHS = 4
ROWS_PER_PROCESS = 32


@dataclass(frozen=True)
class RunSettings:
    """What holds for every row of a run."""

    target: str
    timer: str
    candidate: str
    candidate_digest: str
    cpus: tuple[int, ...]
    scrub_bytes: int
    manifest: str | None = None
    budget_s: float = 1.0
    min_samples: int = 7
    max_samples: int = 100
    timeout_s: float = 300.0
    seed: int = 0
    alone: bool = True
    confirm: bool = True
    only_baselines: frozenset[str] | None = None
    certificates: Mapping[str, Certificate] = field(default_factory=dict)
    verified: Mapping[str, str] = field(default_factory=dict)
    calibration: Calibration | None = None

    def record_of(self, op: str) -> str:
        """Digest of the verification record that rows of an op stand on, or `unverified`."""
        return self.verified.get(op, UNVERIFIED)


@dataclass(frozen=True)
class Round:
    """One measurement of a row in one process: what is known about it, and the judgement without the lone
    run."""

    evidence: Evidence
    judgement: Judgement
    measured: Measured | None


class RowRunner:
    """Measures rows. Keeps one process for the candidate and one that no candidate ever enters.

    The candidate's process is replaced after a death, for a second try, and every 32 rows, so that what
    compilers leave in memory does not pile up.

    Args:
        settings: the run's settings.
        device: the device's name, for its physical floor.
        on_phase: progress.
        clean: a process to time baselines alone in, where the caller has one; it is closed with the runner.
    """

    def __init__(
        self,
        settings: RunSettings,
        device: str,
        on_phase: Callable[[Phase], None] | None = None,
        clean: ChildSession | None = None,
    ) -> None:
        self._settings = settings
        self._device = device
        self._on_phase = on_phase
        self._served = 0
        self._session: ChildSession | None = None
        self._clean = clean

    def run(self, row: PlannedRow, digests: Mapping[str, str]) -> Row:
        """Measure one row; a transient problem is given one more try in a new process."""
        begun, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        attempts, outcome = 1, self._attempt(row)
        if _transient(outcome.judgement):
            self._end_session()
            attempts, outcome = 2, self._attempt(row)
        confirmation: Comparison | None = None
        if outcome.judgement.verdict is Verdict.SLOW and self._settings.confirm:
            outcome, confirmation = self._confirmed(row, outcome)
        record = self._record(row, outcome, digests)
        return record.model_copy(
            update={
                "created": created,
                "seconds": round(time.monotonic() - begun, 3),
                "attempts": attempts,
                "confirmation": confirmation,
            }
        )

    def close(self) -> None:
        """End the processes."""
        self._end_session()
        if self._clean is not None:
            self._clean.close()
            self._clean = None

    def __enter__(self) -> RowRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _attempt(self, row: PlannedRow) -> Round:
        first = self._measure(row, baselines_for(row.op))
        if first.judgement.verdict is Verdict.INVALID or not self._settings.alone:
            return first
        against = strongest(first.evidence)
        evidence = replace(first.evidence, alone=self._time_alone(row, against), alone_required=True)
        return Round(evidence, judge(evidence), first.measured)

    def _confirmed(self, row: PlannedRow, slow: Round) -> tuple[Round, Comparison | None]:
        """SLOW stands only if a new process says so too; else the row is AMBIGUOUS."""
        self._end_session()
        name = slow.judgement.against.name
        entries = [b for b in baselines_for(row.op) if b.name == name]
        second = self._measure(row, entries).judgement
        if second.verdict is Verdict.SLOW:
            return slow, second.comparison
        judgement = replace(slow.judgement, verdict=Verdict.AMBIGUOUS)
        return replace(slow, judgement=judgement), second.comparison

    def _measure(self, row: PlannedRow, entries: Sequence[Baseline]) -> Round:
        settings = self._settings
        running, absent = split_baselines(
            entries, settings.target, settings.certificates, settings.only_baselines
        )
        own = candidate_spec(settings.candidate)
        broken: dict[str, Contender] = {}
        with ThrottleWatch(settings.target) as watch:
            measured, bulk, candidate_died = self._ask(row, own, running, broken)
        evidence = Evidence(
            candidate=self._candidate(own, measured, candidate_died),
            baselines=(*self._baselines(running, measured, broken), *absent),
            requested_timer=settings.timer,
            reported_timer=measured.timer if measured else settings.timer,
            floor=physical_floor(_work(row, measured), self._device, settings.target)
            if measured
            else Floor(None, "not measured"),
            bulk=bulk,
            throttle_reasons=watch.reasons,
            row_problems=measured.problems if measured else (),
        )
        return Round(evidence, judge(evidence), measured)

    def _ask(
        self, row: PlannedRow, own: Spec, running: list[Baseline], broken: dict[str, Contender]
    ) -> tuple[Measured | None, Bulk | None, str]:
        """Measure; a baseline that takes the process down is put aside and the rest is measured again."""
        for _ in range(MAX_DEATHS):
            specs = [own, *(baseline_spec(b) for b in running if b.name not in broken)]
            try:
                answer = self._row_session().ask(
                    row_job(row, self._settings, specs), self._settings.timeout_s
                )
            except ChildDied as death:
                self._end_session()
                guilty = next((b for b in running if b.name == death.contender), None)
                if guilty is None:
                    return None, None, str(death)
                broken[guilty.name] = failed(baseline_spec(guilty), str(death), guilty.library, guilty.digest)
                continue
            except (UsageError, ProtocolError) as refusal:  # this row's trouble, not the run's
                return None, None, f"the row cannot be measured: {refusal}"
            if not isinstance(answer.reply, Measured):
                raise ProtocolError(f"a row job was answered with {type(answer.reply).__name__}")
            return answer.reply, answer.bulk, ""
        return None, None, f"the measuring process died {MAX_DEATHS} times"

    def _time_alone(self, row: PlannedRow, against: Contender) -> Contender:
        """The strongest baseline by itself, in a process that no candidate's code was ever in."""
        entry = next(b for b in baselines_for(row.op) if b.name == against.name)
        spec = baseline_spec(entry)
        if self._clean is None:
            self._clean = ChildSession(self._settings.target, self._settings.cpus)
        try:
            answer = self._clean.ask(row_job(row, self._settings, [spec]), self._settings.timeout_s)
        except ChildDied as death:
            self._clean = None
            return failed(spec, str(death))
        except (UsageError, ProtocolError) as refusal:
            return failed(spec, str(refusal))
        return baseline_record(answer.reply.contenders[0], entry, self._settings.certificates)

    def _row_session(self) -> ChildSession:
        if self._served >= ROWS_PER_PROCESS:
            self._end_session()
        if self._session is None:
            self._session = ChildSession(self._settings.target, self._settings.cpus, on_phase=self._on_phase)
        self._served += 1
        return self._session

    def _end_session(self) -> None:
        self._served = 0
        if self._session is not None:
            self._session.close()
            self._session = None

    def _candidate(self, own: Spec, measured: Measured | None, death: str) -> Contender:
        s = self._settings
        if measured is None:
            return failed(own, death, s.candidate, s.candidate_digest)
        raw = next((c for c in measured.contenders if c.name == own.name), None)
        if raw is None:
            return failed(own, "the measuring process left it out", s.candidate, s.candidate_digest)
        return candidate_record(raw, s.candidate, s.candidate_digest, measured.deterministic)

    def _baselines(
        self, running: Sequence[Baseline], measured: Measured | None, broken: Mapping[str, Contender]
    ) -> list[Contender]:
        raw = {c.name: c for c in measured.contenders} if measured else {}
        records = []
        for entry in running:
            if entry.name in broken:
                records.append(broken[entry.name])
            elif entry.name in raw:
                records.append(baseline_record(raw[entry.name], entry, self._settings.certificates))
            else:
                records.append(failed(baseline_spec(entry), "not measured", entry.library, entry.digest))
        return records

    def _record(self, row: PlannedRow, outcome: Round, digests: Mapping[str, str]) -> Row:
        measured, evidence, judgement = outcome.measured, outcome.evidence, outcome.judgement
        reached = self._efficiency(row, outcome)
        return Row(
            id=row.id,
            op=row.op,
            label=row.label,
            dtypes=row.dtypes,
            params=measured.params if measured else {},
            inputs=measured.inputs if measured else {},
            flops=measured.flops if measured else 0,
            bytes=measured.bytes if measured else 0,
            created="",
            seconds=0.0,
            timer=evidence.reported_timer,
            digests=dict(digests),
            verification=self._settings.record_of(row.op),
            verdict=judgement.verdict,
            problems=judgement.problems,
            candidate=evidence.candidate,
            baselines=evidence.baselines,
            against=judgement.against.name if judgement.against else None,
            comparison=judgement.comparison,
            alone=evidence.alone.summary if evidence.alone else None,
            floor_ns=evidence.floor.ns,
            floor_note=evidence.floor.note,
            bound=reached.bound if reached else None,
            efficiency=round(reached.value, 4) if reached else None,
        )

    def _efficiency(self, row: PlannedRow, outcome: Round) -> Efficiency | None:
        calibration, summary = self._settings.calibration, outcome.evidence.candidate.summary
        if calibration is None or summary is None or outcome.measured is None:
            return None
        return efficiency(
            _work(row, outcome.measured), summary.median, calibration.copy_rate, calibration.matmul
        )


def row_job(row: PlannedRow, settings: RunSettings, specs: Sequence[Spec]) -> RowJob:
    """The message that has contenders measured on a row."""
    s = settings
    return RowJob(
        op=row.op, label=row.label, dtypes=row.dtypes, scale=row.scale, manifest=s.manifest,
        target=s.target, timer=s.timer, contenders=tuple(specs), seed=s.seed, budget_s=s.budget_s,
        min_samples=s.min_samples, max_samples=s.max_samples, scrub_bytes=s.scrub_bytes,
    )  # fmt: skip


def _work(row: PlannedRow, measured: Measured) -> Work:
    return Work(measured.flops, measured.bytes, measured.bytes_written, tuple(set(row.dtypes.values())))


def _transient(judgement: Judgement) -> bool:
    """Every problem is one that a busy machine can cause."""
    return bool(judgement.problems) and all(p.code in TRANSIENT for p in judgement.problems)
