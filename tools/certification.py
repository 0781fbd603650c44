"""Does a baseline of the benchmark compute what its op means? Judged by the oracles of the test stage.

The two stages never see each other; this stands above both and hands over nothing but a status and a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch

from tileops_bench.baselines import Baseline, UnsupportedCase
from tileops_bench.baselines import Case as BaselineCase
from tileops_manifest import Entry, SpecError
from tileops_tests.cases import Case, dtype_assignments, plan
from tileops_tests.codes import ReasonCode
from tileops_tests.comparator import (
    Finding,
    OutputMeta,
    OutputReference,
    check_meta,
    compare,
    contiguous_stride,
)
from tileops_tests.oracles import Oracle
from tileops_tests.precision import dtype_name
from tileops_tests.reference import build_references
from tileops_tests.sensitivity import raw_bits
from tileops_tests.tolerance import constants_for
from tileops_workloads import LayoutError

# A library may round where our own kernels must not: an intermediate in bfloat16, an approximate exponential.
# One step down the precision ladder is more than that, and another mask or scale far more.
SLACK = 4.0
SEED, EXAMPLE_SEED = 0, 1 << 20

Status = Literal["certified", "rejected", "unsupported", "failed", "unjudged"]


@dataclass(frozen=True)
class Opinion:
    """What became of one baseline; only the first two statuses are certificates.

    Attributes:
        max_error: largest error of any element in any case, as a multiple of the op's own bound there; None
            where it is not a number.
        cases: how many cases the baseline did.
        detail: the first disagreement, the error, or why nothing can be said.
    """

    op: str
    name: str
    status: Status
    max_error: float | None = None
    cases: int = 0
    detail: str = ""


@dataclass(frozen=True)
class Expected:
    """Inputs of one case, and the references of its outputs with the slack that baselines have."""

    case: Case
    inputs: dict[str, torch.Tensor | None]
    references: Sequence[OutputReference]


class OpJudge:
    """Judges the baselines of one op on one target, on `cases` (default: all of `row_cases`)."""

    def __init__(
        self, entry: Entry, oracle: Oracle, target: str, cases: Sequence[Case] | None = None
    ) -> None:
        self.entry, self.oracle, self.target = entry, oracle, target
        self.cases = row_cases(entry, target) if cases is None else cases

    def judge(self, baseline: Baseline) -> Opinion:
        """Run a baseline on every case. What it raises is its own failure, UnsupportedCase none."""
        worst, done, bad = 0.0, 0, ""
        for expected in self.expected:
            try:
                findings = self.findings(baseline, expected)
            except UnsupportedCase:
                continue
            except Exception as error:  # noqa: BLE001  a library may raise anything
                text = f"{expected.case.id}: {type(error).__name__}: {error}"
                return Opinion(baseline.op, baseline.name, "failed", None, done, text[:500])
            done += 1
            worst = max(worst, *(finding.ratio * SLACK for finding in findings))
            wrong = next((finding for finding in findings if finding.code is not None), None)
            if wrong is not None and not bad:
                bad = f"{expected.case.id}: {wrong.message}"
        if not done:
            return Opinion(baseline.op, baseline.name, "unsupported", detail="declines every case")
        error = worst if math.isfinite(worst) else None
        return Opinion(baseline.op, baseline.name, "rejected" if bad else "certified", error, done, bad)

    def findings(self, baseline: Baseline, expected: Expected) -> list[Finding]:
        """One finding per output and per mutated input that is none.

        A baseline is called on other values than it is built on: it may keep none.
        """
        case = expected.case
        example = case.spec.workload(EXAMPLE_SEED, self.target).gen_inputs()
        params = dict(case.binding.params)
        call = baseline.make(BaselineCase(baseline.op, params, example, self.target))
        given = {name: None if x is None else x.clone() for name, x in expected.inputs.items()}
        result = call(*given.values())
        outputs = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        wrong = self._malformed(case, outputs) or self._not_in_place(case, given, outputs)
        if wrong is not None:
            return [wrong]
        written = (name for name in case.binding.results if name not in case.binding.outputs)
        results = (*outputs, *(given[name] for name in written))
        canonical = self.oracle.canonical_form(expected.inputs, params, results)
        return [compare(x, reference) for x, reference in zip(canonical, expected.references, strict=True)]

    def _malformed(self, case: Case, outputs: Sequence[Any]) -> Finding | None:
        """Strides are a baseline's own business; everything else of an output's form is the op's."""
        declared = case.binding.outputs
        if len(outputs) != len(declared) or not all(isinstance(x, torch.Tensor) for x in outputs):
            got = ", ".join(type(x).__name__ for x in outputs)
            return _wrong(ReasonCode.WRONG_ARITY, f"outputs are ({got}), expected {len(declared)} tensors")
        for x, (name, meta) in zip(outputs, declared.items(), strict=True):
            stride = contiguous_stride(x.shape)
            got = OutputMeta(dtype_name(x.dtype), tuple(x.shape), stride, x.device.type)
            want = OutputMeta(meta.dtype, tuple(meta.shape), contiguous_stride(meta.shape), self.target)
            finding = check_meta(name, got, want)
            if finding is not None:
                return replace(finding, ratio=math.inf)
        return None

    def _not_in_place(self, case: Case, given: dict, outputs: Sequence[torch.Tensor]) -> Finding | None:
        """An output that is a mutated input: the input itself must hold it."""
        for x, (name, spec) in zip(outputs, self.entry.outputs.items(), strict=True):
            if spec.alias in case.binding.mutated and not torch.equal(
                raw_bits(given[spec.alias]), raw_bits(x)
            ):
                return _wrong(ReasonCode.WRONG_VALUE, f"input {spec.alias} was not updated to {name}")
        return None

    @cached_property
    def expected(self) -> list[Expected]:
        """All cases with their references; what the oracle raises is not the baselines' fault."""
        return [self._expect(case) for case in self.cases]

    def _expect(self, case: Case) -> Expected:
        inputs = case.spec.workload(SEED, self.target).gen_inputs()
        constants = constants_for(self.entry.name, self.target)
        references = build_references(case.binding, self.oracle, inputs, constants, with_low=False)
        return Expected(case, inputs, [_loosened(reference) for reference in references])


def _loosened(reference: OutputReference) -> OutputReference:
    return reference if reference.bound is None else replace(reference, bound=SLACK * reference.bound)


def _wrong(code: ReasonCode, message: str) -> Finding:
    return Finding("", code, message, ratio=math.inf)


def row_cases(entry: Entry, target: str) -> list[Case]:
    """The rows that the benchmark measures, each in its dtypes at the scale of the CPU, then every dtype that
    no row has."""
    planned = plan(entry, target=target, tier="full", seed=SEED, distributions=("normal",))
    cases = [case for case in planned if case.numeric and case.spec.scale == "cpu"]
    seen = {tuple(sorted(case.spec.dtypes.items())) for case in cases}
    for dtypes in dtype_assignments(entry):
        if cases and tuple(sorted(dtypes.items())) not in seen:
            spec = replace(cases[0].spec, dtypes=dtypes)
            try:
                workload = spec.workload(SEED)
            except (LayoutError, SpecError):  # the row's params do not go with this dtype
                continue
            cases.append(Case(spec.name(workload), spec, workload.binding))
    return cases
