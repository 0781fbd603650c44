"""Wrong implementations fail, each for its own reason; right ones pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tileops_manifest import load_manifest
from tileops_tests.codes import ReasonCode as R
from tileops_tests.limits import Limits
from tileops_workloads import CENTRED

OPS = {
    "rms_norm": "RMSNormFwdOp",
    "softmax": "SoftmaxFwdOp",
    "gemm": "GemmFwdOp",
    "attention": "GroupedQueryAttentionFwdOp",
}

# Further implementations: what the four above cannot do wrong.
MORE_OPS = {
    "batch_norm": "BatchNormFwdOp",
    "max_pool": "MaxPool2dIndicesFwdOp",
    "conv": "Conv2dFwdOp",
    "fft": "FFTC2CFwdOp",
    "nan_to_num": "NanToNumFwdOp",
    "grouped_gemm": "GroupedGemmFwdOp",
    "dropout": "DropoutFwdOp",
    "yarn": "RopeYarnFwdOp",
}

# One case is enough for a fault that does not depend on shapes or values: the ragged row in its first dtype.
ONE_CASE = ("ragged-float16-*s0",)

RAGGED = ("ragged-*",)
SMALL_TRAINING = ("resnet50-fc-training-*",)
SAME = ("same-even-dilated-*",)

FAULTS = {
    "mutates_input": R.INPUT_MUTATED,
    "writes_before_input": R.OUT_OF_BOUNDS_WRITE,
    "writes_past_output": R.OUT_OF_BOUNDS_WRITE,
    "writes_before_output": R.OUT_OF_BOUNDS_WRITE,
    "returns_input": R.ALIAS_OF_INPUT,
    "leaves_rows_unwritten": R.UNWRITTEN_OUTPUT,
    "reuses_its_output": R.OUTPUT_REUSED,
    "caches_by_address": R.STALE_RESULT,
    "differs_between_runs": R.NONDETERMINISTIC,
    "returns_zeros": R.WRONG_VALUE,
    "returns_nan_at_the_end": R.NAN_MISMATCH,
    "returns_infinity_at_the_end": R.INF_MISMATCH,
    "swaps_two_rows": R.WRONG_VALUE,
    "returns_a_lower_dtype": R.WRONG_DTYPE,
    "returns_a_flat_tensor": R.WRONG_SHAPE,
    "returns_transposed_memory": R.WRONG_STRIDE,
    "returns_two_outputs": R.WRONG_ARITY,
    "returns_a_list_of_numbers": R.WRONG_TYPE,
    "returns_a_subclass": R.WRONG_TYPE,
    "returns_on_meta_device": R.WRONG_DEVICE,
    "raises": R.EXCEPTION,
    "says_it_is_not_implemented": R.NOT_IMPLEMENTED,
    "exits": R.EXCEPTION,
    "ends_the_process": R.CRASH,
    "crashes": R.CRASH,
    "hangs": R.TIMEOUT,
    "wants_all_memory": R.OUT_OF_MEMORY,
    "grows_without_end": R.OUT_OF_MEMORY,
}

# (file, callable, cases that can show it, reason). Patterns keep the suite fast; `right` runs the whole tier.
SPECIFIC = [
    ("rms_norm", "wrong_eps", ("*float32*",), R.WRONG_VALUE),
    ("rms_norm", "half_precision_accumulation", ("llama-8b-prefill-float16-cpu-s0",), R.WRONG_VALUE),
    ("rms_norm", "ignored_weight", ONE_CASE, R.WRONG_VALUE),
    ("rms_norm", "dropped_tail", ONE_CASE, R.WRONG_VALUE),
    ("rms_norm", "subtracts_the_mean", ONE_CASE, R.WRONG_VALUE),
    ("rms_norm", "assumes_contiguous", ("*-strided-*", "*-transposed-*"), R.WRONG_VALUE),
    ("softmax", "without_maximum", ("*-adversarial-*",), R.NAN_MISMATCH),
    ("softmax", "always_last_axis", ("ragged-float16-*s0",), R.WRONG_VALUE),
    ("softmax", "half_precision_accumulation", ("attn-weights-4k-float16-cpu-s0",), R.WRONG_VALUE),
    ("softmax", "base_two", ONE_CASE, R.WRONG_VALUE),
    ("softmax", "pads_with_zero", ONE_CASE, R.WRONG_VALUE),
    ("softmax", "logarithm", ONE_CASE, R.WRONG_VALUE),
    ("gemm", "half_precision_accumulation", ("square-1k-nn-float16-cpu-s0",), R.WRONG_VALUE),
    ("gemm", "transposition_ignored", ("M*-N65-K65-*trans_b=True",), R.WRONG_VALUE),
    ("gemm", "dropped_tail", ONE_CASE, R.WRONG_VALUE),
    ("gemm", "tf32_inputs", ("M*float32*",), R.WRONG_VALUE),
    ("gemm", "fp8_inputs", ONE_CASE, R.WRONG_VALUE),
    ("gemm", "scaled", ONE_CASE, R.WRONG_VALUE),
    ("gemm", "last_row_is_its_neighbour", ONE_CASE, R.WRONG_VALUE),
    ("gemm", "assumes_contiguous", ("*-strided-*", "*-transposed-*"), R.WRONG_VALUE),
    ("attention", "mask_off_by_one", ONE_CASE, R.WRONG_VALUE),
    ("attention", "mask_hides_the_diagonal", ONE_CASE, R.WRONG_VALUE),
    ("attention", "no_mask", ONE_CASE, R.WRONG_VALUE),
    ("attention", "no_scale", ONE_CASE, R.WRONG_VALUE),
    ("attention", "scale_of_the_whole_width", ONE_CASE, R.WRONG_VALUE),
    ("attention", "heads_tiled_instead_of_grouped", ONE_CASE, R.WRONG_VALUE),
    ("attention", "half_precision_throughout", ONE_CASE, R.WRONG_VALUE),
    ("attention", "fp8_probabilities", ONE_CASE, R.WRONG_VALUE),
    ("attention", "dropped_keys", ONE_CASE, R.WRONG_VALUE),
    ("attention", "without_maximum", ("*-adversarial-*",), R.NAN_MISMATCH),
    ("batch_norm", "forgets_the_running_statistics", SMALL_TRAINING, R.WRONG_VALUE),
    ("batch_norm", "biased_running_variance", SMALL_TRAINING, R.WRONG_VALUE),
    ("batch_norm", "momentum_of_the_old", SMALL_TRAINING, R.WRONG_VALUE),
    ("batch_norm", "updates_in_inference", ("resnet50-fc-float16-*s0",), R.INPUT_MUTATED),
    ("batch_norm", "unbiased_output", SMALL_TRAINING, R.WRONG_VALUE),
    ("max_pool", "padding_is_zero", RAGGED, R.WRONG_VALUE),
    ("max_pool", "without_the_last_window", RAGGED, R.WRONG_VALUE),
    ("max_pool", "last_of_equal_ones", ("resnet-stem-*-structured-*",), R.WRONG_VALUE),
    ("max_pool", "first_nan", ("resnet-stem-*-adversarial-*",), R.WRONG_VALUE),
    ("conv", "flips_the_filter", ONE_CASE, R.WRONG_VALUE),
    ("conv", "groups_interleaved", ONE_CASE, R.WRONG_VALUE),
    ("conv", "odd_padding_in_front", SAME, R.WRONG_VALUE),
    ("fft", "turns_the_other_way", RAGGED, R.WRONG_VALUE),
    ("fft", "normalised", RAGGED, R.WRONG_VALUE),
    ("fft", "single_precision", ("ragged-complex128-*",), R.WRONG_VALUE),
    ("fft", "real_parts_alone", RAGGED, R.WRONG_DTYPE),
    ("fft", "imaginary_part_missing", RAGGED, R.WRONG_VALUE),
    ("nan_to_num", "ignores_nan", ("*-nan=*",), R.WRONG_VALUE),
    ("nan_to_num", "ignores_posinf", ("*-posinf=*",), R.WRONG_VALUE),
    ("nan_to_num", "ignores_neginf", ("*-neginf=*",), R.WRONG_VALUE),
]

# Wrong in one branch, at an end of a param's domain or on one kind of input: the smoke tier must tell them.
HIDDEN = [
    ("batch_norm", "ignores_eps_in_inference", ("*=*",), R.WRONG_VALUE),
    ("grouped_gemm", "ones_past_the_last_group", ("*=*",), R.WRONG_VALUE),
    ("grouped_gemm", "multiplies_by_a_mask", ("*-adversarial-*",), R.NAN_MISMATCH),
    ("dropout", "drops_nothing_at_one", ("*=*",), R.WRONG_VALUE),
    ("yarn", "ramp_ends_at_the_last_pair", ("*=*", "ramp-*"), R.WRONG_VALUE),
    ("yarn", "ramp_ends_anywhere", ("*=*", "ramp-*"), R.WRONG_VALUE),
]


@pytest.mark.parametrize("file", OPS)
def test_right_implementation_passes_the_whole_smoke_tier(judge: Callable, file: str) -> None:
    record = judge(OPS[file], f"{file}.py:right")
    assert record.status == "passed", (record.failures, record.refusals)
    assert record.cases.run == record.cases.declared == record.cases.passed > 15
    assert 0 < record.worst.ratio < 1
    assert all(record.sensitivity.values())


@pytest.mark.parametrize(
    ("file", "only"),
    [
        ("batch_norm", (*RAGGED, *SMALL_TRAINING)),
        ("max_pool", (*RAGGED, "resnet-stem-*-adversarial-*", "resnet-stem-*-structured-*")),
        ("conv", (*RAGGED, *SAME, "stride2-*")),
        ("fft", RAGGED),
        ("nan_to_num", (*RAGGED, "*-neginf=*")),
        ("grouped_gemm", (*RAGGED, "*-adversarial-*")),
        ("dropout", RAGGED),
        ("yarn", RAGGED),
    ],
)
def test_right_implementation_passes(judge: Callable, file: str, only: tuple[str, ...]) -> None:
    record = judge(MORE_OPS[file], f"{file}.py:right", only, tier="full")
    assert not record.failures, record.failures
    assert record.cases.passed >= 2


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("file", OPS)
def test_fault_is_caught_for_its_own_reason(judge: Callable, limits: Limits, file: str, fault: str) -> None:
    if fault == "hangs":
        limits = replace(limits, run_seconds=1.0, compile_seconds=1.0)
    if fault == "grows_without_end":
        limits = replace(limits, memory_bytes=1 << 30)
    record = judge(OPS[file], f"{file}.py:faults.{fault}", ONE_CASE, limits)
    assert record.status == "failed"
    assert record.cases.declared == record.cases.run > 0
    assert {failure.code for failure in record.failures} == {FAULTS[fault]}, record.failures


@pytest.mark.parametrize("file", OPS)
def test_a_result_remembered_by_a_sample_of_its_inputs_is_stale(judge: Callable, file: str) -> None:
    record = judge(OPS[file], f"{file}.py:faults.caches_by_sampled_content", ("*-cpu-s0",))
    assert {failure.code for failure in record.failures} == {R.STALE_RESULT}, record.failures
    assert record.cases.passed > 0  # where all values change, the sample changes too


@pytest.mark.parametrize(
    ("file", "name", "only", "code"), SPECIFIC, ids=lambda value: value if isinstance(value, str) else ""
)
def test_wrong_implementation_is_caught(
    judge: Callable, file: str, name: str, only: tuple[str, ...], code: R
) -> None:
    record = judge({**OPS, **MORE_OPS}[file], f"{file}.py:{name}", only, tier="full")
    assert record.status == "failed", (record.cases, record.worst)
    assert code in {failure.code for failure in record.failures}, record.failures


@pytest.mark.parametrize(
    ("file", "name", "only", "code"), HIDDEN, ids=lambda v: v if isinstance(v, str) else ""
)
def test_smoke_tier_catches_what_is_wrong_in_one_place_alone(
    judge: Callable, file: str, name: str, only: tuple[str, ...], code: R
) -> None:
    op = MORE_OPS[file]
    record = judge(op, f"{file}.py:{name}", only)
    assert code in {failure.code for failure in record.failures}, record.failures
    right = judge(op, f"{file}.py:right", only)
    assert not right.failures, right.failures


def of_centred(op: str, kind: str) -> str:
    name = load_manifest()[op].function_name
    return f"centred.py:{kind}.{name}"


@pytest.mark.parametrize("op", CENTRED)
def test_subtracting_the_mean_from_each_element_passes_far_from_zero(judge: Callable, op: str) -> None:
    record = judge(op, of_centred(op, "right"), ("*-shifted-*",))
    assert record.status == "passed", (record.failures, record.refusals)
    assert record.cases.passed == 6


@pytest.mark.parametrize("op", CENTRED)
def test_a_difference_of_sums_is_caught_far_from_zero_and_nowhere_else(judge: Callable, op: str) -> None:
    record = judge(op, of_centred(op, "cancelling"), ("ragged-*-cpu-s0", "ragged-*-shifted-*"))
    assert record.cases.passed >= 3
    assert {failure.code for failure in record.failures} == {R.WRONG_VALUE}, record.failures
    assert all("-shifted-" in failure.case for failure in record.failures)
    assert any("float32" in failure.case for failure in record.failures)
