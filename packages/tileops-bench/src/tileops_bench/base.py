"""`BenchmarkBase[W]`: one workload, profiled against independent baselines."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tileops_bench.conditions import cpu_scrub_bytes
from tileops_bench.digests import candidate_digest
from tileops_bench.errors import UsageError
from tileops_bench.plan import PlannedRow
from tileops_bench.records import Header, Row
from tileops_bench.resolve import OWN
from tileops_bench.rowrunner import RunSettings
from tileops_bench.runner import RunRequest, available_cpus, execute
from tileops_bench.session import ChildSession
from tileops_bench.store import read_results
from tileops_bench.timers import DEFAULT_TIMER

W = TypeVar("W")


@dataclass(frozen=True)
class BenchmarkReport:
    """What `profile` found: the conditions, and the row with its verdict, samples and problems."""

    header: Header
    row: Row

    @property
    def speedup(self) -> float | None:
        """Median ratio over the strongest valid baseline, or None for an INVALID row."""
        valid = self.row.comparison is not None and not self.row.problems
        return self.row.comparison.speedup if valid else None

    def to_html(self) -> str:
        """A self-contained HTML report."""
        from tileops_bench.report import ReportDocument, render, sections_of

        return render(ReportDocument(title=self.row.id, sections=sections_of(self.header, (self.row,))))


class BenchmarkBase(Generic[W]):
    """A benchmark of one workload, generic over the workload's type.

    A workload built from a manifest row (`tileops_workloads.make_workload`) has everything that is needed:
    the entry and row name the op, the binding gives operations and bytes. Measuring happens in a process of
    its own.

    Args:
        workload: has `entry`, `row`, `binding`, `scale` and `seed`; the row must not be None.
        candidate: `tileops`, `FILE.py:OBJECT` or `package.module:OBJECT`.

    Raises:
        UsageError: the workload has no row: its inputs cannot be made again in another process.

    >>> from tileops_manifest import load_manifest
    >>> from tileops_workloads import make_workload
    >>> entry = load_manifest()["RMSNormFwdOp"]
    >>> case = next(iter(entry.cases()))
    >>> bench = BenchmarkBase(make_workload(entry, case.row, case.dtypes, scale="cpu"))
    >>> bench.calculate_memory() > 0
    True
    """

    def __init__(self, workload: W, candidate: str = OWN) -> None:
        if getattr(workload, "row", None) is None:
            raise UsageError(f"{type(workload).__name__} has no manifest row, so it cannot be benchmarked")
        self.workload = workload
        self.candidate = candidate

    def calculate_flops(self) -> int:
        """Floating-point operations of one call, from the manifest's roofline."""
        return int(self._workload.binding.flops)

    def calculate_memory(self) -> int:
        """Bytes that one call must read and write, from the manifest's roofline."""
        return int(self._workload.binding.bytes)

    def profile(
        self,
        target: str = "cpu",
        *,
        timer: str | None = None,
        budget_s: float = 1.0,
        baselines: Sequence[str] | None = None,
        threads: int | None = None,
        alone: bool = True,
        confirm: bool = True,
    ) -> BenchmarkReport:
        """Measure the candidate beside its baselines and judge it.

        Raises:
            BenchError: the candidate does not exist, the timer cannot work here, or the measuring process
                broke.
        """
        cpus = available_cpus(threads)
        settings = RunSettings(
            target=target,
            timer=timer or DEFAULT_TIMER[target],
            candidate=self.candidate,
            candidate_digest=candidate_digest(self.candidate),
            cpus=cpus,
            scrub_bytes=cpu_scrub_bytes() if target == "cpu" else 0,
            budget_s=budget_s,
            seed=self._workload.seed,
            alone=alone,
            confirm=confirm,
            only_baselines=frozenset(baselines) if baselines is not None else None,
        )
        with tempfile.TemporaryDirectory() as folder, ChildSession(target, cpus) as child:
            out = Path(folder) / "row.jsonl"
            execute(RunRequest((self._row(),), settings, child.ready, out, ("profile",), clean=child))
            results = read_results(out)
        return BenchmarkReport(results.header, results.rows[0])

    @property
    def _workload(self) -> Any:
        return self.workload

    def _row(self) -> PlannedRow:
        w = self._workload
        dtypes = dict(w.binding.dtypes)
        name = "-".join([w.row.label, *sorted(set(dtypes.values()))])
        return PlannedRow(
            f"{w.entry.name}/{name}", w.entry.name, w.row.label, dtypes, w.scale, w.entry.digest
        )
