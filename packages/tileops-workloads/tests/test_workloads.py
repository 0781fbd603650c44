"""make_workload and WorkloadBase: identity, determinism, structure, errors."""

from __future__ import annotations

import hashlib

import pytest
import torch

from tileops_manifest import SpecError, TensorMeta, UnknownRowError, load_manifest
from tileops_workloads import (
    DISTRIBUTIONS,
    BenchmarkWorkload,
    InputGeneratingWorkload,
    ScaleError,
    ShapeDtypeWorkload,
    UnknownNameError,
    WorkloadBase,
    make_workload,
    register,
    torch_dtype,
    workload_class,
)

MANIFEST = load_manifest()
OPS = tuple(MANIFEST)
PAGED = "GroupedQueryAttentionDecodePagedWithKVCacheFwdOp"


def digest(inputs):
    state = hashlib.sha256()
    for name, tensor in inputs.items():
        data = (
            b"" if tensor is None else bytes(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).tolist())
        )
        state.update(name.encode() + data)
    return state.hexdigest()[:16]


# Where there is a GPU, inputs made on it must have the same bytes.
DEVICES = ("cpu", *(("cuda",) if torch.cuda.is_available() else ()))


def small(op, row="ragged", **kwargs):
    entry = MANIFEST[op]
    row = entry.row(row)
    return make_workload(entry, row, row.dtypes[0], **kwargs)


def free(op, dims, dtype="float32", **kwargs):
    return make_workload(MANIFEST[op], None, dtype, dims=dims, **kwargs)


@pytest.mark.parametrize("op", OPS)
def test_inputs_fit_the_entry_and_are_the_same_twice(op):
    w = small(op, scale="cpu")
    first, second = w.gen_inputs(), w.gen_inputs()
    assert tuple(first) == tuple(MANIFEST[op].inputs)
    for name, meta in w.binding.inputs.items():
        if meta is None:
            assert first[name] is None
            continue
        assert tuple(first[name].shape) == meta.shape
        assert first[name].dtype == torch_dtype(meta.dtype)
        assert first[name].data_ptr() != second[name].data_ptr() or meta.shape == ()
    assert digest(first) == digest(second)


@pytest.mark.parametrize("op", [op for op in OPS if MANIFEST[op].inputs])
def test_another_seed_gives_other_values(op):
    assert digest(small(op).gen_inputs()) != digest(small(op, seed=1).gen_inputs())


@pytest.mark.parametrize(
    ("op", "golden"),
    [
        ("RMSNormFwdOp", "c7129b437d46ca5e"),
        (PAGED, "34b6061809a1b12f"),
        ("TopkSelectorFwdOp", "d8771b8dd7553727"),
        ("ProdFwdOp", "b4ee453429fbe7a5"),
    ],
)
def test_inputs_have_golden_bytes(op, golden):
    for device in DEVICES:
        assert digest(small(op, device=device).gen_inputs()) == golden


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("op", OPS)
def test_inputs_do_not_depend_on_threads_or_device(op, distribution):
    made = {digest(small(op, device=device, distribution=distribution).gen_inputs()) for device in DEVICES}
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        made.add(digest(small(op, distribution=distribution).gen_inputs()))
    finally:
        torch.set_num_threads(threads)
    assert len(made) == 1


def test_inputs_of_one_call_are_unrelated():
    inputs = free("AddFwdOp", {"A": (64, 64), "B": (64, 64)}).gen_inputs()
    correlation = (inputs["input"] * inputs["other"]).mean().item()
    assert abs(correlation) < 0.05


def test_every_part_of_the_identity_is_in_the_digest():
    dims = {"batch": (4,), "norm": (8,)}
    variants = [
        free("RMSNormFwdOp", dims),
        free("RMSNormFwdOp", dims, seed=1),
        free("RMSNormFwdOp", dims, "float16"),
        free("RMSNormFwdOp", dims, distribution="exact"),
        free("RMSNormFwdOp", dims, layout="strided"),
        free("RMSNormFwdOp", {"batch": (5,), "norm": (8,)}),
        free("RMSNormFwdOp", dims, params={"eps": 0.1}),
        free("LayerNormFwdOp", dims),
    ]
    assert len({w.digest for w in variants}) == len(variants)
    assert free("RMSNormFwdOp", dims).digest == variants[0].digest


def test_ids_are_unique_over_the_cases_of_an_entry():
    for op in OPS:
        ids = [make_workload(MANIFEST[op], *case, scale="cpu").id for case in MANIFEST[op].cases()]
        assert len(set(ids)) == len(ids), op


def test_shape_dtype_and_params_are_those_of_the_call():
    w = small("RMSNormFwdOp")
    assert w.shape == (3, 7, 5, 131)
    assert w.dtype == torch.float16
    assert w.params == {"normalized_shape": (5, 131), "eps": 1e-6}


def test_workloads_have_the_capabilities_that_a_benchmark_asks_for():
    w = small("RMSNormFwdOp")
    assert isinstance(w, ShapeDtypeWorkload)
    assert isinstance(w, InputGeneratingWorkload)
    assert isinstance(w, BenchmarkWorkload)
    assert not isinstance(object(), BenchmarkWorkload)


def test_optional_inputs_are_given_on_request():
    entry = MANIFEST["GroupNormFwdOp"]
    assert make_workload(entry, "ragged", "float32").gen_inputs()["weight"] is not None
    bare = make_workload(entry, "ragged", "float32", with_=()).gen_inputs()
    assert bare["weight"] is None
    assert bare["bias"] is None


def test_values_fixed_by_a_row_are_used_and_only_at_its_own_shape():
    lengths = small(PAGED).gen_inputs()["real_seqlen_kv"]
    assert lengths.tolist() == [1, 77, 144]
    moved = small(PAGED, dims={"B": 2}).gen_inputs()["real_seqlen_kv"]
    assert moved.shape == (2,)
    assert moved.tolist() == [144, 1]


@pytest.mark.parametrize("distribution", ["normal", "adversarial", "structured"])
def test_page_tables_name_pages_that_exist_once_per_request(distribution):
    w = small(PAGED, distribution=distribution)
    table = w.gen_inputs()["block_table"]
    pages = w.binding.dims["P"] // w.params["page_size"]
    assert ((table >= 0) & (table < pages)).all()
    assert all(row.unique().numel() == row.numel() for row in table)


def test_logarithms_get_positive_values_and_a_few_negative_ones():
    x = free("LogFwdOp", {"A": (100, 100)}).gen_inputs()["input"]
    assert 0.01 < (x < 0).float().mean() < 0.1


@pytest.mark.parametrize(
    ("op", "dtype"), [("AllFwdOp", "bool"), ("AnyFwdOp", "bool"), ("AllFwdOp", "float32")]
)
def test_truth_reductions_have_both_answers(op, dtype):
    x = free(op, {"A": (200, 300)}, dtype, params={"dim": -1}).gen_inputs()["x"]
    answers = (x != 0).all(dim=-1) if op == "AllFwdOp" else (x != 0).any(dim=-1)
    assert 0.3 < answers.float().mean() < 0.7


@pytest.mark.parametrize("distribution", ["normal", "exact", "structured"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_products_stay_finite_and_nonzero(distribution, dtype):
    w = free("ProdFwdOp", {"A": (50, 4096)}, dtype, params={"dim": -1}, distribution=distribution)
    product = w.gen_inputs()["x"].double().prod(dim=-1)
    assert ((product.abs() > 2.0**-14) & (product.abs() < 2.0**14)).all()
    assert (product < 0).any()


@pytest.mark.parametrize("op", ["L1NormFwdOp", "L2NormFwdOp", "LogSumExpFwdOp"])
def test_some_groups_have_a_dominant_term(op):
    x = free(op, {"A": (50, 1000)}, params={"dim": -1}).gen_inputs()["x"].double()
    weigh = {"L1NormFwdOp": torch.abs, "L2NormFwdOp": torch.square, "LogSumExpFwdOp": torch.exp}[op]
    weights = weigh(x).sort(dim=-1).values
    share = weights[:, -1] / weights.sum(dim=-1)
    assert 0.1 < (share > 0.5).double().mean() < 0.9


@pytest.mark.parametrize(
    ("op", "params", "dominated"), [("SumFwdOp", {}, True), ("SumFwdOp", {"dim": -1}, False)]
)
def test_a_sum_of_everything_has_a_dominant_term_and_row_sums_do_not(op, params, dominated):
    x = free(op, {"A": (50, 1000)}, "float16", params=params).gen_inputs()["x"].double()
    assert (x.abs().max().item() > 400) == dominated


@pytest.mark.parametrize(
    ("dtype", "lower"), [("float16", torch.float8_e4m3fn), ("bfloat16", torch.float8_e4m3fn)]
)
def test_the_dominant_term_is_far_from_what_a_lower_format_holds(dtype, lower):
    first = (
        free("StdFwdOp", {"A": (50, 10)}, dtype, params={"dim": None}).gen_inputs()["x"].view(-1)[0].double()
    )
    rounded = first.to(torch.float32).to(lower).double()
    assert 0.04 < abs((rounded / first - 1).item()) < 0.07


@pytest.mark.parametrize("op", ["EqFwdOp", "NeFwdOp", "GtFwdOp", "GeFwdOp", "LeFwdOp"])
def test_comparisons_see_equal_and_other_values(op):
    inputs = free(op, {"A": (100, 100), "B": (100, 100)}).gen_inputs()
    assert 0.02 < (inputs["input"] == inputs["other"]).float().mean() < 0.5


def test_powers_have_few_negative_bases_and_exponents_of_either_sign():
    inputs = free("PowFwdOp", {"A": (100, 100), "B": (100, 100)}).gen_inputs()
    assert 0.01 < (inputs["input"] < 0).float().mean() < 0.1
    assert 0.4 < (inputs["exponent"] < 0).float().mean() < 0.6


@pytest.mark.parametrize("op", ["Expm1FwdOp", "Log1pFwdOp"])
def test_half_of_the_arguments_lie_near_zero(op):
    x = free(op, {"A": (100, 100)}).gen_inputs()["input"]
    assert 0.45 < (x.abs() < 4 * 2.0**-10).float().mean() < 0.55


@pytest.mark.parametrize("op", ["IsinfFwdOp", "IsfiniteFwdOp", "NanToNumFwdOp"])
def test_every_special_value_is_met(op):
    x = free(op, {"A": (100, 100)}).gen_inputs()["input"]
    for special in (x.isnan(), x == float("inf"), x == -float("inf")):
        assert 0.05 < special.float().mean() < 0.12
    whole = free(op, {"A": (9,)}, "int32").gen_inputs()["input"] if op != "NanToNumFwdOp" else None
    assert whole is None or whole.dtype == torch.int32


@pytest.mark.parametrize("op", ["HardswishFwdOp", "HardsigmoidFwdOp"])
def test_every_piece_of_a_function_is_met(op):
    x = free(op, {"A": (100, 100)}).gen_inputs()["input"]
    for piece in (x < -3, x.abs() < 3, x > 3):
        assert piece.float().mean() > 0.1


def test_running_products_stay_finite_and_nonzero():
    w = free("CumprodFwdOp", {"A": (8, 4096)}, "float16")
    products = w.gen_inputs()["x"].double().cumprod(dim=-1)
    assert ((products.abs() > 2.0**-14) & (products.abs() < 2.0**14)).all()
    assert free("CumprodFwdOp", {"A": ()}, "float16").gen_inputs()["x"].shape == ()


def test_ops_without_inputs_have_none():
    w = small("AlibiFwdOp")
    assert w.gen_inputs() == {}
    assert w.params == {"seq_len": 131, "num_heads": 6, "dtype": "float16"}
    assert (w.shape, w.dtype) == ((6, 131, 131), torch.float16)


def test_nan_predicate_sees_nan_and_numbers():
    x = free("IsnanFwdOp", {"A": (100, 100)}).gen_inputs()["input"]
    assert 0.2 < x.isnan().float().mean() < 0.3


def test_logical_not_sees_zeros_and_others():
    x = free("LogicalNotFwdOp", {"A": (100, 100)}).gen_inputs()["input"]
    assert 0.2 < (x == 0).float().mean() < 0.3


@pytest.mark.parametrize("keys", [1, 2, 131, 5000])
def test_topk_scores_of_a_query_are_distinct(keys):
    dims = {"batch": 1, "seq_len": 3, "seq_len_kv": keys, "kv_group": 2}
    w = free("TopkSelectorFwdOp", dims, params={"topk": 1})
    scores = w.gen_inputs()["index_score"]
    assert all(scores[0, q, :, g].unique().numel() == keys for q in range(3) for g in range(2))


def test_topk_scores_look_random():
    dims = {"batch": 1, "seq_len": 64, "seq_len_kv": 1024, "kv_group": 1}
    scores = free("TopkSelectorFwdOp", dims, params={"topk": 8}).gen_inputs()["index_score"][0, :, :, 0]
    best = scores.argmax(dim=-1)
    assert best.unique().numel() > 50
    steps = scores.diff(dim=-1)
    assert abs((steps > 0).float().mean().item() - 0.5) < 0.05


def test_expert_map_numbers_local_experts_once():
    w = small("MoePermuteNopadFwdOp")
    mapped = w.gen_inputs()["expert_map"]
    local = mapped[mapped >= 0].sort().values
    assert torch.equal(local, torch.arange(w.params["num_experts_local"], dtype=torch.int32))


def test_a_row_label_that_does_not_exist_is_an_error():
    with pytest.raises(UnknownRowError, match="llama-8b-prefill"):
        make_workload(MANIFEST["RMSNormFwdOp"], "llama-8b-prefil", "float16")


def test_an_illegal_shape_is_the_entrys_error():
    with pytest.raises(SpecError, match="H must be a multiple of H_kv"):
        small("GroupedQueryAttentionFwdOp", dims={"H": 7})


def test_a_scale_needs_a_row():
    with pytest.raises(ScaleError, match="needs a row"):
        free("SiluFwdOp", {"A": (3,)}, scale="cpu")


def test_unknown_scale_is_an_error():
    with pytest.raises(UnknownNameError, match="unknown scale 'gpu'"):
        small("SiluFwdOp", scale="gpu")


def test_a_class_is_registered_once():
    class Mine(WorkloadBase):
        pass

    with pytest.raises(ValueError, match="LogFwdOp already has the workload class MostlyPositiveWorkload"):
        register("LogFwdOp")(Mine)
    assert workload_class("LogFwdOp").__name__ == "MostlyPositiveWorkload"


def test_registered_ops_exist():
    from tileops_workloads.registry import _CLASSES

    assert set(_CLASSES) <= set(OPS)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_nothing_infinite_is_drawn_where_the_entry_leaves_it_undefined(dtype: str) -> None:
    entry = load_manifest()["GemmFp8FwdOp"]
    assert entry.numerics.inf == "undefined"
    row = entry.row("ragged")
    workload = make_workload(entry, row, entry.resolve_dtypes(row.dtypes[0]), distribution="adversarial")
    values = workload.draw("a", TensorMeta((64, 64), dtype))
    assert values.dtype == getattr(torch, dtype)
    assert not values.isinf().any()
    assert values.isnan().any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_infinities_are_given_where_only_sums_that_overflow_are_undefined(dtype: str) -> None:
    entry = load_manifest()["GemmFwdOp"]
    assert entry.numerics.inf == "given"
    row = entry.row("ragged")
    workload = make_workload(entry, row, entry.resolve_dtypes(row.dtypes[0]), distribution="adversarial")
    values = workload.draw("a", TensorMeta((64, 64), dtype))
    assert values.isposinf().any()
    assert values.isneginf().any()
    assert values[values.isfinite()].double().abs().max() <= 2.0**24
