"""Nothing of a call can be ignored: for every param and every floating or optional input the smoke tier has a
case in which an implementation that takes a fixed value instead is told from the oracle; of an implemented op
one in each branch, so that nothing can be ignored there alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch

from tileops_manifest import Binding, SpecError, load_manifest
from tileops_tests.cases import Case, plan
from tileops_tests.comparator import OutputReference, compare
from tileops_tests.oracles import get_oracle, list_oracles
from tileops_tests.reference import build_references, rounded_to
from tileops_tests.tolerance import constants_for

MANIFEST = load_manifest()

# Larger cases are left out: what only they could show takes too long to see.
MAX_ELEMENTS = 1 << 19

# What an implementation may take instead of an input.
NEUTRAL = {"absent": lambda x: None, "zeros": torch.zeros_like, "ones": torch.ones_like}

# Values that are tried for a param that no case sets to two different ones: is there a second legal one?
ANY_VALUE = (False, True, 0, 1, 2, 3, -1, -2, 0.5, 2.0, 8.0, None, (0,), "float16", "bfloat16")

# Params that no value depends on, and why.
_BOUND, _CHUNK = "bounds what other inputs hold", "says how the work is cut, not what it is"
WITHOUT_EFFECT: Mapping[tuple[str, str], str] = {
    ("EngramGateConvBwdOp", "eps"): "the saved factors hold it already",
    ("FP8LightningIndexerFwdOp", "clean_logits"): "without it anything may stand where -inf does else",
    ("GLABwdOp", "chunk_size"): _CHUNK,
    ("GatedDeltaNetBwdOp", "chunk_size"): _CHUNK,
    ("GroupedQueryAttentionPrefillFwdOp", "max_seqlen_q"): _BOUND,
    ("GroupedQueryAttentionPrefillFwdOp", "max_seqlen_kv"): _BOUND,
    ("GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp", "max_seqlen_q"): _BOUND,
    ("GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp", "max_position"): _BOUND,
    ("GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp", "cache_dtype"): "repeats what the cache says",
    ("GroupedQueryAttentionSlidingWindowVarlenFwdOp", "max_seqlen_q"): _BOUND,
    ("MHCPreFwdOp", "alpha_post"): "belongs to a result that the op does not return",
    ("RopeNeoxPositionIdsFwdOp", "max_position"): _BOUND,
}

# Params that no value depends on in some branches: which these are.
UNUSED_IN: Mapping[tuple[str, str], Callable[[Mapping[str, Any], frozenset[str]], bool]] = {
    ("BatchNormFwdOp", "momentum"): lambda params, given: not params["training"],
    ("DropoutFwdOp", "p"): lambda params, given: not params["training"],
    ("DropoutFwdOp", "seed"): lambda params, given: not params["training"],
    **{
        (op, "window_size_right"): lambda params, given: params["is_causal"]
        for op in (
            "GroupedQueryAttentionPrefillFwdOp",
            "GroupedQueryAttentionSlidingWindowFwdOp",
            "GroupedQueryAttentionSlidingWindowVarlenFwdOp",
        )
    },
    ("InstanceNormFwdOp", "momentum"): lambda params, given: (
        not (params["use_input_stats"] and "running_mean" in given)
    ),
}

# Inputs that a fixed value may stand for, and why.
REPLACEABLE: Mapping[tuple[str, str, str], str] = {
    ("DeltaNetBwdOp", name, how): "saved by the forward pass: follows from the other inputs"
    for name in ("Aw", "Au", "w", "u")
    for how in ("zeros", "ones")
}


@cache
def small_cases(op: str) -> list[Case]:
    """The smoke tier of an op, the least elements first, so that what can be seen is seen soon."""
    small = (case for case in plan(MANIFEST[op]) if elements(case.binding) <= MAX_ELEMENTS)
    return sorted(small, key=lambda case: elements(case.binding))


class Smoke:
    """The cases of an op, and answers to calls that differ from them."""

    def __init__(self, op: str) -> None:
        self.entry, self.oracle, self.cases = MANIFEST[op], get_oracle(op), small_cases(op)
        self._known: dict[str, tuple[dict[str, Any], list[OutputReference]]] = {}

    def branches(self) -> list[Branch]:
        """The cases apart by the values of switches (bools, choices) and by the optional inputs given."""
        switches = [n for n, spec in self.entry.params.items() if spec.choices or str(spec.type) == "bool"]
        optional = [n for n, spec in self.entry.inputs.items() if spec.optional]
        cases: dict[str, list[Case]] = {}
        branches: dict[str, Branch] = {}
        for case in self.cases:
            params = {name: case.binding.params[name] for name in switches}
            given = frozenset(name for name in optional if case.binding.inputs[name] is not None)
            key = repr((params, sorted(given)))
            cases.setdefault(key, []).append(case)
            part = copy(self)
            part.cases = cases[key]
            branches.setdefault(key, Branch(params, given, part))
        return list(branches.values())

    def tells(self, case: Case, params: Mapping[str, Any], inputs: Mapping[str, Any] | None = None) -> bool:
        """Whether the judge tells the oracle's answer to a changed call from its answer to the case."""
        given, references = self.known(case)
        meant = case.binding
        taken = {**given, **(inputs or {})}
        try:
            answer = self.oracle.ref_program(taken, {**meant.params, **params}, torch.float64)
        except (IndexError, ZeroDivisionError):
            # A place that does not exist, a divisor of zero: the changed call has no answer.
            return True
        if [tuple(x.shape) for x in answer] != [tuple(r.expected.shape) for r in references]:
            return True
        stored = tuple(rounded_to(x, r.dtype) for x, r in zip(answer, references, strict=True))
        stored = self.oracle.canonical_form(given, meant.params, stored)
        found = (
            compare(torch.view_as_complex(x) if r.complex else x, r)
            for x, r in zip(stored, references, strict=True)
        )
        return any(finding.code is not None for finding in found)

    def known(self, case: Case) -> tuple[dict[str, Any], list[OutputReference]]:
        """The inputs of a case and what its results are judged by."""
        if case.id not in self._known:
            inputs = case.spec.workload(0).gen_inputs()
            constants, distribution = constants_for(self.entry.name, "cpu"), case.spec.distribution
            self._known[case.id] = (
                inputs,
                build_references(
                    case.binding, self.oracle, inputs, constants, distribution=distribution, with_low=False
                ),
            )
        return self._known[case.id]

    def bound(self, case: Case, params: Mapping[str, Any], absent: str | None = None) -> Binding | None:
        """The binding of the case with other params, or without an input; None where the entry refuses it."""
        metas = {**case.binding.inputs, **({absent: None} if absent else {})}
        try:
            return self.entry.bind(metas, {**case.binding.params, **params})
        except SpecError:
            return None


class Branch(NamedTuple):
    """Switches at one value each, some optional inputs, and the cases that have them."""

    params: Mapping[str, Any]
    given: frozenset[str]
    smoke: Smoke


def elements(binding: Binding) -> int:
    metas = [*binding.inputs.values(), *binding.outputs.values()]
    return sum(math.prod(meta.shape) for meta in metas if meta is not None)


def same(a: Any, b: Any) -> bool:
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def ignoring(smoke: Smoke, name: str) -> Iterator[tuple[Case, dict[str, Any], Binding]]:
    """Cases, and the legal calls that an implementation which ignores a param would take them for: with its
    default, or where it has none, with the value that it has in some other case.
    """
    spec = smoke.entry.params[name]
    values = [case.binding.params[name] for case in smoke.cases] if spec.required else [spec.default]
    for case in smoke.cases:
        for value in {repr(value): value for value in values}.values():
            if not same(value, case.binding.params[name]):
                binding = smoke.bound(case, {name: value})
                if binding is not None:
                    yield case, {name: value}, binding


def is_seen(smoke: Smoke, name: str) -> bool:
    """Whether a case tells who ignores a param: by dtypes, shapes or what is written, else by values."""
    return any(
        (other.results, other.mutated) != (case.binding.results, case.binding.mutated)
        or smoke.tells(case, params)
        for case, params, other in ignoring(smoke, name)
    )


def is_fixed(smoke: Smoke, name: str) -> bool:
    """Whether a param's value follows from the inputs, or is the only one that the entry allows."""
    choices = smoke.entry.params[name].choices or ()
    return not any(
        smoke.bound(case, {name: value}) is not None
        for case in smoke.cases
        for value in (*ANY_VALUE, *choices)
        if not same(value, case.binding.params[name])
    ) and not any(ignoring(smoke, name))


PARAMS = [(op, name) for op in list_oracles() for name in MANIFEST[op].params]


@pytest.fixture(scope="module")
def smoke() -> Any:
    """One op's cases at a time: the params of an op follow one another."""
    held: dict[str, Smoke] = {}

    def of(op: str) -> Smoke:
        if op not in held:
            held.clear()
            held[op] = Smoke(op)
        return held[op]

    return of


@pytest.mark.parametrize(("op", "name"), PARAMS)
def test_who_ignores_a_param_is_told(smoke: Any, op: str, name: str) -> None:
    seen = is_seen(smoke(op), name) or is_fixed(smoke(op), name)
    assert seen != ((op, name) in WITHOUT_EFFECT)


def test_a_param_that_one_branch_alone_varies_is_seen_in_that_one() -> None:
    smoke = Smoke("BatchNormFwdOp")
    smoke.cases = [
        case for case in smoke.cases if case.binding.params["training"] or case.binding.params["eps"] == 1e-5
    ]
    seen = {branch.params["training"]: is_seen(branch.smoke, "eps") for branch in smoke.branches()}
    assert seen == {True: True, False: False}


def test_a_param_that_no_case_varies_is_neither_seen_nor_fixed() -> None:
    smoke = Smoke("NanToNumFwdOp")
    smoke.cases = [case for case in smoke.cases if case.binding.params["neginf"] is None]
    assert is_seen(smoke, "posinf")
    assert not is_seen(smoke, "neginf")
    assert not is_fixed(smoke, "neginf")


def test_a_param_that_the_entry_leaves_no_second_value_is_fixed() -> None:
    for op, name in (("L2NormFwdOp", "ord"), ("LayerNormFwdOp", "normalized_shape")):
        assert is_fixed(Smoke(op), name)


INPUTS = [
    (op, name, how)
    for op in list_oracles()
    for name, spec in MANIFEST[op].inputs.items()
    for how in NEUTRAL
    if spec.optional or (how != "absent" and spec.values is None)
]


def is_told(smoke: Smoke, name: str, how: str) -> bool:
    """Whether a case tells who takes an input for something else; one that the entry does not let be absent
    is not.
    """
    possible = False
    for case in smoke.cases:
        x = smoke.known(case)[0][name] if case.binding.inputs[name] is not None else None
        if x is None or (how == "absent" and smoke.bound(case, {}, absent=name) is None):
            continue
        possible = True
        if smoke.tells(case, {}, {name: NEUTRAL[how](x)}):
            return True
    return not possible


@pytest.mark.parametrize(("op", "name", "how"), INPUTS)
def test_who_takes_an_input_for_something_else_is_told(smoke: Any, op: str, name: str, how: str) -> None:
    assert is_told(smoke(op), name, how) != ((op, name, how) in REPLACEABLE)


IMPLEMENTED = tuple(op for op in list_oracles() if MANIFEST[op].status.cpu == "implemented")


@pytest.mark.parametrize("op", IMPLEMENTED)
def test_who_ignores_something_in_one_branch_alone_is_told(smoke: Any, op: str) -> None:
    for params, given, cases in smoke(op).branches():
        for name in MANIFEST[op].params.keys() - params.keys():
            unused = (op, name) in WITHOUT_EFFECT or UNUSED_IN.get((op, name), nowhere)(params, given)
            seen = is_seen(cases, name)
            assert not seen if unused else seen or is_fixed(cases, name), (name, params, given)
        for name, how in ((name, how) for of, name, how in INPUTS if of == op):
            assert is_told(cases, name, how), (name, how, params, given)


def nowhere(params: Mapping[str, Any], given: frozenset[str]) -> bool:
    return False


@pytest.mark.parametrize("op", IMPLEMENTED)
def test_no_bound_is_negative_where_params_are(smoke: Any, op: str) -> None:
    for case in (case for case in smoke(op).cases if case.spec.params):
        assert not any((r.bound < 0).any() for r in smoke(op).known(case)[1] if r.bound is not None), case.id
