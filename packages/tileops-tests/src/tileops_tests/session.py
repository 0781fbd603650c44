"""Many ops, one record: run, stream each finished op to the disk, survive interruption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from tileops_manifest import Entry, Manifest
from tileops_tests import digests
from tileops_tests.codes import ReasonCode
from tileops_tests.errors import RecordError, UsageError, WorkerStartError
from tileops_tests.record import OpRecord, Record, now, summarise, write_record
from tileops_tests.reference import OracleLike
from tileops_tests.sandbox import build_sandbox
from tileops_tests.verify import Options, OpVerification, Progress, failed_before_running
from tileops_tests.zygote import Zygote

OracleLookup = Callable[[str], OracleLike]


@dataclass(frozen=True)
class Outcome:
    """What a session leaves: the record, and whether everything asked for was finished."""

    record: Record
    interrupted: bool = False
    write_error: RecordError | None = None


def select_ops(manifest: Manifest, names: Sequence[str], target: str) -> list[Entry]:
    """Entries by name; without names, every entry that is implemented for the target.

    Raises:
        UsageError: a name that no entry has (with the nearest one), or nothing to do.
    """
    if names:
        try:
            return [manifest[name] for name in dict.fromkeys(names)]
        except LookupError as error:
            raise UsageError(str(error.args[0] if error.args else error)) from error
    entries = [entry for entry in manifest.entries.values() if getattr(entry.status, target) == "implemented"]
    if not entries:
        raise UsageError(f"no entry is implemented for target {target!r}; name the ops to verify")
    return entries


def run_session(
    entries: Sequence[Entry],
    options: Options,
    oracle_of: OracleLookup,
    *,
    jobs: int = 1,
    path: Path | None = None,
    device: str | None = None,
    on_progress: Progress | None = None,
    on_finished: Callable[[OpRecord], None] | None = None,
) -> Outcome:
    """Verify entries with `jobs` workers at a time; `path` is rewritten after each finished op.

    A record that cannot be written stops nothing: verification goes on, the first error is returned.

    Raises:
        WorkerStartError: no worker can be started on this machine.
    """
    session = _Session(options, oracle_of, len(entries), path, device or digests.cpu_name(), on_progress)
    candidate = options.candidate.path if options.candidate else None
    # Before anything is computed: a path that cannot be written should be known now, not after an hour.
    if path is not None:
        write_record(session.record(), path)
    with (
        build_sandbox(options.target, candidate=candidate) as sandbox,
        Zygote(sandbox, options.limits, threads=options.threads) as zygote,
        ThreadPoolExecutor(jobs) as pool,
    ):
        futures = {pool.submit(session.verify, entry, zygote) for entry in entries}
        try:
            while futures:
                done, futures = wait(futures, return_when=FIRST_COMPLETED)
                for future in done:
                    session.add(future.result())
                    if on_finished is not None:
                        on_finished(session.finished[-1])
        except KeyboardInterrupt:
            session.stop(futures)
            return Outcome(session.record(), interrupted=True, write_error=session.write_error)
        except WorkerStartError:
            session.stop(futures)
            raise
    return Outcome(session.record(), write_error=session.write_error)


class _Session:
    def __init__(
        self,
        options: Options,
        oracle_of: OracleLookup,
        requested: int,
        path: Path | None,
        device: str,
        on_progress: Progress | None,
    ) -> None:
        self.options, self.oracle_of, self.requested = options, oracle_of, requested
        self.path, self.device = path, device
        self.finished: list[OpRecord] = []
        self.write_error: RecordError | None = None
        self._created = now()
        self._versions = digests.versions()
        self._on_progress = on_progress

    def verify(self, entry: Entry, zygote: Zygote) -> OpRecord:
        try:
            oracle = self.oracle_of(entry.name)
            return OpVerification(entry, oracle, zygote, self.options, self._progress).run()
        except WorkerStartError:
            raise
        except Exception as error:  # noqa: BLE001 - an oracle or a workload that fails is a finding about one op
            message = f"{type(error).__name__}: {error}"
            return failed_before_running(entry.name, ReasonCode.ORACLE_ERROR, message)

    def _progress(self, op: str, done: int, total: int) -> None:
        if self.options.cancel.is_set():
            raise KeyboardInterrupt
        if self._on_progress is not None:
            self._on_progress(op, done, total)

    def add(self, op: OpRecord) -> None:
        self.finished.append(op)
        if self.path is None:
            return
        try:
            write_record(self.record(), self.path)
        except RecordError as error:
            self.write_error = self.write_error or error

    def record(self) -> Record:
        ops = tuple(sorted(self.finished, key=lambda op: op.op))
        candidate = str(self.options.candidate) if self.options.candidate else None
        return Record(
            created=self._created,
            device=self.device,
            target=self.options.target,
            tier=self.options.tier,
            seed=self.options.seed,
            candidate=candidate,
            versions=self._versions,
            ops=ops,
            summary=summarise(ops, requested=self.requested),
        )

    def stop(self, futures: set[Future]) -> None:
        """Ask running verifications to end at their next case; drop those that have not begun."""
        self.options.cancel.set()
        for future in futures:
            future.cancel()
