"""An oracle shares nothing with what it judges, and nothing with the function that it is checked against."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tileops_manifest import load_manifest
from tileops_tests import oracles
from tileops_tests.oracles import get_oracle, list_oracles

MANIFEST = load_manifest()
OPS = list_oracles()
FILES = sorted(Path(oracles.__file__).parent.glob("*.py"))
ALLOWED_IMPORTS = {
    "__future__",
    "collections",
    "dataclasses",
    "difflib",
    "functools",
    "itertools",
    "math",
    "tileops_tests",
    "torch",
    "typing",
}
FORBIDDEN_CALLS = {"open", "exec", "eval", "compile", "__import__", "getattr"}

# Ops that are themselves elementary: the program is their definition.
ELEMENTARY = {"AddFwdOp", "SubFwdOp", "MulFwdOp", "DivFwdOp"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_oracle_files_import_nothing_but_torch_and_each_other(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names = [node.module]
        else:
            continue
        for name in names:
            assert name.split(".")[0] in ALLOWED_IMPORTS, name
            assert not name.startswith("tileops_tests") or name.startswith("tileops_tests.oracles"), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_oracle_files_read_no_file_and_run_no_text(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS, node.lineno


class Recorder(TorchDispatchMode):
    """Names of the operators that run, and the floating dtypes that they produce."""

    def __init__(self):
        super().__init__()
        self.names: set[str] = set()
        self.dtypes: set[torch.dtype] = set()
        self.outputs: tuple[torch.Tensor, ...] = ()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.names.add(func._schema.name.removeprefix("aten::").rstrip("_"))
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.dtypes.add(tensor.dtype)
        return result


def run_recorded(op, workload, compute_dtype=torch.float64):
    inputs = workload.gen_inputs()
    with Recorder() as recorder:
        recorder.outputs = get_oracle(op).ref_program(inputs, workload.params, compute_dtype)
    return recorder


def resolve(dotted):
    """The namespace and the name of a public function such as `torch.nn.functional.relu`."""
    _, *middle, name = dotted.split(".")
    namespace = torch
    for part in middle:
        namespace = getattr(namespace, part)
    return namespace, name


REFERENCED = [op for op in OPS if MANIFEST[op].ref_api != "none"]


@pytest.mark.parametrize("op", REFERENCED)
def test_a_program_never_calls_its_own_ref_api(op, monkeypatch, ragged):
    namespace, name = resolve(MANIFEST[op].ref_api)

    def forbidden(*args, **kwargs):
        raise AssertionError(f"{op} calls {MANIFEST[op].ref_api}")

    workload = ragged(op)[-1]
    inputs = workload.gen_inputs()
    monkeypatch.setattr(namespace, name, forbidden)
    get_oracle(op).ref_program(inputs, workload.params)


@pytest.mark.parametrize("op", [op for op in REFERENCED if op not in ELEMENTARY])
def test_a_program_never_runs_the_operator_behind_its_ref_api(op, ragged):
    leaf = MANIFEST[op].ref_api.rsplit(".", 1)[1]
    for workload in ragged(op):
        assert not run_recorded(op, workload).names & {leaf, f"_{leaf}"}


# Operators that a public function dispatches to, where their names differ.
OPERATORS = {
    "rms_norm": {"_fused_rms_norm", "rsqrt"},
    "layer_norm": {"native_layer_norm"},
    "group_norm": {"native_group_norm"},
    "matmul": {"mm"},
    "softmax": {"_softmax"},
    "log_softmax": {"_log_softmax"},
    "vector_norm": {"linalg_vector_norm"},
    "scaled_dot_product_attention": {"_scaled_dot_product_flash_attention_for_cpu", "_safe_softmax"},
    "isnan": {"ne", "isnan"},
    "isfinite": {"abs"},
    "prelu": {"_prelu_kernel"},
    "selu": {"elu"},
    "max_pool1d": {"max_pool2d_with_indices", "max_pool1d"},
    "max_pool2d": {"max_pool2d_with_indices"},
    "max_pool3d": {"max_pool3d_with_indices"},
    "avg_pool1d": {"avg_pool2d"},
    "adaptive_avg_pool2d": {"_adaptive_avg_pool2d"},
    "conv1d": {"convolution"},
    "conv2d": {"convolution"},
    "conv3d": {"convolution"},
    "batch_norm": {"native_batch_norm", "native_batch_norm_backward"},
    "instance_norm": {"native_batch_norm"},
    "fft": {"_fft_c2c"},
}


# Top-k selection within ranges is more than its ref_api, which knows no ranges; torch's dropout promises no
# particular numbers.
OTHERWISE_CHECKED = {"TopkSelectorFwdOp", "DropoutFwdOp"}


@pytest.mark.parametrize("op", [op for op in REFERENCED if op not in OTHERWISE_CHECKED])
def test_the_second_opinion_is_the_ref_api(op, ragged):
    leaf = MANIFEST[op].ref_api.rsplit(".", 1)[1]
    workload = ragged(op)[-1]
    inputs = workload.gen_inputs()
    with Recorder() as recorder:
        get_oracle(op).second_opinion(inputs, workload.params)
    assert recorder.names & OPERATORS.get(leaf, {leaf}), sorted(recorder.names)


# Angles, and sums as they are returned, are part of the definition whatever the compute dtype.
OTHER_DTYPES = {
    "SinusoidalFwdOp": {torch.float64},
    "RopeNeoxFwdOp": {torch.float64},
    "RopeNonNeoxFwdOp": {torch.float64},
    "RopeNeoxPositionIdsFwdOp": {torch.float64},
    "FFTC2CFwdOp": {torch.float64},
    "RopeLlama31FwdOp": {torch.float64},
    "RopeYarnFwdOp": {torch.float64},
    "RopeLongRopeFwdOp": {torch.float64},
    "GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp": {torch.float64, torch.float8_e4m3fn},
    "FusedAddRMSNormFwdOp": {torch.float32},
    "FusedAddLayerNormFwdOp": {torch.float32},
}


@pytest.mark.parametrize("compute_dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_every_intermediate_has_the_compute_dtype(op, compute_dtype, ragged):
    recorder = run_recorded(op, ragged(op)[-1], compute_dtype)
    assert recorder.dtypes <= {compute_dtype, *OTHER_DTYPES.get(op, ())}
    for output in recorder.outputs:
        assert not output.is_floating_point() or output.dtype == compute_dtype


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_of_oracles_name_their_sources(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    targets = [t.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    if "ORACLES" in targets:
        assert re.search(r"\b[Ss]ources?\b|arXiv:", ast.get_docstring(tree) or "")
