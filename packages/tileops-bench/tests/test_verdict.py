"""Verdicts: each reason code in a case where the thing happens, and each way in which a baseline must not
help."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_builders import contender, samples_around

from tileops_bench.records import Code, Problem, Status
from tileops_bench.roofline import Floor
from tileops_bench.stats import Verdict
from tileops_bench.verdict import Bulk, Evidence, judge, strongest


def evidence(*baselines, candidate=None, **fields) -> Evidence:
    return Evidence(
        candidate=candidate or contender("candidate", 1000.0),
        baselines=baselines or (contender("torch-eager", 1500.0),),
        requested_timer="perf_counter",
        reported_timer="perf_counter",
        floor=Floor(None, "none"),
        **fields,
    )


def codes(judgement) -> set[Code]:
    return {p.code for p in judgement.problems}


def test_a_clean_row_faster_than_its_baseline_is_fast():
    judgement = judge(evidence())
    assert judgement.verdict is Verdict.FAST
    assert judgement.comparison.speedup == pytest.approx(1.5, rel=0.01)


def test_the_verdict_is_against_the_strongest_valid_baseline():
    weak, strong = contender("weak", 9000.0), contender("strong", 800.0)
    judgement = judge(evidence(weak, strong))
    assert judgement.against.name == "strong"
    assert judgement.verdict is Verdict.SLOW


@pytest.mark.parametrize("others", [(), (contender("weakest", 50_000.0),)])
def test_adding_a_weak_baseline_changes_nothing(others):
    plain, more = (
        judge(evidence(contender("strong", 1001.0))),
        judge(evidence(contender("strong", 1001.0), *others)),
    )
    assert (plain.verdict, plain.comparison) == (more.verdict, more.comparison)


def test_a_missing_baseline_is_no_win_by_itself():
    judgement = judge(evidence(contender("liger", None, Status.MISSING, detail="not installed")))
    assert judgement.verdict is Verdict.INVALID
    assert codes(judgement) == {Code.BASELINE_MISSING}


def test_a_row_with_no_known_baseline_is_invalid():
    judgement = judge(replace(evidence(), baselines=()))
    assert codes(judgement) == {Code.BASELINE_MISSING}


def test_all_baselines_failing_is_invalid_not_a_win():
    judgement = judge(evidence(contender("torch-eager", None, Status.FAILED, detail="boom")))
    assert judgement.verdict is Verdict.INVALID
    assert codes(judgement) == {Code.BASELINE_FAILED}


def test_a_win_beside_a_failed_baseline_does_not_count():
    broken = contender("sdpa-cudnn", None, Status.FAILED, detail="boom")
    judgement = judge(evidence(contender("torch-eager", 1500.0), broken))
    assert judgement.verdict is Verdict.INVALID
    assert codes(judgement) == {Code.BASELINE_FAILED}
    assert "sdpa-cudnn" in judgement.problems[0].detail


def test_a_loss_beside_a_failed_baseline_stays_a_loss():
    broken = contender("sdpa-cudnn", None, Status.FAILED, detail="boom")
    assert judge(evidence(contender("torch-eager", 500.0), broken)).verdict is Verdict.SLOW


@pytest.mark.parametrize("status", [Status.MISSING, Status.UNSUPPORTED, Status.EXCLUDED])
def test_a_baseline_that_did_not_have_to_run_does_not_void_the_row(status):
    absent = contender("other", None, status)
    assert judge(evidence(contender("torch-eager", 1500.0), absent)).verdict is Verdict.FAST


def test_a_baseline_that_a_certificate_rejects_is_left_out_even_if_it_is_the_fastest():
    wrong = contender("wrong", None, Status.REJECTED, certified="no")
    judgement = judge(evidence(contender("torch-eager", 1500.0), wrong))
    assert judgement.against.name == "torch-eager"


def test_a_baseline_that_broke_a_rule_is_not_valid():
    dirty = contender("dirty", 500.0, problems=(Problem(code=Code.INPUT_CHANGED, detail="wrote to x"),))
    found = evidence(contender("torch-eager", 1500.0), dirty)
    assert strongest(found).name == "torch-eager"
    assert codes(judge(found)) == {Code.BASELINE_FAILED}


def test_candidate_failed():
    broken = contender("candidate", None, Status.FAILED, detail="RuntimeError: boom")
    judgement = judge(evidence(candidate=broken))
    assert judgement.verdict is Verdict.INVALID
    assert codes(judgement) == {Code.CANDIDATE_FAILED}
    assert "boom" in judgement.problems[0].detail


@pytest.mark.parametrize("code", [Code.NO_KERNELS_SEEN, Code.OUTPUT_CHANGED, Code.INPUT_CHANGED])
def test_what_was_seen_at_the_candidate_voids_the_row(code):
    cheat = contender("candidate", 10.0, problems=(Problem(code=code, detail="seen"),))
    judgement = judge(evidence(candidate=cheat))
    assert judgement.verdict is Verdict.INVALID
    assert codes(judgement) == {code}


@pytest.mark.parametrize("code", [Code.LOST_RECORDS, Code.UNATTRIBUTED_RECORDS, Code.INPUT_CHANGED])
def test_a_problem_of_the_row_voids_it(code):
    assert codes(judge(evidence(row_problems=(Problem(code=code, detail="seen"),)))) == {code}


def test_timer_fallback():
    judgement = judge(replace(evidence(), requested_timer="cupti", reported_timer="cuda-events"))
    assert codes(judgement) == {Code.TIMER_FALLBACK}


def test_below_roofline():
    judgement = judge(replace(evidence(), floor=Floor(999.0, "4.9 TB/s peak")))
    assert codes(judgement) == {Code.BELOW_ROOFLINE}
    assert judge(replace(evidence(), floor=Floor(900.0, "4.9 TB/s peak"))).verdict is Verdict.FAST


def test_a_baseline_below_the_roofline_is_not_one_to_be_judged_by():
    found = replace(
        evidence(contender("torch-eager", 1500.0), contender("fake", 10.0)), floor=Floor(100.0, "peak")
    )
    assert strongest(found).name == "torch-eager"


def test_too_few_samples():
    few = contender("candidate", samples=(1000, 1000, 1001))
    assert codes(judge(evidence(candidate=few))) == {Code.TOO_FEW_SAMPLES}


def test_throttled_by_the_driver():
    assert codes(judge(evidence(throttle_reasons=("hardware thermal",)))) == {Code.THROTTLED}


def test_throttled_when_every_contender_slows_down_together():
    rising = tuple(round(1000 * (1 + 0.01 * i)) for i in range(30))
    both = evidence(
        contender("torch-eager", samples=tuple(2 * s for s in rising)),
        candidate=contender("candidate", samples=rising),
    )
    assert codes(judge(both)) == {Code.THROTTLED}


def test_one_contender_slowing_down_alone_is_not_throttling():
    rising = tuple(round(1000 * (1 + 0.01 * i)) for i in range(30))
    alone = evidence(contender("torch-eager", samples=tuple(2 * s for s in rising)))
    assert Code.THROTTLED not in codes(judge(alone))


def test_clock_disagrees():
    lying = evidence(bulk=Bulk(calls=100, total_ns=100 * 1_000_000))
    assert codes(judge(lying)) == {Code.CLOCK_DISAGREES}
    honest = evidence(bulk=Bulk(calls=100, total_ns=100 * 1_100))
    assert judge(honest).verdict is Verdict.FAST


def test_baseline_disagrees_alone():
    slower_beside = evidence(alone=contender("torch-eager", 1000.0), alone_required=True)
    assert codes(judge(slower_beside)) == {Code.BASELINE_DISAGREES_ALONE}
    agrees = evidence(alone=contender("torch-eager", 1490.0), alone_required=True)
    assert judge(agrees).verdict is Verdict.FAST


def test_a_noisy_lone_run_is_allowed_its_own_spread():
    noisy = contender("torch-eager", samples=samples_around(1200.0, spread=0.3))
    assert judge(evidence(alone=noisy, alone_required=True)).verdict is Verdict.FAST


def test_baseline_that_cannot_be_timed_alone():
    broken = contender("torch-eager", None, Status.FAILED, detail="died")
    assert codes(judge(evidence(alone=broken, alone_required=True))) == {Code.BASELINE_DISAGREES_ALONE}
    assert codes(judge(evidence(alone_required=True))) == {Code.BASELINE_DISAGREES_ALONE}


def test_all_problems_are_listed():
    bad = replace(
        evidence(candidate=contender("candidate", None, Status.FAILED, detail="boom")), reported_timer="other"
    )
    assert codes(judge(bad)) == {Code.CANDIDATE_FAILED, Code.TIMER_FALLBACK}
