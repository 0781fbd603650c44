"""Workloads on which oracles are held against their second opinions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tileops_manifest import load_manifest
from tileops_workloads import WorkloadBase, make_workload

Ragged = Callable[..., list[WorkloadBase]]


@pytest.fixture
def ragged() -> Ragged:
    """The ragged row of an op, in each of its dtypes."""

    def workloads(op: str, **arguments: object) -> list[WorkloadBase]:
        entry = load_manifest()[op]
        row = entry.row("ragged")
        return [make_workload(entry, row, dtypes, **arguments) for dtypes in row.dtypes]

    return workloads
