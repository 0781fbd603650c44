"""A baseline that computes something else is rejected, a right one is certified, and each gets its number."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from certification import SLACK, Opinion, OpJudge, row_cases
from tileops_bench.baselines import Baseline, UnsupportedCase, baseline, baselines_for, ops_with_baselines
from tileops_manifest import load_manifest
from tileops_tests.cases import Case, Spec
from tileops_tests.oracles import get_oracle, list_oracles

Make = Callable[[Any], Callable[..., Any]]


@cache
def judge_of(op: str) -> OpJudge:
    """The judge of an op on its ragged row, which is small, in all dtypes."""
    entry = load_manifest()[op]
    small = [case for case in row_cases(entry, "cpu") if case.spec.row.label == "ragged"]
    return OpJudge(entry, get_oracle(op), "cpu", small)


def judged(op: str, make: Make) -> Opinion:
    return judge_of(op).judge(Baseline(op, "planted", make))


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide, dims = x.float(), tuple(range(-weight.dim(), 0))
    return (wide * torch.rsqrt(wide.square().mean(dims, keepdim=True) + eps) * weight.float()).to(x.dtype)


def attention(diagonal: int) -> Make:
    """Causal attention that sees `diagonal` keys more than it should."""

    def make(case: Any) -> Callable[..., Any]:
        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            mask = None
            if case.params["is_causal"]:
                mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(diagonal)
            q, k, v = (x.transpose(1, 2).float() for x in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
            return out.transpose(1, 2).to(case.inputs["q"].dtype)

        return call

    return make


def product(dtype: torch.dtype) -> Make:
    """A matrix product that rounds its operands to another dtype first."""

    def make(case: Any) -> Callable[..., Any]:
        p = case.params

        def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            a, b = (x.to(dtype).float() for x in (a.T if p["trans_a"] else a, b.T if p["trans_b"] else b))
            return (a @ b).to(case.inputs["a"].dtype)

        return call

    return make


def half_accumulator(case: Any) -> Callable[..., Any]:
    """A matrix product whose running totals are kept in 16 bits."""
    p = case.params

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = (a.T if p["trans_a"] else a).float(), (b.T if p["trans_b"] else b).float()
        total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
        for column, row in zip(a.T, b, strict=True):
            total = (total.float() + column[:, None] * row).half()
        return total.to(case.inputs["a"].dtype)

    return call


def remembered(case: Any) -> Callable[..., Any]:
    """Right for the tensors that it was built on."""
    kept = torch.exp(case.inputs["input"])
    return lambda input: kept


RIGHT: dict[str, tuple[str, Make]] = {
    "rms-norm": ("RMSNormFwdOp", lambda case: lambda x, weight: rms_norm(x, weight, case.params["eps"])),
    "attention": ("GroupedQueryAttentionFwdOp", attention(0)),
    "gemm": ("GemmFwdOp", product(torch.float32)),
}
WRONG: dict[str, tuple[str, Make]] = {
    "another-eps": ("RMSNormFwdOp", lambda case: lambda x, weight: rms_norm(x, weight, 1e-3)),
    "weight-ignored": (
        "RMSNormFwdOp",
        lambda case: lambda x, weight: rms_norm(x, torch.ones_like(weight), 1e-6),
    ),
    "mask-off-by-one": ("GroupedQueryAttentionFwdOp", attention(1)),
    "fp8-operands": ("GemmFwdOp", product(torch.float8_e4m3fn)),
    "fp16-accumulation": ("GemmFwdOp", half_accumulator),
    "values-of-the-build": ("ExpFwdOp", remembered),
    "argmin-for-argmax": (
        "ArgmaxFwdOp",
        lambda case: lambda x: torch.argmin(x, case.params["dim"], case.params["keepdim"]),
    ),
    "another-dtype": ("ExpFwdOp", lambda case: lambda input: input.double().exp()),
    "another-shape": ("ExpFwdOp", lambda case: lambda input: input.exp().flatten()),
    "one-output-too-many": ("ExpFwdOp", lambda case: lambda input: (input.exp(), input)),
    "no-tensor": ("ExpFwdOp", lambda case: lambda input: None),
}

OURS = [
    (op, entry.name)
    for op in sorted({*ops_with_baselines()} & {*load_manifest()} & {*list_oracles()})
    for entry in baselines_for(op)
    if "cpu" in entry.targets and "compile" not in entry.name
]


# A dropout of the library draws another mask, and its instance norm of 16-bit tensors rounds the statistics
# on a CPU: with certificates they take no part. Its products of groups take rows of whole 16 bytes, which
# ragged ones are not.
NOT_CERTIFIED = {
    ("DropoutFwdOp", "torch-eager"): "rejected",
    ("InstanceNormFwdOp", "torch-eager"): "rejected",
    ("GroupedGemmFwdOp", "torch-grouped-mm"): "unsupported",
    ("MoeGroupedGemmNopadFwdOp", "torch-grouped-mm"): "unsupported",
}


@pytest.mark.parametrize(("op", "make"), RIGHT.values(), ids=RIGHT)
def test_right_baseline_is_certified_with_its_largest_error(op: str, make: Make) -> None:
    opinion = judged(op, make)
    assert opinion.status == "certified", opinion
    assert opinion.cases == len(judge_of(op).cases) == 3
    assert 0 < opinion.max_error <= 1


@pytest.mark.parametrize(("op", "make"), WRONG.values(), ids=WRONG)
def test_wrong_baseline_is_rejected_and_says_where(op: str, make: Make) -> None:
    opinion = judged(op, make)
    assert opinion.status == "rejected", opinion
    assert opinion.max_error is None or opinion.max_error > SLACK
    assert "ragged" in opinion.detail


@pytest.mark.parametrize(("op", "name"), OURS)
def test_every_baseline_that_runs_here_uncompiled_is_certified(op: str, name: str) -> None:
    opinion = judge_of(op).judge(baseline(op, name))
    assert opinion.status == NOT_CERTIFIED.get((op, name), "certified"), opinion


@pytest.mark.parametrize("name", ["argmin-for-argmax", "another-shape", "no-tensor"])
def test_error_that_is_no_number_is_none(name: str) -> None:
    assert judged(*WRONG[name]).max_error is None


@pytest.mark.parametrize(("factor", "status"), [(0.8, "certified"), (1.2, "rejected")])
def test_slack_is_a_multiple_of_the_ops_own_bound(factor: float, status: str) -> None:
    """Off by a share of the slack everywhere, beside the rounding to float32: a third of the bound."""
    judge = judge_of("ExpFwdOp")
    (case,) = (e for e in judge.expected if e.case.binding.dtypes["T"] == "float32")
    (reference,) = case.references
    off = (reference.ref + factor * reference.bound).float()
    narrow = OpJudge(judge.entry, judge.oracle, "cpu", [case.case])
    opinion = narrow.judge(Baseline("ExpFwdOp", "planted", lambda _: lambda input: off))
    assert opinion.status == status
    assert opinion.max_error == pytest.approx(factor * SLACK, abs=0.35)


def test_case_that_a_library_declines_is_left_out() -> None:
    def make(case: Any) -> Callable[..., Any]:
        if case.inputs["input"].dtype is not torch.float32:
            raise UnsupportedCase("float32 only")
        return torch.exp

    opinion = judged("ExpFwdOp", make)
    assert (opinion.status, opinion.cases) == ("certified", 1)


def test_library_that_declines_every_case_gets_no_certificate() -> None:
    def call(input: torch.Tensor) -> torch.Tensor:
        raise UnsupportedCase("not here")

    assert judged("ExpFwdOp", lambda case: call).status == "unsupported"


def test_baseline_that_raises_has_failed_whatever_it_got_right() -> None:
    def call(input: torch.Tensor) -> torch.Tensor:
        if input.dtype is torch.float32:
            raise RuntimeError("no kernel image")
        return input.exp()

    opinion = judged("ExpFwdOp", lambda case: call)
    assert opinion.status == "failed"
    assert "float32" in opinion.detail
    assert "RuntimeError: no kernel image" in opinion.detail


def test_baseline_that_spoils_its_inputs_spoils_them_for_nobody() -> None:
    first = judged("ExpFwdOp", lambda case: lambda input: input.exp_())
    assert first.status == "certified"
    assert judged("ExpFwdOp", lambda case: torch.exp).status == "certified"


@pytest.mark.parametrize(("call", "status"), [(F.relu_, "certified"), (F.relu, "rejected")])
def test_op_that_works_in_place_needs_a_baseline_that_does(call: Any, status: str) -> None:
    entry = load_manifest()["ReluFwdOp"]
    spec = Spec(entry, None, {"T": "float32"}, dims={"A": (33,)}, params={"inplace": True}, scale=None)
    judge = OpJudge(entry, get_oracle("ReluFwdOp"), "cpu", [Case("one", spec, spec.workload(0).binding)])
    assert judge.judge(Baseline("ReluFwdOp", "planted", lambda case: call)).status == status


def test_every_row_and_every_dtype_is_judged() -> None:
    entry = load_manifest()["RMSNormFwdOp"]
    cases = row_cases(entry, "cpu")
    assert {case.spec.row.label for case in cases} == {row.label for row in entry.workloads}
    assert {case.binding.dtypes["T"] for case in cases} == set(entry.dtypes["T"])
    assert {(case.spec.scale, case.spec.layout, case.spec.distribution) for case in cases} == {
        ("cpu", "contiguous", "normal")
    }


def test_dtype_that_no_row_has_is_judged_on_the_first_row() -> None:
    entry = load_manifest()["BitwiseAndFwdOp"]
    missing = set(entry.dtypes["T"]).difference(*(row.dtypes for row in entry.workloads))
    added = [case for case in row_cases(entry, "cpu") if case.binding.dtypes["T"] in missing]
    assert missing
    assert {case.binding.dtypes["T"] for case in added} == missing
