"""Compile ahead: call every contender of every row once, in several processes, before anything is timed.

Compilers keep what they made on disk, so the measuring process finds it there. A contender that fails here
proves nothing; it fails again where it is measured, and is recorded there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from tileops_bench.baselines import baselines_for
from tileops_bench.contenders import baseline_spec, candidate_spec, split_baselines
from tileops_bench.errors import ProtocolError, UsageError
from tileops_bench.plan import PlannedRow
from tileops_bench.protocol import PrepareJob, RowJob
from tileops_bench.rowrunner import RunSettings, row_job
from tileops_bench.session import ChildDied, ChildSession


def prepare(
    rows: Sequence[PlannedRow],
    settings: RunSettings,
    jobs: int,
    on_row: Callable[[PlannedRow, str], None] = lambda row, trouble: None,
) -> None:
    """Make every contender of `rows` compile, `jobs` rows at a time.

    `on_row` hears of each, with what went wrong in it or an empty string.
    """
    queue: SimpleQueue[PlannedRow] = SimpleQueue()
    for row in rows:
        queue.put(row)
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda _: _serve(queue, settings, on_row), range(min(jobs, len(rows)))))


def _serve(
    queue: SimpleQueue[PlannedRow], settings: RunSettings, on_row: Callable[[PlannedRow, str], None]
) -> None:
    session: ChildSession | None = None
    try:
        while True:
            row = queue.get_nowait()
            try:
                # One thread each: there are as many of these processes as the machine is to bear.
                session = session or ChildSession(settings.target, (), {"OMP_NUM_THREADS": "1"})
                reply = session.ask(PrepareJob(row=_job(row, settings)), settings.timeout_s).reply
                on_row(row, "; ".join(reply.failures))
            except ChildDied as death:
                session = None
                on_row(row, str(death))
            except (UsageError, ProtocolError) as refusal:
                on_row(row, str(refusal))
    except Empty:
        return
    finally:
        if session is not None:
            session.close()


def _job(row: PlannedRow, settings: RunSettings) -> RowJob:
    running, _ = split_baselines(
        baselines_for(row.op), settings.target, settings.certificates, settings.only_baselines
    )
    return row_job(row, settings, [candidate_spec(settings.candidate), *map(baseline_spec, running)])
