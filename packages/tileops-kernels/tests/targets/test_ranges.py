"""Interval arithmetic over index expressions: what may be left unguarded."""

from __future__ import annotations

import pytest

from tileops_kernels.targets.cpu.ranges import Ranges, key, same_expr

from tvm import tirx  # isort: skip  (importable once TileLang is)

I, J, N = (tirx.Var(name, "int32") for name in "ijn")


@pytest.fixture
def ranges() -> Ranges:
    """0 <= i < 8, 0 <= j < 4, 0 <= n."""
    known = Ranges()
    known.set_interval(N, (0, None))
    for variable, extent in ((I, 8), (J, 4)):
        known.set_loop(variable, tirx.const(0, "int32"), tirx.const(extent, "int32"))
    return known


@pytest.mark.parametrize(
    ("expr", "interval"),
    [
        (I * 4 + J, (0, 31)),
        (I - J, (-3, 7)),
        (I * -2, (-14, 0)),
        (tirx.floordiv(I, 3), (0, 2)),
        (tirx.floormod(N, 5), (0, 4)),
        (tirx.min(I, N), (0, 7)),
        (tirx.max(I, N), (0, None)),
        (N * 4 + I, (0, None)),
        (N - I, (-7, None)),
        (tirx.Var("unknown", "int32"), (None, None)),
    ],
)
def test_interval(ranges, expr, interval):
    assert ranges.interval(expr) == interval


def test_below_a_constant_and_below_the_extent_of_its_own_loop(ranges):
    assert ranges.below(I * 4 + J, tirx.const(32, "int32"))
    assert not ranges.below(I * 4 + J, tirx.const(31, "int32"))
    assert not ranges.below(I, N)
    ranges.set_loop(J, tirx.const(0, "int32"), N)
    assert ranges.below(J, N)
    assert not ranges.below(J + 1, N)


def test_affine_splits_what_moves_from_what_stays(ranges):
    split = ranges.affine(N * 16 + I * 2 - J, {key(I), key(J)}, lambda _: True)
    assert (split.low, split.high) == (-3, 14)
    assert [(c, same_expr(e, N * 16)) for c, e in split.free] == [(1, True)]


def test_affine_refuses_a_product_of_variables_and_what_may_change(ranges):
    assert ranges.affine(N * I, {key(I)}, lambda _: True) is None
    assert ranges.affine(N + I, {key(I)}, lambda _: False) is None
