"""Parametrisation over an entry's cases, for pytest or any other runner, without importing one.

class RMSNormFixture(FixtureBase):
    op = "RMSNormFwdOp"
    distributions = ("normal", "exact")

@pytest.mark.parametrize(**RMSNormFixture.parametrize())
def test_rms_norm(workload): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from tileops_manifest import Entry, Manifest, load_manifest

from .base import WorkloadBase
from .distributions import DISTRIBUTIONS
from .errors import require_name
from .layouts import LAYOUTS
from .registry import make_workload
from .scale import SCALES


class FixtureMeta(type):
    """Checks a fixture's declaration when its class is made, and lets the class be counted and iterated over.

    Raises (at class creation): UnknownNameError for a distribution, layout or scale that does not exist.
    """

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> FixtureMeta:
        cls = super().__new__(mcls, name, bases, namespace)
        for kind, given, known in (
            ("distribution", cls.distributions, DISTRIBUTIONS),
            ("layout", cls.layouts, LAYOUTS),
            ("scale", (cls.scale,) if cls.scale is not None else (), SCALES),
        ):
            for item in given:
                require_name(kind, item, known)
        return cls

    def __iter__(cls) -> Iterator[WorkloadBase]:
        yield from cls.workloads()

    def __len__(cls) -> int:
        return sum(1 for _ in cls.workloads())


class FixtureBase(metaclass=FixtureMeta):
    """Declares which workloads of an op to run. Subclass it and set:

    Attributes:
        op: manifest name of the op.
        labels: row labels; empty for every row of the entry.
        distributions, layouts, seeds: the product of these is taken for every row and dtype.
        scale: "cpu" or None.
        manifest: another manifest than the packaged one.
    """

    op: ClassVar[str] = ""
    labels: ClassVar[Sequence[str]] = ()
    distributions: ClassVar[Sequence[str]] = ("normal",)
    layouts: ClassVar[Sequence[str]] = ("contiguous",)
    seeds: ClassVar[Sequence[int]] = (0,)
    scale: ClassVar[str | None] = None
    device: ClassVar[str] = "cpu"
    manifest: ClassVar[Manifest | None] = None

    @classmethod
    def entry(cls) -> Entry:
        """The op's manifest entry. Raises UnknownOpError (manifest) for an op that does not exist."""
        return (cls.manifest or load_manifest())[cls.op]

    @classmethod
    def workloads(cls) -> Iterator[WorkloadBase]:
        """A workload for each row, dtype item, distribution, layout and seed; no input is generated yet.

        Raises:
            UnknownNameError: a label that the entry does not have.
        """
        entry = cls.entry()
        known = [row.label for row in entry.workloads]
        for label in cls.labels:
            require_name("row label", label, known)
        for case in entry.cases():
            if cls.labels and case.row.label not in cls.labels:
                continue
            for distribution in cls.distributions:
                for layout in cls.layouts:
                    for seed in cls.seeds:
                        yield make_workload(
                            entry,
                            case.row,
                            case.dtypes,
                            distribution=distribution,
                            layout=layout,
                            seed=seed,
                            device=cls.device,
                            scale=cls.scale,
                        )

    @classmethod
    def parametrize(cls) -> dict[str, Any]:
        """Keyword arguments of `pytest.mark.parametrize`: one argument `workload`, ids from the workloads."""
        workloads = list(cls.workloads())
        return {
            "argnames": "workload",
            "argvalues": workloads,
            "ids": [workload.id for workload in workloads],
        }
