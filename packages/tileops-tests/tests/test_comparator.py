"""The comparator: what is not provably right is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tileops_tests.codes import ReasonCode as R
from tileops_tests.comparator import (
    FINITE,
    NAN,
    NEGATIVE_INF,
    POSITIVE_INF,
    OutputMeta,
    OutputReference,
    categories,
    check_meta,
    compare,
    contiguous_stride,
    same_values,
    widen,
)


def bounded(
    ref: torch.Tensor, bound: float, dtype: str = "float32", base: torch.Tensor | None = None
) -> OutputReference:
    ref = ref.to(torch.float64)
    return OutputReference(
        name="y",
        dtype=dtype,
        expected=ref.to(getattr(torch, dtype)),
        ref=ref,
        base=ref if base is None else base.to(torch.float64),
        bound=torch.full_like(ref, bound),
    )


def exact(expected: torch.Tensor, *, signed_zero: bool = True) -> OutputReference:
    return OutputReference("y", str(expected.dtype).removeprefix("torch."), expected, signed_zero=signed_zero)


def test_error_at_the_bound_passes_and_above_it_fails() -> None:
    reference = bounded(torch.tensor([1.0, 2.0]), 0.5)
    assert compare(torch.tensor([1.5, 2.0]), reference).code is None
    finding = compare(torch.tensor([1.0, 2.75]), reference)
    assert finding.code is R.WRONG_VALUE
    assert (finding.error, finding.bound, finding.ratio) == (0.75, 0.5, 1.5)
    assert "y[1] is 2.75, expected 2.0" in finding.message
    assert finding.message.endswith("(error 0.75, bound 0.5); 1 of 2 elements are wrong")


def test_a_finding_has_the_numbers_of_the_worst_element_that_has_any() -> None:
    def numbers(actual: list[float], ref: list[float], dtype: str) -> tuple[float, float, float]:
        made = torch.tensor(actual, dtype=getattr(torch, dtype))
        finding = compare(made, bounded(torch.tensor(ref, dtype=torch.float64), 64.0, dtype))
        assert finding.code is None
        return finding.error, finding.bound, finding.ratio

    assert numbers([1.0, 2.0], [1.0, 2.0], "float32") == (0.0, 0.0, 0.0)
    assert numbers([1.0, -14.0], [1.0, 2.0], "float32") == (16.0, 64.0, 0.25)
    assert numbers([torch.nan, 18.0], [torch.nan, 2.0], "float32") == (16.0, 64.0, 0.25)
    assert numbers([torch.inf, 60032.0], [65500.0, 60000.0], "float16") == (32.0, 64.0, 0.5)


def test_findings_without_a_bound_have_no_share_of_it() -> None:
    expected = torch.tensor([1.0, 2.0])
    for actual in (expected, torch.empty(0)):
        finding = compare(actual, exact(actual.clone()))
        assert (finding.code, finding.error, finding.bound, finding.ratio) == (None, 0.0, 0.0, 0.0)
    finding = compare(torch.tensor([1.0, 3.0]), exact(expected))
    assert (finding.error, finding.bound, finding.ratio) == (torch.inf, 0.0, torch.inf)
    assert finding.message == "y[1] is 3.0, expected 2.0; 1 of 2 elements are wrong"


def test_every_element_is_of_one_category() -> None:
    x = torch.tensor([0.0, torch.nan, torch.inf, -torch.inf])
    assert categories(x).tolist() == [FINITE, NAN, POSITIVE_INF, NEGATIVE_INF]
    assert len({FINITE, NAN, POSITIVE_INF, NEGATIVE_INF}) == 4


def test_nan_is_never_within_a_bound() -> None:
    finding = compare(torch.tensor([torch.nan, 2.0]), bounded(torch.tensor([1.0, 2.0]), torch.inf))
    assert finding.code is R.NAN_MISMATCH
    assert "error" not in finding.message


def test_nan_and_infinities_are_compared_as_masks_of_their_own() -> None:
    reference = bounded(torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0]), 1.0)
    assert compare(torch.tensor([torch.nan, torch.inf, -torch.inf, 0.5]), reference).code is None
    assert compare(torch.tensor([0.0, torch.inf, -torch.inf, 0.0]), reference).code is R.NAN_MISMATCH
    assert compare(torch.tensor([torch.nan, -torch.inf, -torch.inf, 0.0]), reference).code is R.INF_MISMATCH
    assert compare(torch.tensor([torch.nan, 3e38, -torch.inf, 0.0]), reference).code is R.INF_MISMATCH
    assert (
        compare(torch.tensor([torch.nan, torch.inf, -torch.inf, torch.inf]), reference).code is R.INF_MISMATCH
    )


def test_one_wrong_mask_among_wrong_values_names_the_disagreement() -> None:
    reference = bounded(torch.tensor([1.0, 1.0, 1.0]), 0.1)
    assert compare(torch.tensor([5.0, torch.inf, torch.nan]), reference).code is R.NAN_MISMATCH
    assert compare(torch.tensor([5.0, torch.inf, 5.0]), reference).code is R.INF_MISMATCH


def test_overflow_is_legal_only_where_the_bound_reaches_the_largest_number() -> None:
    reference = bounded(torch.tensor([65500.0, 60000.0], dtype=torch.float64), 64.0, "float16")
    assert compare(torch.tensor([torch.inf, 60000.0], dtype=torch.float16), reference).code is None
    assert compare(torch.tensor([-torch.inf, 60000.0], dtype=torch.float16), reference).code is R.INF_MISMATCH
    assert compare(torch.tensor([65500.0, torch.inf], dtype=torch.float16), reference).code is R.INF_MISMATCH
    just = bounded(torch.tensor([-65440.0, 65440.0], dtype=torch.float64), 64.0, "float16")
    assert compare(torch.tensor([-torch.inf, torch.inf], dtype=torch.float16), just).code is None
    assert compare(torch.tensor([torch.inf, torch.inf], dtype=torch.float16), just).code is R.INF_MISMATCH


def test_candidate_may_follow_the_specified_precision_where_it_leaves_the_oracles_class() -> None:
    reference = bounded(torch.tensor([1.0, 1.0]), 0.1, base=torch.tensor([torch.inf, 1.0]))
    assert compare(torch.tensor([torch.inf, 1.0]), reference).code is None
    assert compare(torch.tensor([1.0, 1.0]), reference).code is None
    assert compare(torch.tensor([1.0, torch.inf]), reference).code is R.INF_MISMATCH
    assert compare(torch.tensor([torch.nan, 1.0]), reference).code is R.NAN_MISMATCH


def test_shapes_never_broadcast() -> None:
    reference = bounded(torch.ones(3, 1), 10.0)
    assert compare(torch.ones(3), reference).code is R.WRONG_SHAPE
    assert compare(torch.ones(1, 1), reference).code is R.WRONG_SHAPE


def test_dtype_is_asserted_before_values() -> None:
    assert compare(torch.ones(2, dtype=torch.bfloat16), bounded(torch.ones(2), 1.0)).code is R.WRONG_DTYPE


def test_complex_outputs_are_compared_part_by_part_and_must_be_complex() -> None:
    right = torch.complex(torch.linspace(1, 2, 40), torch.linspace(1, 2, 40) * 1e-6)
    parts = torch.view_as_real(right)
    reference = replace(bounded(parts, 1e-9), complex=True)
    assert compare(right, reference).code is None
    # An error far below the modulus, yet above what the bound allows.
    finding = compare(torch.complex(right.real, right.imag * 1.01), reference)
    assert finding.code is R.WRONG_VALUE
    assert compare(parts, reference).code is R.WRONG_DTYPE
    assert compare(right.to(torch.complex128), reference).code is R.WRONG_DTYPE


def test_exact_comparison_sees_one_bit_and_the_sign_of_zero() -> None:
    expected = torch.tensor([1.0, 0.0, torch.nan])
    assert compare(expected.clone(), exact(expected)).code is None
    assert compare(torch.tensor([1.0 + 2**-23, 0.0, torch.nan]), exact(expected)).code is R.WRONG_VALUE
    assert compare(torch.tensor([1.0, -0.0, torch.nan]), exact(expected)).code is R.WRONG_VALUE
    assert compare(torch.tensor([1.0, -0.0, torch.nan]), exact(expected, signed_zero=False)).code is None
    assert compare(torch.tensor([1.0, 0.0, 1.0]), exact(expected)).code is R.NAN_MISMATCH


def test_integers_and_bools_are_compared_exactly() -> None:
    assert compare(torch.tensor([1, 2]), exact(torch.tensor([1, 3]))).code is R.WRONG_VALUE
    assert compare(torch.tensor([True]), exact(torch.tensor([False]))).code is R.WRONG_VALUE
    assert compare(torch.tensor([2**53 + 1]), exact(torch.tensor([2**53]))).code is R.WRONG_VALUE


def test_fp8_is_compared_exactly() -> None:
    expected = torch.tensor([1.0, -2.0, torch.nan]).to(torch.float8_e4m3fn)
    assert compare(expected.clone(), exact(expected)).code is None
    assert (
        compare(torch.tensor([1.125, -2.0, torch.nan]).to(torch.float8_e4m3fn), exact(expected)).code
        is R.WRONG_VALUE
    )


def test_empty_output_agrees() -> None:
    assert compare(torch.empty(0, 3), bounded(torch.empty(0, 3), 1.0)).code is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"dtype": "float16"}, R.WRONG_DTYPE),
        ({"shape": (2, 4)}, R.WRONG_SHAPE),
        ({"stride": (1, 2)}, R.WRONG_STRIDE),
        ({"device": "cuda"}, R.WRONG_DEVICE),
    ],
)
def test_metadata_disagreement_is_named(change: dict, code: R) -> None:
    expected = OutputMeta("float32", (2, 3), (3, 1), "cpu")
    got = OutputMeta(**({"dtype": "float32", "shape": (2, 3), "stride": (3, 1), "device": "cpu"} | change))
    assert check_meta("y", expected, expected) is None
    finding = check_meta("y", got, expected)
    assert finding.code is code
    assert str(next(iter(change.values()))) in finding.message


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (1, 7, 1), (2, 2)])
def test_contiguous_strides_are_those_of_torch(shape: tuple[int, ...]) -> None:
    assert contiguous_stride(shape) == torch.empty(shape).stride()


def test_strides_of_two_elements_are_significant() -> None:
    expected = OutputMeta("float32", (2, 2), (2, 1), "cpu")
    for stride in ((1, 1), (2, 2)):
        assert check_meta("y", OutputMeta("float32", (2, 2), stride, "cpu"), expected).code is R.WRONG_STRIDE


def test_strides_of_size_one_dims_and_of_empty_tensors_say_nothing() -> None:
    expected = OutputMeta("float32", (1, 3), contiguous_stride((1, 3)), "cpu")
    assert check_meta("y", OutputMeta("float32", (1, 3), (99, 1), "cpu"), expected) is None
    expected = OutputMeta("float32", (0, 3), contiguous_stride((0, 3)), "cpu")
    assert check_meta("y", OutputMeta("float32", (0, 3), (7, 7), "cpu"), expected) is None


def test_same_values_treats_every_nan_alike() -> None:
    payload = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert bool(same_values(payload, torch.tensor([torch.nan])).all())


def test_nothing_is_lost_on_the_way_to_float64() -> None:
    fine = torch.tensor([1.0 + 2.0**-40], dtype=torch.float64)
    assert torch.equal(widen(fine), fine)
    coarse = torch.tensor([0.0078125, 448.0]).to(torch.float8_e4m3fn)
    assert widen(coarse).tolist() == [0.0078125, 448.0]


def test_an_error_far_below_float32_is_seen_in_a_float64_output() -> None:
    ref = torch.tensor([1.0], dtype=torch.float64)
    reference = OutputReference("y", "float64", ref, ref, ref, bound=torch.full_like(ref, 1e-12))
    assert compare(ref + 1e-10, reference).code is R.WRONG_VALUE
    assert compare(ref + 1e-13, reference).code is None


def test_an_error_of_one_has_its_share_of_the_bound() -> None:
    finding = compare(torch.tensor([1.0, 0.0]), bounded(torch.tensor([0.0, 0.0]), 2.0))
    assert (finding.code, finding.error, finding.ratio) == (None, 1.0, 0.5)


def test_following_the_specified_precision_reaches_as_far_as_the_bound_and_no_further() -> None:
    """The oracle overflows float16, the specified arithmetic does not."""
    reference = bounded(torch.tensor([70000.0]), 32.0, "float16", base=torch.tensor([64992.0]))
    assert compare(torch.tensor([65024.0], dtype=torch.float16), reference).code is None
    assert compare(torch.tensor([64928.0], dtype=torch.float16), reference).code is R.INF_MISMATCH
