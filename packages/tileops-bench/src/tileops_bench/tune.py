"""Tuning: measures a kernel's configs and writes a free-standing file. Adopting it is a change to
tileops-kernels."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field

from tileops_bench.conditions import cpu_scrub_bytes, installed_versions
from tileops_bench.errors import ProtocolError, UsageError
from tileops_bench.plan import PlannedRow, plan
from tileops_bench.protocol import ConfigJob, ConfigTimes
from tileops_bench.records import Record
from tileops_bench.resolve import OWN
from tileops_bench.session import ChildDied, ChildSession
from tileops_bench.stats import Verdict, compare, summarise

TIMEOUT_S = 1800.0


class TunedRow(Record):
    """The best config of one row. It is the default unless another one is FAST against it."""

    row: str
    dtypes: dict[str, str]
    default: dict[str, Any]
    config: dict[str, Any]
    default_ns: float
    median_ns: float
    speedup: float
    verdict: Verdict
    tried: int
    failed: dict[str, str]


class Tuning(Record):
    """A tuning file: which configs were fastest, where and when."""

    schema_: Literal["tileops-tuning/1"] = Field(default="tileops-tuning/1", alias="schema")
    created: str
    device: str
    target: Literal["cpu", "cuda"]
    timer: str
    op: str
    kernel: str
    versions: dict[str, str]
    rows: tuple[TunedRow, ...]

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def tune_op(
    op: str,
    target: str,
    timer: str,
    *,
    kernel: str | None = None,
    labels: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    limit: int = 16,
    budget_s: float = 1.0,
    cpus: tuple[int, ...] = (),
) -> Tuning:
    """Measure the configs of an op's kernel on its rows.

    Raises:
        UsageError: no such op, row or kernel, or a row on which not even the default config can be timed.
        ProtocolError: the measuring process died.
    """
    from tileops_manifest import load_manifest

    manifest = load_manifest()
    scale = "cpu" if target == "cpu" else None
    rows = plan(manifest, [op], target, OWN, labels, dtypes, scale)
    name = kernel or _only_kernel(op, dict(manifest[op].kernel_map))
    with ChildSession(target, cpus) as child:
        tuned = [_tune_row(child, row, name, target, timer, limit, budget_s) for row in rows]
        device = child.ready.device
    return Tuning(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
        target=target,
        timer=timer,
        op=op,
        kernel=name,
        versions=installed_versions(),
        rows=tuple(tuned),
    )


def _only_kernel(op: str, kernel_map: dict[str, str]) -> str:
    names = sorted(set(kernel_map.values()))
    if len(names) != 1:
        raise UsageError(
            f"{op} has {len(names)} kernels ({', '.join(names) or 'none'}); choose with --kernel"
        )
    return names[0]


def _tune_row(
    child: ChildSession, row: PlannedRow, kernel: str, target: str, timer: str, limit: int, budget_s: float
) -> TunedRow:
    job = ConfigJob(
        kernel=kernel, op=row.op, label=row.label, dtypes=row.dtypes, limit=limit, target=target, timer=timer,
        budget_s=budget_s, scale=row.scale, scrub_bytes=cpu_scrub_bytes() if target == "cpu" else 0,
    )  # fmt: skip
    try:
        reply = child.ask(job, TIMEOUT_S).reply
    except ChildDied as error:
        raise ProtocolError(f"tuning {row.id} failed {error}") from error
    if not isinstance(reply, ConfigTimes):
        raise ProtocolError(f"a tuning job was answered with {type(reply).__name__}")
    return choose(row, reply)


def choose(row: PlannedRow, times: ConfigTimes) -> TunedRow:
    """Pick the fastest config; the default stays unless the other is FAST against it.

    Raises:
        UsageError: the default config could not be timed.
    """
    default = times.samples[0]
    if not default or times.errors[0]:
        raise UsageError(f"{row.id}: the default config could not be timed: {times.errors[0]}")
    usable = [i for i, s in enumerate(times.samples) if s and not times.errors[i]]
    best = min(usable, key=lambda i: summarise(times.samples[i]).median)
    comparison = compare(times.samples[best], default)
    if comparison.verdict is not Verdict.FAST:
        best, comparison = 0, compare(default, default)
    return TunedRow(
        row=row.id,
        dtypes=row.dtypes,
        default=times.configs[0],
        config=times.configs[best],
        default_ns=summarise(default).median,
        median_ns=summarise(times.samples[best]).median,
        speedup=comparison.speedup,
        verdict=comparison.verdict,
        tried=len(times.configs),
        failed={str(times.configs[i]): e for i, e in enumerate(times.errors) if e},
    )
