"""Which cases an op is judged on: derived from its entry alone, the same for every op.

Tiers: `smoke` samples each source of cases, `full` exhausts it. Sources: workload rows in each dtype,
distributions, boundary shapes (dtypes rotate over all that the entry allows), each param at another value
than its default, and memory layouts. What subtracts a mean is also judged far from 0, in all of its dtypes.
Calls that the entry forbids are those of `forbidden`.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tileops_manifest import Binding, Entry, Row, SpecError
from tileops_tests.errors import UsageError
from tileops_workloads import (
    CENTRED,
    DISTRIBUTIONS,
    LayoutError,
    WorkloadBase,
    boundary_dims,
    make_workload,
    param_dims,
)

TIERS = ("smoke", "full")
LAYOUTS = ("strided", "transposed", "expanded", "offset", "zero-dim", "empty")
# Layouts under which every element keeps its value (an expanded input repeats one slice).
MOVED = frozenset({"strided", "transposed", "offset"})
# Distributions that say something about every op; `shifted` is for those that subtract a mean.
GENERAL = tuple(name for name in DISTRIBUTIONS if name != "shifted")

# What the oracle can afford in float64: (operations, elements of inputs and outputs) by where it runs.
AFFORDABLE = {"cpu": (1 << 32, 1 << 25), "cuda": (1 << 41, 1 << 28)}


@dataclass(frozen=True)
class Budget:
    """How much of each source a tier takes (None: all); `branches`: rows beside the first and most ragged,
    `own_size`: rows that a GPU is given at their own size, where a kernel may choose another schedule.
    """

    branches: int | None
    own_size: int | None
    boundary: int | None
    forbidden_per_kind: int | None
    all_dtypes: bool


BUDGETS = {
    "smoke": Budget(branches=2, own_size=3, boundary=8, forbidden_per_kind=1, all_dtypes=False),
    "full": Budget(branches=None, own_size=None, boundary=None, forbidden_per_kind=None, all_dtypes=True),
}


@dataclass(frozen=True)
class Spec:
    """One case before its inputs exist; `workload(seed)` makes them, other seeds give other values in the
    same shapes.
    """

    entry: Entry
    row: Row | None
    dtypes: Mapping[str, str]
    dims: Mapping[str, Any] | None = None
    params: Mapping[str, Any] | None = None
    with_: tuple[str, ...] | None = None
    distribution: str = "normal"
    layout: str = "contiguous"
    scale: str | None = "cpu"

    def workload(self, seed: int, device: str = "cpu") -> WorkloadBase:
        """The workload of this case.

        Raises:
            LayoutError, SpecError, DomainError: (workloads, manifest) the combination does not exist.
        """
        return make_workload(
            self.entry, self.row, self.dtypes, dims=self.dims, params=self.params, with_=self.with_,
            distribution=self.distribution, layout=self.layout, seed=seed, device=device, scale=self.scale,
        )  # fmt: skip

    def name(self, workload: WorkloadBase) -> str:
        """The workload's name; for a free shape with its params and optional inputs."""
        if self.row is not None:
            return workload.id
        given = [
            f"{name}={str(value).replace(' ', '')}" for name, value in sorted((self.params or {}).items())
        ]
        return "-".join([workload.id, *given, *(f"with={name}" for name in self.with_ or ())])


@dataclass(frozen=True)
class Case:
    """A legal call to be judged. `numeric`: its values are evidence about precision, so it may be refused."""

    id: str
    spec: Spec
    binding: Binding

    @property
    def numeric(self) -> bool:
        """Boundary shapes and layouts are about shapes and layouts; rows are about values."""
        return self.spec.row is not None and self.spec.layout == "contiguous"

    @property
    def same_values_as(self) -> str:
        """Name of the contiguous case with the same values; the own name where a layout changes them."""
        if self.spec.layout not in MOVED:
            return self.id
        return self.id.replace(f"-{self.spec.layout}", "")

    @property
    def signature(self) -> tuple:
        """What a compiled program may depend on; the values are not among it."""
        metas = tuple((m.shape, m.dtype) if m else None for m in self.binding.inputs.values())
        return metas, repr(sorted(self.binding.params.items())), self.spec.layout


def plan(
    entry: Entry,
    *,
    target: str = "cpu",
    tier: str = "smoke",
    seed: int = 0,
    distributions: Iterable[str] = (),
    only: Iterable[str] = (),
) -> list[Case]:
    """All legal cases of an op, in the order they are judged; duplicates by identity are dropped.

    `distributions` and `only` (patterns over case names) narrow the plan; empty means everything.

    Raises:
        UsageError: an unknown tier or distribution.
    """
    if tier not in BUDGETS:
        raise UsageError(f"tier is {tier!r}, expected one of {', '.join(BUDGETS)}")
    wanted = tuple(distributions)
    for name in wanted:
        if name not in DISTRIBUTIONS:
            raise UsageError(f"distribution is {name!r}, expected one of {', '.join(DISTRIBUTIONS)}")
    cases: dict[str, Case] = {}
    for spec in _specs(entry, BUDGETS[tier], target):
        if wanted and spec.distribution not in wanted:
            continue
        try:
            workload = spec.workload(seed)
        except (LayoutError, SpecError):
            continue
        name = spec.name(workload)
        if _affordable(workload.binding, target) and matches(name, only):
            cases.setdefault(name, Case(name, spec, workload.binding))
    return list(cases.values())


def matches(case: str, patterns: Iterable[str]) -> bool:
    """Whether a case name matches one of the patterns (`*`, `?`), or there are none.

    >>> matches("ragged-float16-s0", ["ragged-*"])
    True
    """
    wanted = tuple(patterns)
    return not wanted or any(fnmatch.fnmatchcase(case, pattern) for pattern in wanted)


def _specs(entry: Entry, budget: Budget, target: str) -> Iterator[Spec]:
    head, *branches = _by_branch(entry)
    ragged = max(entry.workloads, key=_raggedness)
    for row in (head, ragged):
        yield from (Spec(entry, row, entry.resolve_dtypes(item)) for item in row.dtypes)
    for row in [row for row in branches if row is not ragged][: budget.branches]:
        items = row.dtypes if budget.all_dtypes else row.dtypes[:1]
        yield from (Spec(entry, row, entry.resolve_dtypes(item)) for item in items)
    first = Spec(entry, head, entry.resolve_dtypes(head.dtypes[0]))
    for item in head.dtypes if budget.all_dtypes else head.dtypes[:1]:
        for distribution in GENERAL:
            yield replace(first, dtypes=entry.resolve_dtypes(item), distribution=distribution)
    for row in (head, ragged) if entry.name in CENTRED else ():
        yield from (Spec(entry, row, dtypes, distribution="shifted") for dtypes in dtype_assignments(entry))
    for layout in LAYOUTS:
        yield replace(first, layout=layout)
    yield from _boundary(entry, budget)
    yield from _free(entry, param_dims(entry))
    if target == "cuda":
        yield from _own_size(entry, budget, target)


def _own_size(entry: Entry, budget: Budget, target: str) -> Iterator[Spec]:
    """Rows as they are declared, spread over the work that they are, the least and the most of it among
    them.
    """
    bound = [(row, entry.bind_row(row, entry.resolve_dtypes(row.dtypes[0]))) for row in entry.workloads]
    work = [(b.flops, _elements(b), i) for i, (_, b) in enumerate(bound) if _affordable(b, target)]
    rows = [bound[i][0] for *_, i in sorted(work)]
    count = len(rows) if budget.own_size is None else min(budget.own_size, len(rows))
    for row in (rows[i * (len(rows) - 1) // max(1, count - 1)] for i in range(count)):
        items = row.dtypes if budget.all_dtypes else row.dtypes[:1]
        yield from (Spec(entry, row, entry.resolve_dtypes(item), scale=None) for item in items)


def _raggedness(row: Row) -> int:
    """How many sizes of a row fill no vector of eight."""
    sizes = (size for dim in row.dims.values() for size in ((dim,) if isinstance(dim, int) else dim))
    return sum(size % 8 != 0 for size in sizes)


def _by_branch(entry: Entry) -> list[Row]:
    """All rows, those with a new combination of params and optional inputs first: other branches."""
    seen: set[str] = set()
    fresh, rest = [], []
    for row in entry.workloads:
        key = repr((sorted(row.params.items()), row.with_))
        (rest if key in seen else fresh).append(row)
        seen.add(key)
    return fresh + rest


def _boundary(entry: Entry, budget: Budget) -> Iterator[Spec]:
    shapes = list(boundary_dims(entry))
    if budget.boundary is not None and len(shapes) > budget.boundary:
        step = len(shapes) / budget.boundary
        shapes = [shapes[int(i * step)] for i in range(budget.boundary)]
    yield from _free(entry, shapes)


def _free(entry: Entry, shapes: Iterable[tuple[dict, dict, tuple[str, ...]]]) -> Iterator[Spec]:
    """Shapes of no row; the dtypes rotate."""
    assignments = itertools.cycle(dtype_assignments(entry))
    for dims, params, with_ in shapes:
        yield Spec(entry, None, next(assignments), dims=dims, params=params, with_=tuple(with_), scale=None)


def dtype_assignments(entry: Entry) -> list[dict[str, str]]:
    """Every dtype of every dtype variable at least once, others at their first alternative."""
    found = [entry.resolve_dtypes({name: dtype}) for name, dtypes in entry.dtypes.items() for dtype in dtypes]
    return found or [entry.resolve_dtypes({})]


def _affordable(binding: Binding, where: str) -> bool:
    flops, elements = AFFORDABLE[where]
    return binding.flops <= flops and _elements(binding) <= elements


def _elements(binding: Binding) -> int:
    metas = [*binding.inputs.values(), *binding.outputs.values()]
    return sum(math.prod(meta.shape) for meta in metas if meta is not None)


def on_device(inputs: Mapping[str, torch.Tensor | None], device: str) -> dict[str, torch.Tensor | None]:
    """The same tensors where the oracle runs."""
    return {name: None if tensor is None else tensor.to(device) for name, tensor in inputs.items()}
