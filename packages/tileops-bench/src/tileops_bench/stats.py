"""Statistics of timing samples: what was seen, and whether two sets differ.

Nothing here deletes an outlier. Every function is pure and deterministic: the interval of the median ratio is
the *exact* bootstrap distribution, computed in closed form, so it needs no resampling and no seed.

Units are whatever the caller uses (this package uses nanoseconds); ratios are `baseline / candidate`, so a
number above 1 means that the candidate is faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from pydantic import BaseModel, ConfigDict

CLEARANCE = 0.005  # [min, q3] intervals must be this far apart for FAST or SLOW
EQUIVALENCE = 0.05  # SAME: the whole interval of the median ratio lies within 1 ± this
CONFIDENCE = 0.99
MIN_SAMPLES = 5  # below this no verdict means anything
MIN_MODE_SHARE = 0.1
MODE_SEPARATION = 5.0  # Ashman's D; a uniform distribution cut in half has 3.5, a normal one 2.7
MODE_RATIO = 1.03


class Verdict(StrEnum):
    """What a row says. INVALID always comes with at least one reason code."""

    FAST = "FAST"
    SAME = "SAME"
    SLOW = "SLOW"
    AMBIGUOUS = "AMBIGUOUS"
    INVALID = "INVALID"


class Mode(BaseModel):
    """One mode of a bimodal sample: the share of samples in it and their median."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    share: float
    median: float


class Summary(BaseModel):
    """Order statistics of one set of samples. `modes` holds two entries when the sample is bimodal, else
    none."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    n: int
    min: float
    median: float
    q3: float
    p99: float
    modes: tuple[Mode, ...] = ()


class Comparison(BaseModel):
    """A candidate against one baseline: speed-up (median ratio), its bootstrap interval, and the verdict."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    verdict: Verdict
    speedup: float
    low: float
    high: float


def quantile(ordered: Sequence[float], q: float) -> float:
    """Linear-interpolation quantile of an already sorted, non-empty sequence.

    >>> quantile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.5
    """
    if not ordered:
        raise ValueError("quantile of an empty sample")
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarise(samples: Sequence[float]) -> Summary:
    """Describe a sample without dropping anything from it.

    Raises:
        ValueError: the sample is empty, or holds a value that is not a positive finite number.

    >>> summarise([3.0, 1.0, 2.0]).median
    2.0
    """
    ordered = _checked(samples)
    return Summary(
        n=len(ordered),
        min=ordered[0],
        median=quantile(ordered, 0.5),
        q3=quantile(ordered, 0.75),
        p99=quantile(ordered, 0.99),
        modes=find_modes(ordered),
    )


def _checked(samples: Sequence[float]) -> list[float]:
    if not samples:
        raise ValueError("no samples")
    bad = [s for s in samples if not (math.isfinite(s) and s > 0)]
    if bad:
        raise ValueError(
            f"samples must be positive and finite, got {bad[0]!r} ({len(bad)} of {len(samples)})"
        )
    return sorted(float(s) for s in samples)


def find_modes(samples: Sequence[float]) -> tuple[Mode, ...]:
    """Two modes when the best split in two is far wider than either part, else an empty tuple.

    The split minimises the variance within the parts; it counts when each part holds at least a tenth of the
    samples (and three of them), the parts' means are 5 pooled deviations apart (Ashman's D) and their medians
    differ by 3 %.
    """
    ordered = sorted(samples)
    n = len(ordered)
    least = max(3, math.ceil(MIN_MODE_SHARE * n))
    if n < 2 * least:
        return ()
    cut = _best_split(ordered, least)
    low, high = ordered[:cut], ordered[cut:]
    mean_low, var_low = _moments(low)
    mean_high, var_high = _moments(high)
    spread = math.sqrt(var_low + var_high)
    distance = math.sqrt(2.0) * (mean_high - mean_low)
    median_low, median_high = quantile(low, 0.5), quantile(high, 0.5)
    if distance < MODE_SEPARATION * spread or median_high < MODE_RATIO * median_low:
        return ()
    return (Mode(share=len(low) / n, median=median_low), Mode(share=len(high) / n, median=median_high))


def _best_split(ordered: Sequence[float], least: int) -> int:
    """Index that maximises the variance between the two parts, each at least `least` long."""
    total = math.fsum(ordered)
    n = len(ordered)
    running = math.fsum(ordered[:least])
    best, best_cut = -1.0, least
    for cut in range(least, n - least + 1):
        if cut > least:
            running += ordered[cut - 1]
        gap = (total - running) / (n - cut) - running / cut
        between = cut * (n - cut) * gap * gap
        if between > best:
            best, best_cut = between, cut
    return best_cut


def _moments(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((v - mean) ** 2 for v in values) / len(values)


@lru_cache(maxsize=256)
def bootstrap_median_weights(n: int) -> tuple[float, ...]:
    """Probability that each order statistic is the (lower) median of a resample with replacement of size `n`.

    The r-th smallest of a resample is at most the k-th smallest sample exactly when at least r of the n draws
    fall among the k smallest, and their number is binomial(n, k / n). So the whole bootstrap distribution is
    known without drawing anything.

    >>> [round(w, 3) for w in bootstrap_median_weights(3)]
    [0.259, 0.481, 0.259]
    """
    rank = (n + 1) // 2
    cumulative = [0.0, *(_binomial_tail(n, k / n, rank) for k in range(1, n)), 1.0]
    return tuple(high - low for low, high in itertools.pairwise(cumulative))


def _binomial_tail(n: int, p: float, least: int) -> float:
    """P(at least `least` successes in n trials)."""
    log_p, log_q = math.log(p), math.log1p(-p)
    log_n = math.lgamma(n + 1)
    return math.fsum(
        math.exp(log_n - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * log_p + (n - j) * log_q)
        for j in range(least, n + 1)
    )


def median_ratio_interval(
    baseline: Sequence[float], candidate: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Exact percentile-bootstrap interval of median(baseline) / median(candidate).

    >>> median_ratio_interval([2.0] * 9, [1.0] * 9)
    (2.0, 2.0)
    """
    top, bottom = _likely_medians(baseline), _likely_medians(candidate)
    pairs = sorted((b / c, wb * wc) for b, wb in top for c, wc in bottom)
    mass = math.fsum(w for _, w in pairs)
    tail = (1.0 - confidence) / 2.0
    low = _weighted_quantile(pairs, tail * mass)
    high = _weighted_quantile(pairs, (1.0 - tail) * mass)
    return low, high


def _likely_medians(samples: Sequence[float]) -> list[tuple[float, float]]:
    """Order statistics with their weights; those that are the median once in 10^8 resamples or less are left
    out."""
    ordered = _checked(samples)
    return [(s, w) for s, w in zip(ordered, bootstrap_median_weights(len(ordered)), strict=True) if w > 1e-8]


def _weighted_quantile(pairs: Sequence[tuple[float, float]], target: float) -> float:
    seen = 0.0
    for value, weight in pairs:
        seen += weight
        if seen >= target:
            return value
    return pairs[-1][0]


def compare(candidate: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """Judge two sets of samples taken call by call beside each other.

    * FAST / SLOW: the intervals [min, q3] are apart by at least 0.5 % *and* the interval of the median ratio
      excludes 1.
    * SAME: the intervals [min, q3] overlap *and* the interval of the median ratio lies within 1 ± 5 %, so
      that noise never passes for equality.
    * AMBIGUOUS: anything else, and whenever either side has fewer than 5 samples.

    >>> compare([1.0, 1.01, 1.02, 1.0, 1.01], [2.0, 2.01, 2.02, 2.0, 2.01]).verdict.value
    'FAST'
    """
    mine, theirs = summarise(candidate), summarise(baseline)
    low, high = median_ratio_interval(baseline, candidate)
    verdict = _classify(mine, theirs, low, high)
    return Comparison(verdict=verdict, speedup=theirs.median / mine.median, low=low, high=high)


def _classify(mine: Summary, theirs: Summary, low: float, high: float) -> Verdict:
    if min(mine.n, theirs.n) < MIN_SAMPLES:
        return Verdict.AMBIGUOUS
    if mine.q3 * (1.0 + CLEARANCE) <= theirs.min and low > 1.0:
        return Verdict.FAST
    if theirs.q3 * (1.0 + CLEARANCE) <= mine.min and high < 1.0:
        return Verdict.SLOW
    overlap = mine.min <= theirs.q3 and theirs.min <= mine.q3
    if overlap and low >= 1.0 / (1.0 + EQUIVALENCE) and high <= 1.0 + EQUIVALENCE:
        return Verdict.SAME
    return Verdict.AMBIGUOUS


def drift(samples: Sequence[float]) -> float:
    """Median of the last third over the median of the first third, in the order the samples were taken.

    >>> drift([1.0, 1.0, 1.0, 2.0, 2.0, 2.0])
    2.0
    """
    third = len(samples) // 3
    if third < 1:
        return 1.0
    first, last = sorted(samples[:third]), sorted(samples[-third:])
    return quantile(last, 0.5) / quantile(first, 0.5)


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """Geometric mean, or None for no ratios at all (never 1.0 for an empty set).

    >>> geometric_mean([2.0, 0.5])
    1.0
    """
    if not ratios:
        return None
    return math.exp(math.fsum(math.log(r) for r in ratios) / len(ratios))
