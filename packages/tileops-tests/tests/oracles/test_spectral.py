"""Roots of unity and double-double arithmetic, on which the judgement of complex128 transforms stands."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_tests.oracles import get_oracle
from tileops_tests.oracles.double_double import Pair
from tileops_tests.oracles.spectral import _twiddles
from tileops_workloads import make_workload


def exact(number: Pair, at: int) -> Fraction:
    return Fraction(number.hi[at].item()) + Fraction(number.lo[at].item())


@pytest.mark.parametrize("n", [2, 4, 8, 1024])
def test_twiddles_lie_on_the_circle_at_their_angles(n):
    cos, sin = _twiddles(n)
    assert cos.hi.shape == (n // 2,)
    for k in range(0, n // 2, max(n // 64, 1)):
        assert abs(cos.hi[k].item() - math.cos(2 * math.pi * k / n)) <= 2**-50
        assert abs(sin.hi[k].item() - math.sin(2 * math.pi * k / n)) <= 2**-50
        assert abs(exact(cos, k) ** 2 + exact(sin, k) ** 2 - 1) < Fraction(1, 2**103)


def test_sums_and_products_of_pairs_keep_twice_the_precision():
    workload = make_workload(
        load_manifest()["FFTC2CFwdOp"], None, "complex128", dims={"batch": (4,), "n": 64}
    )
    numbers = torch.view_as_real(workload.gen_inputs()["input"]).reshape(4, -1)
    a, b = Pair(numbers[0], numbers[1] * 2**-54), Pair(numbers[2], numbers[3] * 2**-54)
    total, product = a + b, a * b
    for at in range(numbers.shape[1]):
        size = abs(exact(a, at)) + abs(exact(b, at))
        assert abs(exact(total, at) - exact(a, at) - exact(b, at)) <= size / 2**102
        wanted = exact(a, at) * exact(b, at)
        assert abs(exact(product, at) - wanted) <= abs(wanted) / 2**100


def test_the_wide_program_is_closer_than_float64_can_be():
    """The transform of a delayed impulse are the roots of unity: the wide program rounds them correctly."""
    impulse = torch.zeros(8192, dtype=torch.complex128)
    impulse[1] = 1
    oracle = get_oracle("FFTC2CFwdOp")
    (wide,) = oracle.wide_program({"input": impulse}, {})
    cos, sin = _twiddles(8192)
    assert torch.equal(wide[:4096, 0], cos.hi)
    assert torch.equal(wide[:4096, 1], -sin.hi)


def test_an_op_that_does_not_sum_in_float64_has_no_wide_program():
    with pytest.raises(ValueError, match="GemmFwdOp: the oracle has no program wider than float64"):
        get_oracle("GemmFwdOp").wide_program({}, {})
