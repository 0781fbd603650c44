"""The gate, and the refusal of workloads that could not tell."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tileops_manifest import TensorMeta, load_manifest
from tileops_tests.comparator import OutputReference, compare
from tileops_tests.oracles import get_oracle
from tileops_tests.reference import accumulation_dtype, build_references, sees_lower_precision
from tileops_tests.sensitivity import KINDS, Outcome, gate
from tileops_tests.tolerance import TILE_COLUMNS, TILE_ROWS, Constants
from tileops_workloads import make_workload

CONSTANTS = Constants(k=2.0, c=1.0, c2=1.0)
SHAPE = (TILE_ROWS * 2 + 3, TILE_COLUMNS + 9)


def reference(expected: torch.Tensor, bound: float) -> OutputReference:
    ref = expected.to(torch.float64)
    name = str(expected.dtype).removeprefix("torch.")
    return OutputReference("y", name, expected, ref, ref, bound=torch.full_like(ref, bound))


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_every_kind_is_rejected_under_a_tight_bound() -> None:
    assert set(gate([reference(noise(*SHAPE), 1e-6)]).values()) == {Outcome.REJECTED}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_accepted_under_a_bound_that_accepts_anything(kind: str) -> None:
    assert gate([reference(noise(*SHAPE), 1e9)])[kind] is Outcome.ACCEPTED


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_changes_only_what_it_says(kind: str) -> None:
    expected = noise(*SHAPE)
    wrong = KINDS[kind](reference(expected, 1.0))
    changed = (wrong != expected).nonzero()
    assert wrong.shape == expected.shape
    assert len(changed) > 0
    if kind == "wrong_element":
        assert len(changed) == 1
    if kind == "wrong_tile":
        assert bool((changed >= torch.tensor([TILE_ROWS * 2, TILE_COLUMNS])).all())
        assert len(changed) == 3 * 9


@pytest.mark.parametrize("value", [65504.0, -65504.0, 1.0, -1.0, 0.0])
def test_a_wrong_element_among_equal_ones_is_another_value_that_the_dtype_holds(value: float) -> None:
    expected = torch.full((3,), value, dtype=torch.float16)
    wrong = KINDS["wrong_element"](reference(expected, 1e-6))
    assert wrong.isfinite().all()
    assert (wrong != expected).sum() == 1


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([1.0], 3.0, 3.0),  # nothing else to take: another value all the same
        ([torch.inf, -torch.inf], 1.0, 1.0),  # nothing finite
        ([0.0, 5.0, -7.0, 1.0], -7.0, 5.0),
        ([-1.0, 0.0, 1.0], -1.0, 1.0),  # equally far: the higher one
        ([0.0, 3.0, 2.0, 1.0], 0.0, 3.0),
        # What is not finite counts as 0.
        ([0.0, torch.nan, 1.0], 1.0, 1.0),
        ([0.0, torch.inf, 1.0], 1.0, 1.0),
        ([0.0, -torch.inf, 1.0], 1.0, 1.0),
        ([-2.0, torch.inf, -1.0], -2.0, -2.0),
    ],
)
def test_a_wrong_element_is_the_finite_value_farthest_away(
    values: list[float], low: float, high: float
) -> None:
    expected = torch.tensor(values)
    wrong = KINDS["wrong_element"](reference(expected, 1e-6))
    (at,) = (wrong != expected).nonzero().flatten().tolist()
    far = low if abs(expected[at] - low) > abs(expected[at] - high) else high
    assert wrong[at].item() == far


@pytest.mark.parametrize(
    ("expected", "changed"),
    [(torch.arange(8), [0, 1, 2, 3, 5, 5, 6, 7]), (torch.tensor([True, False, True]), [True, True, True])],
)
def test_a_wrong_integer_is_the_next_one_and_a_wrong_bool_the_other(
    expected: torch.Tensor, changed: list
) -> None:
    name = str(expected.dtype).removeprefix("torch.")
    assert KINDS["wrong_element"](OutputReference("y", name, expected)).tolist() == changed


def test_a_single_element_is_judged_and_none_is_not() -> None:
    assert gate([reference(torch.tensor([3.0]), 1e-6)])["zeros"] is Outcome.REJECTED
    assert set(gate([reference(torch.empty(0, 3), 1e-6)]).values()) == {Outcome.UNCHANGED}


def test_a_constant_is_the_middle_element() -> None:
    assert KINDS["constant"](reference(torch.arange(5.0), 1e-6)).tolist() == [2.0] * 5


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (7,)])
def test_every_row_is_in_its_neighbours_place_and_of_a_vector_every_element(shape: tuple[int, ...]) -> None:
    expected = noise(*shape)
    rows = expected.reshape(-1, expected.shape[-1]) if len(shape) > 1 else expected.reshape(-1, 1)
    wrong = KINDS["shuffled_rows"](reference(expected, 1e-6))
    assert wrong.shape == expected.shape
    assert torch.equal(wrong.reshape(rows.shape), torch.cat([rows[-1:], rows[:-1]]))


def test_a_wrong_tile_is_of_the_last_dim_and_holds_no_value_that_was_there() -> None:
    expected = torch.ones(2, TILE_ROWS, TILE_COLUMNS + 2)
    expected[-1, -1, -1] = 0
    wrong = KINDS["wrong_tile"](reference(expected, 1e-6))
    assert int((wrong == 0).sum()) == TILE_ROWS * 2
    assert not wrong[-1, :, -2:].any()
    assert KINDS["wrong_tile"](reference(torch.tensor(3.0), 1e-6)).item() == 0
    assert KINDS["wrong_tile"](reference(torch.zeros(1), 1e-6)).item() == 1


@pytest.mark.parametrize("shape", [(2 * TILE_ROWS, 2 * TILE_COLUMNS), (TILE_ROWS + 1, TILE_COLUMNS + 2)])
def test_a_wrong_tile_is_the_last_one_and_no_more(shape: tuple[int, int]) -> None:
    expected = torch.ones(shape)
    wrong = KINDS["wrong_tile"](reference(expected, 1e-6))
    rows, columns = (size % tile or tile for size, tile in zip(shape, (TILE_ROWS, TILE_COLUMNS), strict=True))
    assert int((wrong == 0).sum()) == rows * columns
    assert not wrong[-rows:, -columns:].any()


def test_kinds_that_do_not_change_the_output_prove_nothing() -> None:
    outcomes = gate([reference(torch.zeros(4, 4), 1e-6)])
    unchanged = {kind for kind, outcome in outcomes.items() if outcome is Outcome.UNCHANGED}
    assert unchanged == {"zeros", "constant", "shuffled_rows", "rounded"}


def test_rounding_below_coarser_intermediate_values_must_be_seen_where_the_outputs_own_is_no_error() -> None:
    loose = replace(reference(noise(*SHAPE), 2.0**-9), resolution="float32")
    coarse = replace(loose, resolution="float16")
    assert gate([loose])["rounded"] is Outcome.ACCEPTED
    assert gate([coarse])["rounded"] is Outcome.REJECTED
    tight = replace(coarse, bound=torch.full_like(coarse.ref, 1e-6))
    assert torch.equal(KINDS["rounded"](tight), KINDS["rounded"](replace(tight, resolution=None)))


def test_one_insensitive_output_among_several_is_enough_to_be_accepted() -> None:
    outcomes = gate([reference(noise(*SHAPE), 1e-6), reference(noise(*SHAPE), 1e9)])
    assert set(outcomes.values()) == {Outcome.ACCEPTED}


@pytest.mark.parametrize(
    "expected", [torch.tensor([[True, False], [False, False]]), torch.arange(6).reshape(2, 3)]
)
def test_integers_and_bools_have_every_kind_but_rounding(expected: torch.Tensor) -> None:
    outcomes = gate([OutputReference("y", str(expected.dtype).removeprefix("torch."), expected)])
    assert outcomes.pop("rounded") is Outcome.INAPPLICABLE
    assert set(outcomes.values()) == {Outcome.REJECTED}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float16])
def test_narrow_dtypes_can_be_perturbed(dtype: torch.dtype) -> None:
    expected = noise(8, 8).to(dtype)
    for kind, make in KINDS.items():
        wrong = make(OutputReference("y", str(dtype).removeprefix("torch."), expected))
        assert (
            compare(wrong, OutputReference("y", str(dtype).removeprefix("torch."), expected)).code is not None
        ), kind


class Product:
    """An oracle of GEMM, as far as a refusal needs one."""

    def ref_program(
        self, inputs: dict, params: dict, compute_dtype: torch.dtype = torch.float64, *stored: dict
    ) -> tuple:
        return (inputs["a"].to(compute_dtype) @ inputs["b"].to(compute_dtype).t(),)

    def scale(self, inputs: dict, params: dict) -> tuple:
        a, b = (inputs[name].to(torch.float64) for name in "ab")
        return (a.norm(dim=1, keepdim=True) * b.norm(dim=1)[None],)

    def reduction_length(self, inputs: dict, params: dict) -> int:
        return inputs["a"].shape[1]

    def canonical_form(self, inputs: dict, params: dict, outputs: tuple) -> tuple:
        return outputs


def product_references(a: torch.Tensor, b: torch.Tensor) -> list[OutputReference]:
    metas = {
        name: TensorMeta(tuple(x.shape), str(x.dtype).removeprefix("torch."))
        for name, x in (("a", a), ("b", b))
    }
    binding = load_manifest()["GemmFwdOp"].bind(metas, {"trans_a": False, "trans_b": True})
    return build_references(binding, Product(), {"a": a, "b": b}, CONSTANTS)


def test_zero_mean_inputs_see_fp8_in_a_bfloat16_product() -> None:
    a, b = noise(32, 256).bfloat16(), noise(48, 256, seed=2).bfloat16()
    assert sees_lower_precision(product_references(a, b))


def test_a_workload_that_cannot_see_fp8_is_refused() -> None:
    a, b = torch.ones(32, 256).bfloat16(), torch.ones(48, 256).bfloat16()
    assert not sees_lower_precision(product_references(a, b))


def test_exact_entries_and_integer_outputs_are_compared_bit_for_bit() -> None:
    entry = load_manifest()["NegFwdOp"]
    name = next(iter(entry.inputs))
    binding = entry.bind({name: TensorMeta((3,), "float32")}, {})

    class Negation(Product):
        def ref_program(
            self, inputs: dict, params: dict, compute_dtype: torch.dtype = torch.float64, *stored: dict
        ) -> tuple:
            return (-inputs[name].to(compute_dtype),)

    (made,) = build_references(binding, Negation(), {name: torch.tensor([1.0, 0.0, -2.0])}, CONSTANTS)
    assert made.bound is None
    assert compare(torch.tensor([-1.0, -0.0, 2.0]), made).code is None
    assert compare(torch.tensor([-1.0, -0.0, 2.0 + 2**-22]), made).code == "wrong_value"


@pytest.mark.parametrize(("dtype", "precision"), [("complex64", "float32"), ("complex128", "float64")])
def test_a_complex_output_is_judged_by_its_parts_in_their_own_precision(dtype: str, precision: str) -> None:
    workload = make_workload(load_manifest()["FFTC2CFwdOp"], "ragged", dtype)
    assert accumulation_dtype(workload.binding) == precision
    oracle = get_oracle("FFTC2CFwdOp")
    (reference,) = build_references(workload.binding, oracle, workload.gen_inputs(), CONSTANTS)
    assert reference.complex
    assert reference.dtype == precision
    assert reference.expected.shape == (3, 5, 128, 2)
    # The program in the specified precision errs, in double precision too: it is judged by a wider one.
    assert reference.e_base.max() > 0
    assert sees_lower_precision([reference])


def test_mutated_inputs_that_no_output_is_have_references_of_their_own() -> None:
    entry = load_manifest()["BatchNormFwdOp"]
    for training, names in ((True, ["output", "running_mean", "running_var"]), (False, ["output"])):
        workload = make_workload(entry, "ragged", "float16", params={"training": training})
        oracle = get_oracle("BatchNormFwdOp")
        references = build_references(workload.binding, oracle, workload.gen_inputs(), CONSTANTS)
        assert [reference.name for reference in references] == names
        assert [reference.dtype for reference in references] == ["float16", "float32", "float32"][
            : len(names)
        ]


def test_an_oracle_of_another_shape_is_an_error_and_not_a_verdict() -> None:
    class Flat(Product):
        def ref_program(
            self, inputs: dict, params: dict, compute_dtype: torch.dtype = torch.float64, *stored: dict
        ) -> tuple:
            return (super().ref_program(inputs, params, compute_dtype)[0].flatten(),)

    entry = load_manifest()["GemmFwdOp"]
    metas = {"a": TensorMeta((2, 3), "float32"), "b": TensorMeta((4, 3), "float32")}
    binding = entry.bind(metas, {"trans_a": False, "trans_b": True})
    with pytest.raises(ValueError, match=r"oracle: .*shape is \(8,\), expected \(2, 4\)"):
        build_references(binding, Flat(), {"a": torch.ones(2, 3), "b": torch.ones(4, 3)}, CONSTANTS)
