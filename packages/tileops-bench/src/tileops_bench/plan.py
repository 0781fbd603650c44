"""Which rows a run declares: every workload row and dtype of the chosen ops."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tileops_bench.baselines.base import Baseline
from tileops_bench.digests import text_digest
from tileops_bench.errors import UsageError
from tileops_bench.resolve import OWN


@dataclass(frozen=True)
class PlannedRow:
    """One row to measure."""

    id: str
    op: str
    label: str
    dtypes: dict[str, str]
    scale: str | None
    entry_digest: str

    def inputs_digest(self, workloads: str, seed: int) -> str:
        """Digest of what the inputs are made from."""
        return text_digest(
            (workloads, self.label, repr(sorted(self.dtypes.items())), str(self.scale), str(seed))
        )


def plan(
    manifest: Any,
    ops: Sequence[str],
    target: str,
    candidate: str,
    labels: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    scale: str | None = None,
) -> list[PlannedRow]:
    """Rows of the named ops, or of every op that is implemented on the target.

    Raises:
        UsageError: an op, label or dtype that does not exist, or nothing left to measure.
    """
    names = _ops(manifest, ops, target, candidate)
    cases = [case for name in names for case in manifest[name].cases()]
    _check_known("row", labels, {case.row.label for case in cases})
    rows = []
    for case in cases:
        assigned = case.entry.resolve_dtypes(case.dtypes)
        if labels and case.row.label not in labels:
            continue
        if dtypes and not set(dtypes) & set(assigned.values()):
            continue
        suffix = f"@{scale}" if scale else ""
        row_id = f"{case.entry.name}/{case.id}{suffix}"
        rows.append(PlannedRow(row_id, case.entry.name, case.row.label, assigned, scale, case.entry.digest))
    if not rows:
        raise UsageError(f"no row is left of {len(cases)}: labels {list(labels)}, dtypes {list(dtypes)}")
    return rows


def _ops(manifest: Any, ops: Sequence[str], target: str, candidate: str) -> list[str]:
    if ops:
        _check_known("op", ops, set(manifest))
        return list(dict.fromkeys(ops))
    if candidate != OWN:
        raise UsageError("a candidate from elsewhere needs the op that it implements")
    implemented = [name for name in manifest if getattr(manifest[name].status, target) == "implemented"]
    if not implemented:
        raise UsageError(f"the manifest has no op that is implemented on {target}")
    return implemented


def _check_known(kind: str, wanted: Sequence[str], known: set[str]) -> None:
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(sorted(known)[:8])}, …"
            raise UsageError(f"no {kind} {name!r}; {hint}")


def baselines_digest(entries: Sequence[Baseline]) -> str:
    """Digest of the baselines that a row is measured against."""
    return text_digest(entry.digest for entry in entries)
