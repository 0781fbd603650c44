"""The statistics: properties that must hold for any samples, and the cases each verdict exists for."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tileops_bench import stats
from tileops_bench.stats import Verdict

times = st.lists(st.floats(min_value=1e2, max_value=1e9), min_size=5, max_size=60)


def normal_sample(center: float, spread: float, n: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [max(1.0, rng.gauss(center, spread)) for _ in range(n)]


@given(times)
def test_summary_is_ordered_and_counts_every_sample(samples):
    s = stats.summarise(samples)
    assert s.n == len(samples)
    assert s.min == min(samples)
    assert s.min <= s.median <= s.q3 <= s.p99 <= max(samples)


@given(times, st.randoms(use_true_random=False))
def test_summary_ignores_the_order_of_samples(samples, rng):
    shuffled = list(samples)
    rng.shuffle(shuffled)
    assert stats.summarise(shuffled) == stats.summarise(samples)


@given(times)
def test_one_enormous_outlier_is_kept_in_the_tail(samples):
    s = stats.summarise([*samples, 1e12])
    assert s.n == len(samples) + 1
    assert s.p99 > stats.summarise(samples).p99 or max(samples) >= 1e12


@settings(deadline=None)
@given(times, times)
def test_swapping_the_sides_mirrors_the_verdict(a, b):
    mirror = {Verdict.FAST: Verdict.SLOW, Verdict.SLOW: Verdict.FAST}
    forward, backward = stats.compare(a, b).verdict, stats.compare(b, a).verdict
    if Verdict.SAME in (forward, backward):  # 1/(1+e) and 1+e mirror only up to rounding
        assert {forward, backward} <= {Verdict.SAME, Verdict.AMBIGUOUS}
    else:
        assert backward == mirror.get(forward, forward)


@settings(deadline=None)
@given(times, times, st.integers(min_value=-8, max_value=8))
def test_verdict_does_not_depend_on_the_unit(a, b, power):
    scale = 2.0**power  # exact, so that rounding cannot move a sample over a limit
    assert (
        stats.compare(a, b).verdict == stats.compare([x * scale for x in a], [x * scale for x in b]).verdict
    )


@settings(deadline=None)
@given(times)
def test_a_sample_never_beats_itself(samples):
    assert stats.compare(samples, samples).verdict in (Verdict.SAME, Verdict.AMBIGUOUS)


@settings(deadline=None)
@given(times, times)
def test_fast_implies_a_ratio_interval_above_one(a, b):
    c = stats.compare(a, b)
    assert c.low <= c.high
    if c.verdict is Verdict.FAST:
        assert c.low > 1.0
        assert c.speedup > 1.0 + stats.CLEARANCE


@pytest.mark.parametrize(
    ("ratio", "spread", "expected"),
    [
        (1.20, 0.01, Verdict.FAST),
        (0.80, 0.01, Verdict.SLOW),
        (1.00, 0.01, Verdict.SAME),
        (1.01, 0.02, Verdict.SAME),
        (1.08, 0.06, Verdict.AMBIGUOUS),  # faster by the median, spreads overlap
        (1.00, 0.60, Verdict.AMBIGUOUS),  # noise is not equality
    ],
)
def test_verdict_of_known_distributions(ratio, spread, expected):
    candidate = normal_sample(1000.0, 1000.0 * spread, 80, seed=1)
    baseline = normal_sample(1000.0 * ratio, 1000.0 * spread, 80, seed=2)
    assert stats.compare(candidate, baseline).verdict is expected


def test_intervals_that_clear_by_less_than_half_a_percent_are_not_fast():
    candidate, baseline = [1000.0] * 20, [1004.0] * 20
    assert stats.compare(candidate, baseline).verdict is not Verdict.FAST
    assert stats.compare(candidate, [1005.0] * 20).verdict is Verdict.FAST


def test_disjoint_but_close_intervals_are_ambiguous_not_same():
    assert stats.compare([1000.0] * 20, [1004.0] * 20).verdict is Verdict.AMBIGUOUS


def test_four_samples_give_no_verdict():
    assert stats.compare([1.0] * 4, [9.0] * 4).verdict is Verdict.AMBIGUOUS


@pytest.mark.parametrize("n", [1, 2, 3, 10, 51, 200])
def test_bootstrap_weights_are_a_distribution(n):
    weights = stats.bootstrap_median_weights(n)
    assert len(weights) == n
    assert math.isclose(math.fsum(weights), 1.0, rel_tol=1e-9)
    assert min(weights) >= -1e-12


def test_exact_bootstrap_agrees_with_resampling():
    baseline, candidate = normal_sample(2000, 100, 31, seed=3), normal_sample(1000, 80, 31, seed=4)
    rng = random.Random(5)

    def lower_median(sample):
        return sorted(rng.choices(sample, k=len(sample)))[(len(sample) + 1) // 2 - 1]

    drawn = sorted(lower_median(baseline) / lower_median(candidate) for _ in range(20_000))
    low, high = stats.median_ratio_interval(baseline, candidate)
    assert math.isclose(low, drawn[100], rel_tol=0.01)
    assert math.isclose(high, drawn[-101], rel_tol=0.01)


def test_interval_narrows_with_more_samples():
    def width(n):
        low, high = stats.median_ratio_interval(normal_sample(1000, 50, n, 1), normal_sample(1000, 50, n, 2))
        return high - low

    assert width(200) < width(20)


def test_two_modes_are_reported_with_their_shares():
    samples = normal_sample(1000, 10, 60, seed=1) + normal_sample(1300, 10, 20, seed=2)
    low, high = stats.find_modes(samples)
    assert math.isclose(low.share, 0.75)
    assert math.isclose(high.share, 0.25)
    assert low.median < 1050
    assert high.median > 1250


@pytest.mark.parametrize("seed", range(20))
def test_unimodal_samples_have_no_modes(seed):
    rng = random.Random(seed)
    assert stats.find_modes([rng.gauss(1000, 30) for _ in range(80)]) == ()
    assert stats.find_modes([1000 + 100 * rng.random() for _ in range(80)]) == ()
    assert stats.find_modes([1000 * math.exp(rng.gauss(0, 0.1)) for _ in range(80)]) == ()


def test_a_single_outlier_is_no_mode():
    assert stats.find_modes([1000.0 + i for i in range(50)] + [5000.0]) == ()


@pytest.mark.parametrize("bad", [[], [0.0], [-1.0], [float("nan")], [1.0, float("inf")]])
def test_samples_that_are_no_times_are_refused(bad):
    with pytest.raises(ValueError, match="samples"):
        stats.summarise(bad)


def test_drift_compares_last_third_with_first():
    assert stats.drift([100.0] * 10 + [110.0] * 10 + [120.0] * 10) == pytest.approx(1.2)
    assert stats.drift([5.0]) == 1.0


def test_geometric_mean_of_nothing_is_nothing():
    assert stats.geometric_mean([]) is None
    assert stats.geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
