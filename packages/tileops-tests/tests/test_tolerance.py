"""Precision ladder, tiles, the bound, and its calibrated constants."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tileops_tests.precision import FORMATS, one_step_down, round_significand, torch_dtype
from tileops_tests.tolerance import (
    TILE_COLUMNS,
    TILE_ROWS,
    Constants,
    bound_of,
    calibration,
    constants_for,
    rounding_error,
    tile_max,
)

CONSTANTS = Constants(k=2.0, c=1.0, c2=1.0)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_formats_agree_with_torch(name: str) -> None:
    info, fmt = torch.finfo(torch_dtype(name)), FORMATS[name]
    assert fmt.unit_roundoff == info.eps / 2
    assert 2.0**fmt.min_exponent == info.tiny
    assert fmt.half_subnormal == info.smallest_normal * info.eps / 2


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_round_significand_agrees_with_a_cast_in_the_normal_range(name: str) -> None:
    x = torch.linspace(1.0, 100.0, 4099, dtype=torch.float64).mul(-math.pi)
    once = round_significand(x, FORMATS[name].bits)
    assert torch.equal(once, once.to(torch_dtype(name)).to(torch.float64))
    assert bool(((once - x).abs() <= x.abs() * FORMATS[name].unit_roundoff).all())


def test_round_significand_keeps_specials_and_rounds_ties_to_even() -> None:
    x = torch.tensor([torch.inf, -torch.inf, 0.0, -0.0, 1.0625, 1.1875], dtype=torch.float64)
    rounded = round_significand(x, 4)
    assert rounded.tolist() == [torch.inf, -torch.inf, 0.0, 0.0, 1.0, 1.25]
    assert rounded.signbit().tolist()[2:4] == [False, True]
    assert round_significand(torch.tensor([torch.nan], dtype=torch.float64), 4).isnan().all()


def test_ladder_ends_and_skips_tf32_where_it_is_allowed() -> None:
    assert one_step_down("float32") == "tf32"
    assert one_step_down("float32", tf32_allowed=True) == "bfloat16"
    with pytest.raises(ValueError, match="ladder ends at 'two_bits'"):
        one_step_down("two_bits")


def test_tile_max_spreads_a_peak_over_its_tile_and_no_further() -> None:
    e = torch.zeros(TILE_ROWS + 3, TILE_COLUMNS + 5, dtype=torch.float64)
    e[0, 0], e[-1, -1] = 2.0, 3.0
    peaks = tile_max(e)
    assert bool((peaks[:TILE_ROWS, :TILE_COLUMNS] == 2.0).all())
    assert bool((peaks[TILE_ROWS:, TILE_COLUMNS:] == 3.0).all())
    assert float(peaks[0, -1]) == float(peaks[-1, 0]) == 0.0
    assert tile_max(torch.tensor(4.0)).item() == 4.0
    for shape in ((0, 7), (7, 0), (0,)):
        assert tile_max(torch.empty(shape)).shape == shape


def test_bound_is_the_sum_of_its_three_terms() -> None:
    ref = torch.full((4,), 3.0, dtype=torch.float64)
    e_base = torch.tensor([0.0, 0.25, 0.0, 0.0], dtype=torch.float64)
    scale = torch.full((4,), 10.0, dtype=torch.float64)
    bound = bound_of(ref, e_base, scale, 16, out_dtype="bfloat16", acc_dtype="float32", constants=CONSTANTS)
    assert bound.tolist() == [2 * 0.25 + 3 * 2.0**-8 + math.sqrt(16) * 2.0**-24 * 10] * 4


def test_bound_without_a_scale_uses_the_reference_and_never_falls_below_a_subnormal_step() -> None:
    ref = torch.tensor([0.0, 1e-9], dtype=torch.float64)
    zero = torch.zeros_like(ref)
    bound = bound_of(ref, zero, None, 1, out_dtype="float16", acc_dtype="float32", constants=CONSTANTS)
    assert bound[0].item() == 2.0**-25
    assert rounding_error(ref, "float16").tolist() == [2.0**-25] * 2


def test_infinite_and_nan_references_do_not_spread_into_their_tile() -> None:
    ref = torch.tensor([torch.inf, torch.nan, 1.0], dtype=torch.float64)
    e_base = torch.tensor([torch.nan, torch.nan, 0.0], dtype=torch.float64)
    bound = bound_of(ref, e_base, ref, 4, out_dtype="float16", acc_dtype="float32", constants=CONSTANTS)
    assert bool(torch.isfinite(bound).all())
    assert bound[2].item() == pytest.approx(2.0**-11 + 2 * 2.0**-24)


def test_constants_come_from_the_most_specific_row(monkeypatch: pytest.MonkeyPatch) -> None:
    table = [
        {"op": "*", "target": "*", "k": 2.0, "c": 1.0, "c2": 1.0},
        {"op": "X", "target": "*", "k": 3.0, "c": 1.0, "c2": 1.0},
        {"op": "X", "target": "cuda", "k": 4.0, "c": 1.0, "c2": 1.0},
    ]
    monkeypatch.setattr("tileops_tests.tolerance.calibration", lambda: {"constants": table})
    assert [constants_for(*where).k for where in (("Y", "cpu"), ("X", "cpu"), ("X", "cuda"))] == [
        2.0,
        3.0,
        4.0,
    ]


def test_shipped_constants_have_a_default_and_a_record_of_their_calibration() -> None:
    assert constants_for("AnyOp", "cpu") == CONSTANTS
    records = calibration()["records"]
    assert records, "constants without a calibration record"
    for record in records:
        assert {"date", "device", "target", "observed_maximum_ratio", "cases", "ops"} <= set(record)
        assert 0 < record["observed_maximum_ratio"] <= 1
    json.dumps(calibration())


def test_the_bound_of_a_negative_reference_is_that_of_its_magnitude() -> None:
    ref = torch.tensor([3.0], dtype=torch.float64)
    bounds = [
        bound_of(x, torch.zeros(1), None, 64, out_dtype="float32", acc_dtype="float16", constants=CONSTANTS)
        for x in (ref, -ref)
    ]
    assert bounds[0].item() == bounds[1].item() > 0


@pytest.mark.parametrize(("length", "terms"), [(0, 1), (1, 1), (2, 2), (9, 9)])
def test_the_accumulated_term_grows_with_the_root_of_the_length_and_nothing_is_one_term(
    length: int, terms: int
) -> None:
    ref = torch.tensor([1.0], dtype=torch.float64)
    zero = Constants(k=0.0, c=0.0, c2=1.0)
    bound = bound_of(ref, ref, None, length, out_dtype="float16", acc_dtype="float32", constants=zero)
    assert bound.item() == math.sqrt(terms) * 2.0**-24
