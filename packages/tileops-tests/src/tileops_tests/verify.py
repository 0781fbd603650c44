"""The verdict on one op: all its cases in one confined worker, two phases, restarted when the candidate kills
it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import torch

from tileops_manifest import Entry, TensorMeta
from tileops_tests import digests
from tileops_tests.candidate import Candidate
from tileops_tests.cases import BUDGETS, Case, matches, on_device, plan
from tileops_tests.codes import ReasonCode
from tileops_tests.comparator import OutputReference
from tileops_tests.forbidden import ForbiddenCall, forbidden_calls
from tileops_tests.host import Worker, WorkerFailure
from tileops_tests.judge import POISONS, CaseRun, Failed, Values, Verdict, error_of, judge_case, portable
from tileops_tests.ledger import KnownFailure, expected_failure
from tileops_tests.limits import Limits
from tileops_tests.memory import Image, mechanism, pack, same_layout
from tileops_tests.oracles import Oracle
from tileops_tests.precision import is_float
from tileops_tests.record import CaseCounts, Failure, OpRecord, Worst
from tileops_tests.reference import (
    NUMERIC_DISTRIBUTIONS,
    OracleLike,
    build_references,
    sees_lower_precision,
)
from tileops_tests.second import changes_few, keep_most
from tileops_tests.sensitivity import KINDS, Outcome, gate
from tileops_tests.tolerance import constants_for
from tileops_tests.zygote import Zygote

# A candidate that kills this many workers is given up on; what is left is reported as not run.
MAX_WORKERS = 5

# Errors in the compile phase that decide every case of the same signature: the run phase could only fail
# differently.
_DECIDED_BY_COMPILING = frozenset(
    {ReasonCode.EXCEPTION, ReasonCode.NOT_IMPLEMENTED, ReasonCode.OUT_OF_MEMORY}
)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Options:
    """What to verify, and how far."""

    target: str = "cpu"
    tier: str = "smoke"
    seed: int = 0
    distributions: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    candidate: Candidate | None = None
    limits: Limits = field(default_factory=Limits)
    threads: int = 1
    compile_jobs: int = 1
    ledger: tuple[KnownFailure, ...] = ()
    oracle_device: str = "cpu"
    cancel: Event = field(default_factory=Event)


@dataclass
class Judged:
    """What is known about one case so far."""

    verdict: Verdict
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    refusal: str = ""


class OpVerification:
    """Runs every case of one op and keeps what came of it; `record()` is the outcome."""

    def __init__(
        self,
        entry: Entry,
        oracle: OracleLike,
        zygote: Zygote,
        options: Options,
        progress: Progress | None = None,
    ) -> None:
        self.entry, self.oracle, self.zygote, self.options = entry, oracle, zygote, options
        self.cases = plan(
            entry,
            target=options.target,
            tier=options.tier,
            seed=options.seed,
            distributions=options.distributions,
            only=options.only,
        )
        # The error contract is the op's own; a foreign kernel is judged by its results.
        per_kind = BUDGETS[options.tier].forbidden_per_kind
        forbidden = forbidden_calls(entry, per_kind=per_kind) if options.candidate is None else []
        self.forbidden = [call for call in forbidden if matches(call.id, options.only)]
        self.judged: dict[str, Judged] = {}
        self.confinement: dict[str, Any] = {"inputs": mechanism()}
        self.load_failure: Verdict | None = None
        self._references: dict[tuple[str, bool], list[OutputReference]] = {}
        self._gates: dict[str, dict[str, Outcome]] = {}
        self._progress = progress or (lambda op, done, total: None)
        self._current: Case | ForbiddenCall | None = None
        self._warmed = self._warming = False
        self._started = time.monotonic()

    @property
    def declared(self) -> int:
        return len(self.cases) + len(self.forbidden)

    def run(self) -> OpRecord:
        """Judge every case.

        Raises:
            WorkerStartError: no worker could be started: that is the machine's fault, not the candidate's.
        """
        for _ in range(MAX_WORKERS):
            if self.load_failure is not None or not self._pending():
                break
            try:
                with self._worker() as worker:
                    self._in_one_worker(worker)
            except WorkerFailure as failure:
                self._decide_current(failure)
        for case in [] if self.load_failure else self._pending():
            self._decide(
                case.id, Verdict(case.id, ReasonCode.NOT_RUN, f"{MAX_WORKERS} workers were lost before")
            )
        return self.record()

    def _worker(self) -> Worker:
        options = self.options
        return Worker(self.zygote, options.limits, threads=options.threads, cancel=options.cancel)

    def _pending(self) -> list[Case | ForbiddenCall]:
        return [case for case in (*self.cases, *self.forbidden) if case.id not in self.judged]

    def _in_one_worker(self, worker: Worker) -> None:
        self._load(worker)
        if self.load_failure is not None:
            return
        self._compile(worker)
        worker.lock()
        self.confinement |= worker.confinement
        for case in self._pending():
            self._current = case
            if isinstance(case, ForbiddenCall):
                self._decide(case.id, self._try_forbidden(worker, case))
            else:
                self._judge(worker, case)
        self._current = None

    def _load(self, worker: Worker) -> None:
        candidate = self.options.candidate
        message = (
            {"do": "load", "kind": "op", "op": self.entry.name} if candidate is None else candidate.message()
        )
        try:
            reply = worker.ask(message, timeout=self.options.limits.compile_seconds)
        except WorkerFailure as failure:
            self.load_failure = Verdict("*", failure.code, f"while loading: {failure.message}")
            return
        if not reply["ok"]:
            code, text = error_of(reply)
            kept = code if code is ReasonCode.NOT_IMPLEMENTED else ReasonCode.LOAD_FAILED
            self.load_failure = Verdict("*", kept, text)

    def _compile(self, worker: Worker) -> None:
        """Call the candidate once per signature, on values that the verdict does not use first."""
        by_signature: dict[tuple, list[Case]] = {}
        for case in self._pending():
            if isinstance(case, Case):
                by_signature.setdefault(case.signature, []).append(case)
        self._warm(worker, [cases[0] for cases in by_signature.values()])
        for cases in by_signature.values():
            self._current = cases[0]
            try:
                image, _ = self._inputs(cases[0], second=True)
                with CaseRun(worker, cases[0].binding, self.options.target, {"b": image}) as run:
                    run.run("b", POISONS[0], timeout=self.options.limits.compile_seconds)
            except Failed as failed:
                if failed.code in _DECIDED_BY_COMPILING:
                    for case in cases:
                        self._decide(case.id, Verdict(case.id, failed.code, failed.message))
        self._current = None

    def _warm(self, worker: Worker, cases: Sequence[Case]) -> None:
        """Let our own op compile several programs at a time; a foreign one may not bear threads."""
        if self._warmed or self.options.candidate is not None or self.options.compile_jobs == 1:
            return
        self._warmed = True
        calls = [self._call(case.binding.inputs.values(), case.binding.params) for case in cases]
        message = {"do": "warm", "threads": self.options.compile_jobs, "calls": calls}
        self._warming = True
        worker.ask(message, timeout=self.options.limits.compile_seconds * (len(cases) + 1))
        self._warming = False

    def _call(self, inputs: Iterable[TensorMeta | None], params: Mapping[str, Any]) -> dict[str, Any]:
        """A call on zeros, as a message."""
        device = self.options.target
        described = [
            None if meta is None else {"dtype": meta.dtype, "shape": list(meta.shape), "device": device}
            for meta in inputs
        ]
        return {"inputs": described, "params": portable(dict(params))}

    def _judge(self, worker: Worker, case: Case) -> None:
        distribution = case.spec.distribution
        image, inputs = self._inputs(case)
        first, kept = self._values(case, image, inputs, with_low=True), inputs
        image, inputs = self._inputs(case, second=True)
        if changes_few(case.same_values_as):
            keep_most(case.same_values_as, kept, inputs)
            image = pack(inputs)
        second = None
        if same_layout(first.image, image) and not torch.equal(first.image.content, image.content):
            second = self._values(case, image, inputs, with_low=False)
        own = self.options.candidate is None
        verdict = judge_case(worker, case.id, case.binding, self.options.target, first, second, own=own)
        outcomes = self._gate(case, first.references)
        refusal = ""
        if case.numeric and distribution in NUMERIC_DISTRIBUTIONS:
            refusal = _refusal(outcomes, sees_lower_precision(first.references), first)
        self._decide(case.id, verdict, outcomes, refusal)

    def _inputs(self, case: Case, *, second: bool = False) -> tuple[Image, dict[str, torch.Tensor | None]]:
        seed = self.options.seed + (1 << 20 if second else 0)
        # A row at its own size is made where the oracle runs: the bytes are the same, and a GPU is faster.
        device = "cpu" if case.spec.scale == "cpu" else self.options.oracle_device
        inputs = case.spec.workload(seed, device).gen_inputs()
        return pack(inputs), inputs

    def _values(self, case: Case, image: Image, inputs: dict, *, with_low: bool) -> Values:
        device, params = self.options.oracle_device, case.binding.params
        there = on_device(inputs, device)
        key = (case.same_values_as, with_low)
        references = self._references.get(key)
        if references is None:
            references = build_references(
                case.binding,
                self.oracle,
                there,
                constants_for(self.entry.name, self.options.target),
                distribution=case.spec.distribution,
                with_low=with_low,
            )
        if case.spec.row is not None and case.spec.distribution == "normal":
            self._references[key] = references

        def canonical(outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return self.oracle.canonical_form(there, params, tuple(x.to(device) for x in outputs))

        return Values(image, references, canonical)

    def _gate(self, case: Case, references: Sequence[OutputReference]) -> dict[str, Outcome]:
        """The gate depends on the references alone, which several layouts share."""
        if case.same_values_as not in self._gates:
            self._gates[case.same_values_as] = gate(references)
        return self._gates[case.same_values_as]

    def _try_forbidden(self, worker: Worker, call: ForbiddenCall) -> Verdict:
        message = {"do": "refuse"} | self._call(call.inputs, call.params)
        reply = worker.ask(message, timeout=self.options.limits.run_seconds)
        if reply["ok"]:
            return Verdict(
                call.id, ReasonCode.BAD_INPUT_ACCEPTED, f"no error, expected {call.error}: {call.message}"
            )
        if call.error not in reply.get("classes", ()):
            text = f"{str(reply.get('message'))[:500]}; expected {call.error}: {call.message}"
            return Verdict(call.id, ReasonCode.WRONG_ERROR, text)
        return Verdict(call.id)

    def _decide_current(self, failure: WorkerFailure) -> None:
        if self._warming:
            # Which of the calls lost the worker is not known; in the next one each is made alone.
            self._warming = False
            return
        if self._current is None:
            self.load_failure = Verdict("*", failure.code, failure.message)
            return
        self._decide(self._current.id, Verdict(self._current.id, failure.code, failure.message))

    def _decide(
        self, case: str, verdict: Verdict, outcomes: dict[str, Outcome] | None = None, refusal: str = ""
    ) -> None:
        self.judged[case] = Judged(self._by_ledger(verdict), outcomes or {}, refusal)
        self._progress(self.entry.name, len(self.judged), self.declared)

    def _by_ledger(self, verdict: Verdict) -> Verdict:
        known = expected_failure(self.options.ledger, self.entry.name, self.options.target, verdict.case)
        if known is not None and verdict.code is None:
            return Verdict(
                verdict.case, ReasonCode.UNEXPECTED_PASS, f"the ledger expects {known.code}: {known.reason}"
            )
        return verdict

    def record(self) -> OpRecord:
        """What has been judged so far, as a record."""
        failures, refusals, known, passed = [], [], 0, 0
        for case, judged in self.judged.items():
            verdict = judged.verdict
            expected = expected_failure(self.options.ledger, self.entry.name, self.options.target, case)
            if verdict.code is not None and expected is not None and expected.code == verdict.code:
                known += 1
            elif verdict.code is not None:
                failures.append(Failure(case=case, code=verdict.code, message=verdict.message))
            elif judged.refusal:
                refusals.append(
                    Failure(case=case, code=ReasonCode.INSENSITIVE_WORKLOAD, message=judged.refusal)
                )
            else:
                passed += 1
        if self.load_failure is not None:
            failures.append(Failure(case="*", code=self.load_failure.code, message=self.load_failure.message))
        bites = Counter(
            k for j in self.judged.values() for k, o in j.outcomes.items() if o is Outcome.REJECTED
        )
        unseen = self._kinds_unseen(bites)
        if unseen and not failures:
            text = f"no case of this op can tell these wrong results: {', '.join(unseen)}"
            refusals.append(Failure(case="*", code=ReasonCode.INSENSITIVE_WORKLOAD, message=text))
        run = sum(j.verdict.code is not ReasonCode.NOT_RUN for j in self.judged.values())
        refused_cases = sum(refusal.case != "*" for refusal in refusals)
        return OpRecord(
            op=self.entry.name,
            status="failed" if failures else "refused" if unseen or not passed else "passed",
            cases=CaseCounts(
                declared=self.declared, run=run, passed=passed, refused=refused_cases, known_failures=known
            ),
            worst=self._worst(),
            failures=tuple(failures),
            refusals=tuple(refusals),
            sensitivity={kind: bites[kind] for kind in KINDS},
            confinement=self.confinement,
            digests=digests.digests_of(
                self.entry,
                self.oracle,
                self.options.candidate.path if self.options.candidate else None,
                self.options.target,
            ),
            seconds=round(time.monotonic() - self._started, 3),
        )

    def _kinds_unseen(self, bites: Counter) -> list[str]:
        """Kinds of wrong result that no case rejected; rounding means nothing to an op without floating
        outputs, or with such only as every format holds.
        """
        dtypes = {meta.dtype for case in self.cases for meta in case.binding.outputs.values()}
        rounds = any(is_float(name) for name in dtypes)
        if isinstance(self.oracle, Oracle):
            rounds = rounds and self.oracle.rounds
        applicable = [kind for kind in KINDS if kind != "rounded" or rounds]
        return [kind for kind in applicable if not bites[kind]]

    def _worst(self) -> Worst | None:
        findings = [(case, j.verdict.worst) for case, j in self.judged.items() if j.verdict.worst is not None]
        findings = [(case, f) for case, f in findings if f.bound > 0 and math.isfinite(f.error + f.ratio)]
        if not findings:
            return None
        case, finding = max(findings, key=lambda item: item[1].ratio)
        return Worst(
            case=case,
            output=finding.output,
            error=finding.error,
            bound=finding.bound,
            ratio=finding.ratio,
        )


def _refusal(outcomes: dict[str, Outcome], sees_lower: bool, values: Values) -> str:
    """Why a case that agrees proves nothing; empty where it does."""
    if all(reference.expected.numel() == 0 for reference in values.references):
        return ""
    if not sees_lower:
        return "one step down the precision ladder stays within twice the bound everywhere"
    accepted = [kind for kind, outcome in outcomes.items() if outcome is Outcome.ACCEPTED]
    if accepted:
        return f"wrong results pass: {', '.join(accepted)}"
    if not any(outcome is Outcome.REJECTED for outcome in outcomes.values()):
        return "no kind of wrong result changes the output"
    return ""


def failed_before_running(op: str, code: ReasonCode, message: str) -> OpRecord:
    """The record of an op about which nothing can be said."""
    return OpRecord(
        op=op,
        status="error",
        cases=CaseCounts(declared=0, run=0, passed=0),
        failures=(Failure(case="*", code=code, message=message),),
        seconds=0.0,
    )


__all__: Sequence[str] = ["Judged", "OpVerification", "Options", "failed_before_running"]
