"""The shipped entries: every row binds, consistently."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tileops_manifest import RuleError, SpecError, TensorMeta, UnknownOpError, UnknownRowError, load_manifest
from tileops_manifest.binding import nbytes
from tileops_manifest.dtypes import is_integral
from tileops_manifest.model import Intermediate

MANIFEST = load_manifest()


def test_the_manifest_is_a_mapping_that_suggests_names():
    assert len(MANIFEST) == len(list(MANIFEST)) == MANIFEST.report.entries
    assert "RMSNormFwdOp" in MANIFEST
    assert "Nope" not in MANIFEST
    assert load_manifest() is MANIFEST
    with pytest.raises(UnknownOpError, match="did you mean 'SoftmaxFwdOp'"):
        MANIFEST["SoftmxFwdOp"]
    with pytest.raises(UnknownRowError, match="no workload row 'llama'"):
        MANIFEST["RMSNormFwdOp"].row("llama")


@pytest.mark.parametrize("op", list(MANIFEST))
def test_rows_bind_alike_from_sizes_and_from_tensors(op):
    ids = []
    for case in MANIFEST[op].cases():
        binding = case.bind()
        again = case.entry.bind(binding.inputs, binding.params)
        assert (again.dims, again.packs, again.dtypes, again.outputs) == (
            binding.dims,
            binding.packs,
            binding.dtypes,
            binding.outputs,
        )
        row, dtypes = case
        assert case.entry.row(row.label) is row
        assert {name: dtypes[name] for name in binding.dtypes} == binding.dtypes
        ids.append(case.id)
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("op", list(MANIFEST))
def test_every_op_has_a_ragged_row_in_every_float_dtype_it_takes(op):
    entry = MANIFEST[op]
    ragged = [case for case in entry.cases() if case.row.label == "ragged"]
    floats = {d for d in next(iter(entry.dtypes.values())) if "float" in d}
    assert floats <= {next(iter(case.dtypes.values())) for case in ragged}
    bindings = [case.bind() for case in ragged]
    tensors = [meta for binding in bindings for meta in (*binding.inputs.values(), *binding.outputs.values())]
    sizes = [size for meta in tensors if meta is not None for size in meta.shape]
    assert any(size % 8 for size in sizes)
    assert max(sizes) < 4096


WHOLE_READERS = [name for name, entry in MANIFEST.items() if entry.roofline.bytes is None]


@pytest.mark.parametrize("op", WHOLE_READERS)
def test_derived_bytes_read_every_input_and_write_every_output_once(op):
    entry = MANIFEST[op]
    for case in entry.cases():
        binding = case.bind()
        tensors = [*filter(None, binding.inputs.values()), *binding.results.values()]
        assert binding.bytes == sum(map(nbytes, tensors))


def test_partial_reads_never_exceed_whole_reads():
    for entry in MANIFEST.values():
        if entry.roofline.bytes is None:
            continue
        for case in entry.cases():
            binding = case.bind()
            tensors = [*filter(None, binding.inputs.values()), *binding.outputs.values()]
            assert binding.bytes <= sum(map(nbytes, tensors)), case.id


def test_integer_inputs_have_domains_within_their_dtype():
    for entry in MANIFEST.values():
        for case in entry.cases():
            binding = case.bind()
            for name, meta in binding.inputs.items():
                domain = binding.domain(name)
                if meta is None or domain is None or domain.high is None:
                    continue
                assert is_integral(meta.dtype)
                assert domain.low < domain.high <= 2**31, (case.id, name)


@given(st.sampled_from(list(MANIFEST)), st.data())
def test_calls_from_any_sizes_bind_alike_from_tensors(op, data):
    entry = MANIFEST[op]
    case = data.draw(st.sampled_from(list(entry.cases())))
    size = st.integers(0, 9)
    dims = {
        name: data.draw(st.lists(size, max_size=4)) if entry.dims[name].pack else data.draw(size)
        for name in case.row.dims
    }
    try:
        binding = entry.bind_dims(dims, case.row.params, case.dtypes, case.row.with_)
    except SpecError:
        return  # these sizes are not a call that the entry allows
    again = entry.bind(binding.inputs, binding.params)
    assert (again.outputs, again.dims, again.packs) == (binding.outputs, binding.dims, binding.packs)
    assert {
        name: list(size) if isinstance(size, tuple) else size
        for name, size in {**binding.dims, **binding.packs}.items()
    } == dims


def test_threads_that_load_first_together_share_one_manifest():
    code = (
        "import sys, threading\n"
        "from tileops_manifest import load_manifest\n"
        "sys.setswitchinterval(1e-5)\n"
        "found = []\n"
        "threads = [threading.Thread(target=lambda: found.append(load_manifest())) for _ in range(4)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "print(len(found), len({id(manifest) for manifest in found}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "4 1\n"


def test_causal_attention_counts_half_of_the_scores():
    entry = MANIFEST["GroupedQueryAttentionFwdOp"]
    dims = {"B": 2, "S": 64, "H": 4, "H_kv": 2, "D": 16}
    full = entry.bind_dims(dims, {"is_causal": False}, "float16")
    causal = entry.bind_dims(dims, {"is_causal": True}, "float16")
    assert full.flops == 4 * 2 * 4 * 16 * 64 * 64
    assert causal.flops == 4 * 2 * 4 * 16 * (64 * 65 // 2)
    assert full.bytes == 2 * (2 * 2 * 64 * 4 * 16 + 2 * 2 * 64 * 2 * 16)


def test_paged_decode_reads_what_is_cached_or_at_most_the_table():
    entry = MANIFEST["GroupedQueryAttentionDecodePagedWithKVCacheFwdOp"]
    ragged = entry.bind_row(entry.row("ragged"), "float16")
    assert ragged.eval("sum_of(real_seqlen_kv)") == 1 + 77 + 144
    assert ragged.flops == 4 * 6 * 64 * (1 + 77 + 144)
    unknown = entry.bind(ragged.inputs, ragged.params)
    assert unknown.eval("sum_of(real_seqlen_kv)") == 3 * 144
    assert unknown.eval("values_of(real_seqlen_kv)") == (144, 144, 144)


def test_values_of_rows_reach_the_roofline_of_packed_requests():
    entry = MANIFEST["GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp"]
    mixed = entry.bind_row(
        entry.row("qwen35-9b-prefill-paged-fullattn-mixed-b8-p64-partial-rope64"),
        {"T": "float16", "C": "float16"},
    )
    assert mixed.eval("sum_of(cache_seqlens)") == 131072
    assert mixed.eval("values_of(cu_seqlens_q)")[1] == 256
    even = entry.bind(mixed.inputs, mixed.params)
    assert even.eval("values_of(cu_seqlens_q)") == tuple(range(0, 4609, 576))
    assert even.mutated == ("k_pages", "v_pages")


def test_the_hardest_operators_infer_their_outputs():
    def outputs(op: str, label: str, dtypes="float16"):
        return {
            name: meta.shape
            for name, meta in MANIFEST[op].bind_row(MANIFEST[op].row(label), dtypes).outputs.items()
        }

    assert outputs("MaxPool2dIndicesFwdOp", "resnet-stem")["indices"] == (32, 64, 56, 56)
    assert outputs("MaxPool2dIndicesFwdOp", "alexnet-ceil")["output"] == (32, 64, 27, 27)
    assert outputs("Conv2dFwdOp", "mobilenetv2-depthwise")["output"] == (1, 32, 56, 56)
    assert outputs("Conv2dFwdOp", "same-even-dilated")["output"] == (1, 48, 45, 51)
    assert outputs("GemmW4A16FwdOp", "decode-long-k-pressure")["output"] == (1, 8192)
    assert outputs("VarMeanFwdOp", "3d-multidim-reduce") == {"var": (128,), "mean": (128,)}
    assert outputs("FFTC2CFwdOp", "fft-4k-c64-unbatched", "complex64")["output"] == (4096,)
    assert outputs("AlibiFwdOp", "llama-prefill-2k") == {"output": (32, 2048, 2048)}


def test_statistics_that_a_call_writes_are_results_of_it():
    norm = MANIFEST["BatchNormFwdOp"]
    dims = {"N": 2, "C": 3, "spatial": [5]}
    assert tuple(norm.bind_dims(dims, {}, "float16").results) == ("output",)
    training = norm.bind_dims(dims, {"training": True}, "float16")
    assert tuple(training.results) == ("output", "running_mean", "running_var")
    assert training.results["running_var"] == TensorMeta((3,), "float32")
    bare = MANIFEST["InstanceNormFwdOp"].bind_dims(dims, {}, "float16")
    assert tuple(bare.results) == ("output",)
    # An output that is the mutated input is one result, not two.
    inplace = MANIFEST["ReluFwdOp"].bind_dims({"A": [4]}, {"inplace": True}, "float16")
    assert inplace.mutated == ("input",)
    assert tuple(inplace.results) == ("output",)


def test_a_rule_guards_the_lets_that_need_it():
    pool = MANIFEST["MaxPool1dFwdOp"]
    dims = {"N": 1, "C": 1, "L_in": 8}
    with pytest.raises(RuleError, match="stride must be positive"):
        pool.bind_dims(dims, {"kernel_size": 2, "stride": 0}, "float16")


MEANINGLESS = [
    ("RMSNormFwdOp", {"eps": -1e-6}),
    ("AdaLayerNormZeroFwdOp", {"eps": math.nan}),
    ("RopeNeoxFwdOp", {"base": 0.5}),
    ("RopeNonNeoxFwdOp", {"base": math.inf}),
    ("RopeLongRopeFwdOp", {"base": math.nan}),
    ("RopeLlama31FwdOp", {"scale_factor": 0.25}),
    ("RopeYarnFwdOp", {"scale": math.inf}),
    ("RopeYarnFwdOp", {"beta_fast": math.inf}),
    ("RopeYarnFwdOp", {"attn_factor": 1e39}),
    ("RopeYarnFwdOp", {"attn_factor": math.nan}),
    ("LeakyReluFwdOp", {"negative_slope": 1e39}),
    ("GroupedQueryAttentionDecodeWithKVCacheFwdOp", {"softcap": math.inf}),
]


@pytest.mark.parametrize(("op", "params"), MEANINGLESS, ids=str)
def test_params_that_mean_nothing_are_refused_by_name(op, params):
    entry = MANIFEST[op]
    call = entry.bind_row(entry.row("ragged"), "float32")
    ((name, value),) = params.items()
    with pytest.raises(RuleError, match=rf"^{op}: .*{name} must .* does not hold with") as caught:
        entry.bind(call.inputs, {**call.params, **params})
    assert f"{name} = {value}" in str(caught.value)


@pytest.mark.parametrize("group_size", [0, -128])
def test_a_rule_on_params_guards_the_shapes_that_need_it(group_size):
    gemm = MANIFEST["GemmW4A16FwdOp"]
    call = gemm.bind_row(gemm.workloads[0], "float16")
    with pytest.raises(RuleError, match=rf"group_size must be positive: .* with group_size = {group_size}"):
        gemm.bind(call.inputs, {**call.params, "group_size": group_size})


def test_a_page_dtype_that_is_not_the_cache_dtype_is_refused():
    entry = MANIFEST["GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp"]
    row = entry.row("ragged")
    paged = entry.bind_row(row, {"T": "float16", "C": "float8_e4m3fn"})
    assert entry.bind(paged.inputs, paged.params).params["cache_dtype"] == "float8_e4m3fn"
    with pytest.raises(ValueError, match=r"k_pages\.dtype is float8_e4m3fn, expected C"):
        entry.bind(paged.inputs, {**paged.params, "cache_dtype": "float16"})
    with pytest.raises(ValueError, match="the cache has the dtype of the queries or 8 bits"):
        entry.bind_row(row, {"T": "float16", "C": "bfloat16"})


def test_digests_differ_between_entries_and_leave_the_status_out(tmp_path: Path):
    assert len({entry.digest for entry in MANIFEST.values()}) == len(MANIFEST)
    text = files("tileops_manifest").joinpath("ops", "quantization.yaml").read_text(encoding="utf-8")

    def digest(changed: str) -> str:
        path = tmp_path / "changed.yaml"
        path.write_text(changed, encoding="utf-8")
        return load_manifest(path)["FP8QuantFwdOp"].digest

    def replaced(old: str, new: str) -> str:
        assert text.count(old) == 1
        return text.replace(old, new)

    original = MANIFEST["FP8QuantFwdOp"].digest
    now = MANIFEST["FP8QuantFwdOp"].status.cpu
    other = "spec-only" if now == "implemented" else "implemented"
    assert digest(replaced(f"status: {{cpu: {now},", f"status: {{cpu: {other},")) == original
    assert digest(replaced("3 * numel", "4 * numel")) != original
    numerics = "{accumulate: none, nan: propagate"
    assert digest(replaced(numerics, f"{numerics}, intermediates: {{probabilities: T}}")) != original
    assert digest("# a comment\n" + text) == original


def test_bindings_say_what_intermediate_values_may_be_rounded_to():
    entry = MANIFEST["GroupedQueryAttentionDecodeWithKVCacheFwdOp"]
    for dtype in entry.dtypes["T"]:
        assert entry.bind_row(entry.row("ragged"), dtype).intermediates == {"probabilities": dtype}
    softmax = MANIFEST["SoftmaxFwdOp"]
    assert softmax.bind_row(softmax.row("ragged"), "float16").intermediates == {}


def test_the_specification_explains_every_intermediate_value():
    text = (Path(__file__).parents[3] / "docs" / "manifest-spec.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in get_args(Intermediate))


def test_entries_and_records_are_immutable():
    entry = MANIFEST["SumFwdOp"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.name = "x"
    with pytest.raises(TypeError):
        entry.inputs["y"] = None
    with pytest.raises(ValueError, match="frozen"):
        entry.numerics.exact = True


def test_implemented_entries_name_a_kernel_and_spec_only_ones_need_none():
    for entry in MANIFEST.values():
        if "implemented" in entry.status.model_dump().values():
            assert entry.kernel_map, entry.name


def test_an_entry_cannot_be_changed_by_its_reader():
    entry = load_manifest()["SoftmaxFwdOp"]
    for mapping in (
        entry.kernel_map,
        entry.model.kernel_map,
        entry.model.inputs,
        entry.model.workloads[0].dims,
    ):
        with pytest.raises(TypeError):
            mapping["default"] = "MineKernel"
