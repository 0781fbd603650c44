"""Every oracle agrees with its second opinion, in values, shapes and dtypes, and has the op's properties."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tileops_manifest import load_manifest
from tileops_tests.oracles import Oracle, UnknownOracleError, get_oracle, list_oracles
from tileops_tests.oracles.base import Call
from tileops_tests.oracles.properties import SLACK
from tileops_tests.precision import FORMATS, round_significand
from tileops_tests.reference import real_parts
from tileops_workloads import (
    DISTRIBUTIONS,
    LayoutError,
    WorkloadBase,
    boundary_dims,
    make_workload,
    torch_dtype,
)

MANIFEST = load_manifest()
OPS = list_oracles()

# Relative to the magnitude that an element accumulates: thousands of float64 roundoffs, far below float32's.
TOLERANCE = 2.0**-36

# How many boundary shapes of an op are tried; they are taken evenly over all of them.
BOUNDARY_SHAPES = 24


def disagreement(oracle: Oracle, workload: WorkloadBase) -> str | None:
    """How the two opinions differ on a workload; None when they agree."""
    inputs, params = workload.gen_inputs(), workload.params
    first = oracle.canonical_form(inputs, params, oracle.ref_program(inputs, params))
    second = oracle.canonical_form(inputs, params, oracle.second_opinion(inputs, params))
    scales = oracle.scale(inputs, params)
    assert len(scales) == len(workload.binding.results)
    if len(first) != len(second):
        return f"{workload!r}: {len(first)} outputs against {len(second)}"
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        reason = difference(a, b, scales[number])
        if reason is not None:
            return f"{workload!r}, output {number}: {reason}"
    return None


def difference(a: Tensor, b: Tensor, scale: Tensor | None) -> str | None:
    """Why two tensors are not equal; floating ones may differ by the tolerance, relative to `scale`."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}"
    if not a.is_floating_point():
        return None if torch.equal(a, b) else f"{int((a != b).sum())} elements differ"
    magnitude = b.abs() if scale is None else torch.maximum(b.abs(), scale.to(b.dtype).nan_to_num(0, 0, 0))
    good = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= TOLERANCE * magnitude)
    if bool(good.all()):
        return None
    return f"{int((~good).sum())} of {good.numel()} differ: {a[~good][:3].tolist()} {b[~good][:3].tolist()}"


def test_every_oracle_has_an_entry_and_every_implemented_entry_an_oracle():
    """An entry comes before its oracle, in a change of its own; it claims no target until then."""
    implemented = {
        name for name, entry in MANIFEST.items() if "implemented" in entry.status.model_dump().values()
    }
    assert implemented <= set(OPS) <= set(MANIFEST)


def test_an_op_without_an_oracle_is_an_error_that_suggests_one():
    with pytest.raises(UnknownOracleError, match="did you mean 'SoftmaxFwdOp'"):
        get_oracle("SoftmaxOp")


def test_a_compute_dtype_without_arithmetic_is_refused():
    with pytest.raises(ValueError, match=r"compute_dtype is torch\.float8_e4m3fn"):
        get_oracle("SiluFwdOp").ref_program({"input": torch.ones(1)}, {}, torch.float8_e4m3fn)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("op", OPS)
def test_opinions_agree_on_the_ragged_row(op, distribution, ragged):
    for workload in ragged(op, distribution=distribution):
        assert disagreement(get_oracle(op), workload) is None


@pytest.mark.parametrize("op", OPS)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
def test_opinions_agree_at_the_boundaries(op):
    entry = MANIFEST[op]
    cases = list(boundary_dims(entry))
    for dims, params, with_ in cases[:: max(len(cases) // BOUNDARY_SHAPES, 1)]:
        dtypes = entry.workloads[-1].dtypes[-1]
        workload = make_workload(entry, None, dtypes, dims=dims, params=params, with_=with_)
        assert disagreement(get_oracle(op), workload) is None


@pytest.mark.parametrize("op", OPS)
def test_outputs_have_the_shapes_and_dtypes_of_the_entry(op, ragged):
    for workload in ragged(op):
        outputs = get_oracle(op).ref_program(workload.gen_inputs(), workload.params)
        for output, meta in zip(outputs, workload.binding.results.values(), strict=True):
            # Complex numbers are pairs.
            parts = real_parts(meta)
            declared = torch_dtype(parts.dtype)
            assert tuple(output.shape) == parts.shape
            assert output.dtype == (torch.float64 if declared.is_floating_point else declared)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom is <= 0")
def test_opinions_agree_on_empty_inputs(op, ragged):
    try:
        workloads = ragged(op, layout="empty")
    except LayoutError:
        # The entry takes no empty input: then no single size of the row may be 0.
        row = MANIFEST[op].row("ragged")
        assert not any(isinstance(size, int) and size == 0 for size in row.dims.values())
        return
    assert disagreement(get_oracle(op), workloads[0]) is None


@pytest.mark.parametrize("op", OPS)
def test_programs_do_not_touch_their_inputs(op, ragged):
    workload = ragged(op)[0]
    inputs, untouched = workload.gen_inputs(), workload.gen_inputs()
    get_oracle(op).ref_program(inputs, workload.params, torch.float32)
    get_oracle(op).ref_program(inputs, workload.params)
    for name, tensor in inputs.items():
        same = tensor is None or (tensor.double() == untouched[name].double()) | tensor.double().isnan()
        assert tensor is None or same.all()


@pytest.mark.parametrize("op", OPS)
def test_programs_take_any_layout(op, ragged):
    oracle, plain = get_oracle(op), ragged(op)[0]
    expected = oracle.ref_program(plain.gen_inputs(), plain.params)
    for layout in ("strided", "transposed", "offset"):
        try:
            workload = ragged(op, layout=layout)[0]
        except LayoutError:
            continue
        outputs = oracle.ref_program(workload.gen_inputs(), workload.params)
        assert all(difference(a, b, None) is None for a, b in zip(outputs, expected, strict=True)), layout


PROPERTIES = [(op, check.__name__) for op in OPS for check in get_oracle(op).properties]


@pytest.mark.parametrize("distribution", [d for d in DISTRIBUTIONS if d != "adversarial"])
@pytest.mark.parametrize(("op", "name"), PROPERTIES)
def test_properties_hold(op, name, distribution, ragged):
    oracle = get_oracle(op)
    check = next(check for check in oracle.properties if check.__name__ == name)
    for workload in ragged(op, distribution=distribution):
        assert check(oracle.ref_program, workload.gen_inputs(), workload.params), workload


# Each breaks one property, which must notice: op, property, what is made of the right outputs and the input.
BREAKS = [
    ("TanhFwdOp", "is_odd", lambda y, x: y + 1e-3),
    ("TanhFwdOp", "is_monotone", lambda y, x: -y),
    ("CosFwdOp", "is_even", lambda y, x: y + x),
    ("AbsFwdOp", "is_idempotent", lambda y, x: y * 2),
    ("NegFwdOp", "is_involution", lambda y, x: y * 2),
    ("SoftmaxFwdOp", "sums_to_one", lambda y, x: y * 1.001),
    ("LogSoftmaxFwdOp", "exponentials_sum_to_one", lambda y, x: y + 0.001),
    ("SumFwdOp", "is_homogeneous", lambda y, x: y + 1),
    ("CumsumFwdOp", "differences_are_the_terms", lambda y, x: y * 1.001),
    ("CumprodFwdOp", "steps_multiply", lambda y, x: y * 1.001),
    ("GtFwdOp", "is_asymmetric", lambda y, x: ~y),
    ("AlibiFwdOp", "falls_with_the_distance", lambda y, x: y - y.tril(-1) * 0.001),
    ("SinusoidalFwdOp", "squares_sum_to_one", lambda y, x: y * 1.001),
    (
        "DropoutFwdOp",
        "keeps_about_as_many_as_asked",
        lambda y, x: y * (torch.arange(y.numel()).view(y.shape) % 4 > 0),
    ),
    ("GemmFwdOp", "identity_reproduces", lambda y, x: y * 1.001),
    ("GroupedQueryAttentionFwdOp", "constant_values_pass_through", lambda y, x: y * 1.001),
    ("RopeNeoxFwdOp", "keeps_lengths", lambda y, x: y * 1.001),
    ("RopeNeoxPositionIdsFwdOp", "position_zero_is_copied", lambda y, x: y * 1.001),
    ("RopeYarnFwdOp", "stretches_pairs_evenly", lambda y, x: y * 1.001),
    ("RopeLlama31FwdOp", "is_plain_without_scaling", lambda y, x: y * 1.001),
    ("RopeLongRopeFwdOp", "is_plain_without_scaling", lambda y, x: y * 1.001),
    ("AvgPool2dFwdOp", "keeps_a_constant", lambda y, x: y * 1.001),
    ("MaxPool2dFwdOp", "commutes_with_order", lambda y, x: y * 1.001),
    (
        "MaxPool3dIndicesFwdOp",
        "indices_point_at_the_values",
        lambda y, x: y.roll(1, -1) if y.dtype == torch.int64 else y,
    ),
    ("Conv1dFwdOp", "is_linear_in_input_and_bias", lambda y, x: y + 1),
    ("Conv2dFwdOp", "ones_sum_the_filters", lambda y, x: y * 1.001),
    ("Conv3dFwdOp", "an_impulse_answers_with_the_filter", lambda y, x: y.flip(-1)),
    ("FFTC2CFwdOp", "is_the_defining_sum", lambda y, x: y * 1.001),
    ("FFTC2CFwdOp", "keeps_the_energy", lambda y, x: y * 1.001),
    ("FFTC2CFwdOp", "a_delay_turns_the_phases", lambda y, x: y.flip(-2)),
    ("FFTC2CFwdOp", "twice_reverses", lambda y, x: y * 1.001),
    ("BatchNormFwdOp", "ignores_the_scale_of_a_channel", lambda y, x: y * x.abs().amax()),
    ("InstanceNormFwdOp", "momentum_one_forgets", lambda y, x: y + 0.001),
    ("BatchNormBwdOp", "is_orthogonal_to_what_normalising_removes", lambda y, x: y + 0.001),
    ("FP8QuantFwdOp", "fits_the_format_and_restores_x", lambda y, x: y * 1.001),
    ("TopkSelectorFwdOp", "selects_nothing_below_what_it_leaves", lambda y, x: (y + 1) % 131),
    ("MoePermuteNopadFwdOp", "every_local_copy_has_its_row", lambda y, x: y * 0),
    ("MoePermuteAlignFwdOp", "every_copy_is_listed_once_in_its_experts_blocks", lambda y, x: y // 2),
    ("GatedDeltaNetPrefillBHTDFwdOp", "doubles_with_v", lambda y, x: y + 1e-3),
    ("GatedDeltaNetPrefillBHTDFwdOp", "is_causal", lambda y, x: y + x.double().sum()),
    ("DaCumsumFwdOp", "steps_are_differences", lambda y, x: y * y),
    ("CBProducerFwdOp", "transposes_with_its_inputs", lambda y, x: y.tril()),
    ("EngramGateConvFwdOp", "ignores_the_length_of_keys", lambda y, x: y + x.double().sum()),
    ("EngramDecodeFwdOp", "moves_the_cache_on", lambda y, x: y.roll(1, 1)),
    ("MHCPreFwdOp", "equal_streams_stay_equal", lambda y, x: y * 1.001),
    ("MHCPostFwdOp", "nothing_written_changes_nothing", lambda y, x: y * 1.001),
    ("GroupedQueryAttentionBwdOp", "is_linear_in_the_gradient", lambda y, x: y + 1),
    ("GroupedQueryAttentionPrefillFwdOp", "other_requests_do_not_matter", lambda y, x: y + x.shape[0]),
    (
        "GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp",
        "pages_hold_the_new_tokens_and_nothing_else_changes",
        lambda y, x: y * 1.001,
    ),
    ("MultiHeadLatentAttentionDecodeWithKVCacheFwdOp", "values_are_averaged", lambda y, x: y * 1.001),
    ("DeepSeekSparseAttentionDecodeWithKVCacheFwdOp", "values_are_averaged", lambda y, x: y * 1.001),
    ("FP8LightningIndexerFwdOp", "is_linear_in_the_weights", lambda y, x: y + 1),
    ("FP8LightningIndexerFwdOp", "opposite_queries_have_no_heads_in_common", lambda y, x: y * 1.001),
    ("BmmFp8NKFwdOp", "is_linear_in_scale_a", lambda y, x: y + 1),
    ("GemmFp8FwdOp", "equal_factors_are_one_factor", lambda y, x: y + x.numel() * torch.rand_like(y)),
    ("GemmW4A16FwdOp", "a_weight_at_its_zero_is_zero", lambda y, x: y + 1),
    ("GroupedGemmFwdOp", "rows_of_other_groups_do_not_matter", lambda y, x: y + 1),
    ("MoeGateUpFwdOp", "rows_past_the_last_expert_are_zero", lambda y, x: y + 1),
    ("MoeUnpermuteFwdOp", "equal_rows_give_the_sum_of_weights", lambda y, x: y * 1.001),
    ("FusedMoEExpertsNopadPersistent3WGFwdOp", "is_linear_in_w_down", lambda y, x: y + 1),
    ("FusedMoeFwdOp", "is_linear_in_w_down", lambda y, x: y + 1),
]


@pytest.mark.parametrize(("op", "name", "spoil"), BREAKS, ids=[f"{op}-{name}" for op, name, _ in BREAKS])
def test_properties_notice_a_wrong_implementation(op, name, spoil, ragged):
    oracle, workload = get_oracle(op), ragged(op)[-1]
    check = next(check for check in oracle.properties if check.__name__ == name)

    def wrong(inputs, params):
        leading = next(iter(inputs.values()), None)
        return tuple(spoil(output, leading) for output in oracle.ref_program(inputs, params))

    assert not check(wrong, workload.gen_inputs(), workload.params)


SUMS = [op for op in OPS if MANIFEST[op].numerics.accumulate == "float32" and "Rope" not in op]


@pytest.mark.parametrize("op", SUMS)
def test_a_float32_program_errs_by_no_more_than_its_scale_says(op, ragged):
    """`scale` and `reduction_length` are terms of the bound: the program in float32 must lie well inside."""
    oracle, workload = get_oracle(op), ragged(op)[-1]
    inputs, params = workload.gen_inputs(), workload.params
    precise = oracle.ref_program(inputs, params)
    single = oracle.ref_program(inputs, params, torch.float32)
    length = oracle.reduction_length(inputs, params)
    for ref, out, scale in zip(precise, single, oracle.scale(inputs, params), strict=True):
        magnitude = ref.abs() if scale is None else torch.maximum(scale, ref.abs())
        bound = 4 * math.sqrt(length) * 2.0**-24 * magnitude + 2.0**-126
        assert ((out.double() == ref) | ((out.double() - ref).abs() <= bound)).all()


@pytest.mark.parametrize("op", OPS)
def test_a_program_rounds_the_intermediate_values_that_its_entry_names_and_no_other(op, ragged, monkeypatch):
    asked = set()
    monkeypatch.setattr(Call, "rounded", lambda self, name, x: asked.add(name) or x)
    for workload in ragged(op):
        get_oracle(op).ref_program(workload.gen_inputs(), workload.params)
    assert asked == set(MANIFEST[op].numerics.intermediates)


def test_rounded_probabilities_err_by_more_than_float32_and_leave_the_definition_alone(ragged):
    oracle, workload = get_oracle("GroupedQueryAttentionFwdOp"), ragged("GroupedQueryAttentionFwdOp")[1]
    inputs, params = workload.gen_inputs(), workload.params
    (ref,), (single,), (stored,) = (
        oracle.ref_program(inputs, params, *how)
        for how in ((), (torch.float32,), (torch.float32, {"probabilities": torch.bfloat16}))
    )
    assert (single - ref).abs().max() < 2.0**-18
    assert 2.0**-12 < (stored - ref).abs().max() < 2.0**-6


WITHOUT_PRECISION = [op for op in OPS if not get_oracle(op).rounds]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("op", WITHOUT_PRECISION)
def test_results_without_precision_are_held_by_the_lowest_format(op, distribution, ragged):
    for workload in ragged(op, distribution=distribution):
        for output in get_oracle(op).ref_program(workload.gen_inputs(), workload.params):
            if output.is_floating_point():
                lowest = FORMATS["two_bits"].bits
                assert torch.equal(round_significand(output.double(), lowest), output.double())


def test_few_ops_claim_to_have_no_precision():
    assert WITHOUT_PRECISION == ["SignFwdOp"]


def test_sums_accumulate_in_a_low_compute_dtype():
    """2048 ones and then ones again: float16 cannot count on, float32 can."""
    x = {"x": torch.ones(1, 4096, dtype=torch.float16)}
    params = {"dim": -1, "keepdim": False}
    assert get_oracle("CumsumFwdOp").ref_program(x, {"dim": -1}, torch.float16)[0][0, -1] == 2048
    assert get_oracle("SumFwdOp").ref_program(x, params, torch.float32)[0].item() == 4096
    rough = get_oracle("SumFwdOp").ref_program({"x": x["x"] * 0.1}, params, torch.bfloat16)[0]
    assert abs(rough.item() / 409.6 - 1) > 1e-3


def test_slack_of_properties_is_tighter_than_single_precision():
    assert SLACK < 2.0**-24


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    ("op", "over_rows", "over_all"),
    [
        ("AllFwdOp", [False, True], False),
        ("AnyFwdOp", [True, True], True),
        ("CountNonzeroFwdOp", [1, 2], 3),
    ],
)
def test_a_complex_element_is_true_where_either_part_is(
    op: str, over_rows: list, over_all: bool | int, dtype: torch.dtype
) -> None:
    x = torch.tensor([[0, 2j], [-1, 1 + 1j]], dtype=dtype)
    oracle, entry = get_oracle(op), MANIFEST[op]
    for dim, expected in ((-1, over_rows), (None, over_all)):
        params = entry.canonical_params({"dim": dim})
        for program in (oracle.ref_program, oracle.second_opinion):
            assert program({"x": x}, params)[0].tolist() == expected
