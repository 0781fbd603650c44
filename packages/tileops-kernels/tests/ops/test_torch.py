"""What PyTorch may ask of an operator: schema, fake tensors, compile, export, modes, transforms, autograd."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.library import opcheck

from tileops_kernels import errors, ops
from tileops_kernels.ops import CATALOG, get_function, get_op, list_ops
from tileops_kernels.ops.registry import FLOWS

X, W = torch.ones(2, 8), torch.ones(8)
IMPLEMENTED = list_ops(implemented=True)


def overload_call(small_call, name):
    inputs, params = small_call(name)
    runtime = CATALOG.runtime(name)
    given = runtime.torch_params([params[param] for param in runtime.signature.params])
    writes = runtime.mutation is not None and runtime.mutation.applies(given)
    return runtime.in_place_overload if writes else runtime.overload, (*inputs, *given)


# What opcheck looks at; to see whether an input was written it multiplies, which 8-bit floats cannot.
SCHEMA = "test_schema"
OTHERS = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_opcheck(small_call, name):
    operator, args = overload_call(small_call, name)
    narrow = any(isinstance(x, torch.Tensor) and x.is_floating_point() and x.itemsize == 1 for x in args)
    outcome = opcheck(operator, args, test_utils=OTHERS if narrow else (SCHEMA, *OTHERS))
    assert set(outcome.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", [name for name in IMPLEMENTED if CATALOG.runtime(name).in_place_overload])
def test_opcheck_of_the_in_place_form(small_call, name):
    inputs, params = small_call(name)
    runtime = CATALOG.runtime(name)
    names, mutation = list(runtime.signature.params), runtime.mutation
    writing = dict(zip([names[i] for i in mutation.params], min(mutation.writes), strict=True))
    operator, args = overload_call(lambda name: (inputs, {**params, **writing}), name)
    assert operator is runtime.in_place_overload
    assert set(opcheck(operator, args).values()) == {"SUCCESS"}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", IMPLEMENTED)
def test_compiles_whole_and_returns_what_the_entry_says(small_call, name, dynamic):
    inputs, params = small_call(name)
    op, function = get_op(name), get_function(CATALOG.manifest[name].function_name)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *inputs: (op(**params)(*inputs), function(*inputs, **params)),
        fullgraph=True,
        dynamic=dynamic,
        backend="aot_eager",
    )
    expected = op(**params).bind(*inputs).outputs.values()
    for result in compiled(*inputs):
        outputs = result if isinstance(result, tuple) else (result,)
        assert [(tuple(o.shape), str(o.dtype)) for o in outputs] == [
            (m.shape, f"torch.{m.dtype}") for m in expected
        ]


@pytest.mark.parametrize("name", IMPLEMENTED)
def test_eager_result_is_what_the_entry_says(small_call, name):
    inputs, params = small_call(name)
    op = get_op(name)(**params)
    result = op(*inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    for output, meta in zip(outputs, op.bind(*inputs).outputs.values(), strict=True):
        assert (tuple(output.shape), str(output.dtype)) == (meta.shape, f"torch.{meta.dtype}")
        assert output.is_contiguous()
        assert not output.requires_grad


@pytest.mark.parametrize("name", [name for name in list_ops() if CATALOG.manifest[name].inputs])
def test_meta_tensors_give_shapes_without_a_kernel(small_call, name):
    inputs, params = small_call(name)
    metas = [None if tensor is None else tensor.to("meta") for tensor in inputs]
    function = get_function(CATALOG.manifest[name].function_name)
    result = function(*metas, **params)
    outputs = result if isinstance(result, tuple) else (result,)
    assert all(output.device.type == "meta" for output in outputs)


def test_inductor_with_dynamic_rows_does_not_recompile(probes):
    counter = CompileCounterWithBackend("inductor")
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, w: probes.rows.function(x * 2, w, [w.shape[0]]),
        backend=counter,
        dynamic=True,
        fullgraph=True,
    )
    assert compiled(torch.ones(2, 8), W).shape == (2, 8)
    compilations = counter.frame_count
    for rows in (3, 7):
        assert compiled(torch.ones(rows, 8), W).shape == (rows, 8)
    assert compiled(torch.ones(3, 5), torch.ones(5)).shape == (3, 5)
    assert counter.frame_count == compilations


def test_the_first_object_of_a_class_may_be_made_in_a_graph(probes, monkeypatch):
    monkeypatch.delitem(vars(FLOWS), "_table")  # as in a process that made none
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: ops.SoftmaxFwdOp(dim=-1)(x), fullgraph=True, backend="aot_eager")
    assert compiled(X).shape == X.shape
    with pytest.raises(Exception, match=r"NotImplementedOpError.*ProbeSpecOnlyFwdOp: the op is spec-only"):
        torch.compile(lambda: probes.spec_only.op(), fullgraph=True, backend="aot_eager")()


def test_bad_call_under_compile_shows_the_typed_error(probes):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, w: probes.rows.function(x, w, [7]), fullgraph=True, backend="aot_eager"
    )
    with pytest.raises(Exception, match=r"ShapeError.*ProbeRowsFwdOp"):
        compiled(X, W)


@pytest.mark.parametrize("strict", [True, False])
def test_exports_and_runs_again(probes, strict):
    class Module(torch.nn.Module):
        def forward(self, x, w):
            return probes.rows.op([8])(x, w) if not strict else probes.rows.function(x, w, [8])

    exported = torch.export.export(
        Module(), (X, W), dynamic_shapes=({0: torch.export.Dim("rows")}, None), strict=strict
    )
    targets = {node.target for node in exported.graph.nodes if node.op == "call_function"}
    assert targets == {torch.ops.tileops.probe_rows.default}
    assert exported.module()(torch.ones(5, 8), W).shape == (5, 8)


WINDOWS = [
    ({}, (2, 3)),
    ({"padding": 1}, (3, 4)),
    ({"padding": (1, 2)}, (3, 5)),
    ({"padding": "same"}, (9, 10)),
    ({"output_size": 4, "stride": 5}, (4, 5)),
    ({"output_size": (6, None), "stride": (1, 8)}, (6, 8)),
]


@pytest.mark.parametrize(("params", "shape"), WINDOWS)
def test_params_that_no_schema_can_say_reach_the_op(probes, params, shape):
    x = torch.ones(2, 3)
    assert probes.window.function(x, **params).shape == shape
    with torch.device("cpu"):  # through the dispatcher
        assert probes.window.function(x, **params).shape == shape
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: probes.window.function(x, **params), fullgraph=True, backend="aot_eager"
    )
    assert compiled(x).shape == shape
    given = probes.window.runtime.torch_params(
        tuple({"stride": 1, "padding": 0, "output_size": None, **params}.values())
    )
    assert set(opcheck(probes.window.runtime.overload, (x, *given)).values()) == {"SUCCESS"}


def test_in_place_form_is_functionalised_by_compile(probes):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: probes.inplace.function(x, inplace=True) + x, fullgraph=True, backend="aot_eager"
    )
    x = torch.zeros(4)
    assert compiled(x).tolist() == [2.0] * 4
    assert x.tolist() == [1.0] * 4


def test_in_place_form_returns_its_input_and_bumps_its_version(probes):
    x = torch.zeros(4)
    before = x._version
    assert probes.inplace.function(x, inplace=True) is x
    assert x._version > before
    assert probes.inplace.function(x) is not x
    with torch.device("cpu"):  # through the dispatcher
        assert probes.inplace.function(x, True) is x


@pytest.mark.parametrize("call", ["function", "op", "torch.ops"])
def test_input_that_requires_grad_is_refused(probes, call):
    calls = {
        "function": lambda x: probes.rows.function(x, W, [8]),
        "op": lambda x: probes.rows.op([8])(x, W),
        "torch.ops": lambda x: torch.ops.tileops.probe_rows(x, W, [8]),
    }
    x = X.clone().requires_grad_()
    with pytest.raises(
        errors.AutogradNotSupportedError, match=r"ProbeRowsFwdOp: x requires grad .* no backward"
    ):
        calls[call](x)
    with torch.no_grad():
        assert not calls[call](x).requires_grad
    assert calls[call](x.detach()).shape == X.shape


def test_output_without_a_gradient_may_come_from_an_input_that_requires_one(probes):
    result = probes.test.function(X.clone().requires_grad_(), W)
    assert result.dtype is torch.bool
    assert not result.requires_grad


def test_parameters_are_taken_under_no_grad(probes):
    with torch.no_grad():
        assert type(probes.rows.function(X, torch.nn.Parameter(W), [8])) is torch.Tensor


def test_inference_mode(probes):
    with torch.inference_mode():
        assert probes.rows.function(torch.ones(2, 8), torch.ones(8), [8]).shape == (2, 8)
        assert probes.inplace.function(torch.ones(4), inplace=True).shape == (4,)


def test_forward_mode_tangents_are_refused(probes):
    with forward_ad.dual_level():
        assert probes.rows.function(X, W, [8]).shape == X.shape
        with pytest.raises(errors.AutogradNotSupportedError):
            probes.rows.function(forward_ad.make_dual(X, X), W, [8])


def test_function_transforms(probes):
    with pytest.raises(errors.AutogradNotSupportedError):
        torch.func.grad(lambda x: probes.rows.function(x, W, [8]).sum())(X)
    batched = torch.vmap(lambda x: probes.rows.function(x, W, [8]), in_dims=1)
    assert batched(torch.ones(2, 5, 8)).shape == (5, 2, 8)
    with pytest.raises(RuntimeError, match="probe_inplace_"):
        torch.vmap(lambda x: probes.inplace.function(x, inplace=True))(X.clone())


def test_autocast_changes_no_dtype(probes):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert probes.rows.function(X, W, [8]).dtype is torch.float32


def test_lazily_negated_input_is_resolved(probes):
    negated = torch.view_as_complex(torch.ones(2, 8, 2)).conj().imag
    assert negated.is_neg()
    probes.rows.function(negated, W, [8])
    # The flow was prepared on the materialised tensor, which is dense.
    assert len(probes.rows.flow.prepared) == 1
    assert not probes.rows.runtime.plans.get(("other",))


# What torch resolves before an operator sees it: made from a dense tensor of any dtype it can be made of.
RESOLVED = {
    "negated": lambda x: torch._neg_view(x),
    "conjugated": lambda x: x.conj() if x.is_complex() else torch.complex(x, x).conj().real,
    "zeros": lambda x: torch._efficientzerotensor(x.shape, dtype=x.dtype),
    "expanded": lambda x: x[:1].expand_as(x),
    "shared until written": lambda x: torch._lazy_clone(x),
}
# One op of each flow that takes one tensor alone, and every op that takes complex tensors.
SAMPLES = {
    "ReluFwdOp": {},
    "SumFwdOp": {"dim": [1]},
    "VarFwdOp": {"dim": [1]},
    "SoftmaxFwdOp": {"dim": 1},
    "CumsumFwdOp": {"dim": 1},
    "SiluAndMulFwdOp": {},
    "AllFwdOp": {"dim": [1]},
    "AnyFwdOp": {"dim": [1]},
    "CountNonzeroFwdOp": {"dim": [1]},
}
COMPLEX = [name for name in IMPLEMENTED if "complex64" in ops.get_op(name).SUPPORTED_DTYPES]


def test_every_op_of_complex_tensors_is_sampled():
    assert COMPLEX
    assert set(COMPLEX) <= set(SAMPLES)


@pytest.mark.parametrize("state", RESOLVED)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in SAMPLES), *((name, torch.complex64) for name in COMPLEX)],
)
def test_lazy_inputs_are_inputs_like_any_other(name, dtype, state):
    x = torch.ones(4, 8, dtype=dtype)
    op = get_op(name)(**SAMPLES[name])
    dense = op(x)  # a plan of the same shape and strides is there
    lazy = RESOLVED[state](x)
    for call in (op, lambda x: CATALOG.runtime(name).call_overload((x,), tuple(op.params.values()))):
        result = call(lazy)
        assert (result.shape, result.dtype) == (dense.shape, dense.dtype)
        assert result.data_ptr()


@pytest.mark.parametrize("name", SAMPLES)
def test_tensors_of_functionalisation_stay_such(name):
    x = torch._to_functional_tensor(torch.ones(4, 8))
    assert torch._is_functional_tensor(get_op(name)(**SAMPLES[name])(x))


def test_subclasses_go_through_the_dispatcher(probes):
    from torch.testing._internal.two_tensor import TwoTensor

    result = probes.rows.function(TwoTensor(X, X.clone()), TwoTensor(W, W.clone()), [8])
    assert type(result) is TwoTensor


def test_modes_see_the_operator(probes):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Spy():
        probes.rows.function(X, W, [8])
    assert torch.ops.tileops.probe_rows.default in seen


def test_jit_trace_records_the_operator(probes):
    graph = torch.jit.trace(lambda x: probes.rows.function(x, W, [8]), (X,)).graph
    assert "tileops::probe_rows" in str(graph)


def test_ops_and_functions_pickle_and_copy():
    op = ops.SoftmaxFwdOp(dim=-1)
    for twin in (pickle.loads(pickle.dumps(op)), copy.deepcopy(op)):
        assert type(twin) is ops.SoftmaxFwdOp
        assert twin.params == {"dim": -1}
    assert repr(op) == "SoftmaxFwdOp(dim=-1)"
    assert pickle.loads(pickle.dumps(ops.softmax)) is ops.softmax
    assert pickle.loads(pickle.dumps(ops.SoftmaxFwdOp)) is ops.SoftmaxFwdOp


def test_bind_gives_outputs_and_costs_without_running(probes):
    binding = probes.gemm.op().bind(torch.empty(2, 4, device="meta"), torch.empty(3, 4, device="meta"))
    assert binding.outputs["d"].shape == (2, 3)
    assert (binding.flops, binding.bytes) == (2 * 2 * 3 * 4, 4 * (8 + 12 + 6))
    assert not probes.gemm.flow.prepared


def test_more_elements_than_a_32_bit_index_holds(probes):
    huge = torch.empty(1, dtype=torch.float16).expand(2**20, 2**12)
    result = probes.test.function(huge.to("meta"), huge.to("meta"))
    assert result.numel() == 2**32


def test_an_op_without_inputs_runs_on_the_default_device():
    params = {"seq_len": 3, "num_heads": 2, "dtype": torch.float32}
    assert get_function("alibi")(**params).device.type == "cpu"
    compiled = torch.compile(get_function("alibi"), fullgraph=True, backend="aot_eager")
    torch._dynamo.reset()
    for call in (get_function("alibi"), lambda **params: ops.AlibiFwdOp(**params)(), compiled):
        for device in ("meta", "cpu", "meta"):
            with torch.device(device):
                table = call(**params)
            assert (table.device.type, table.shape, table.dtype) == (device, (2, 3, 3), torch.float32)
    assert torch.ops.tileops.alibi(3, 2, torch.float32, device="meta").device.type == "meta"


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "xpu"])
def test_a_default_device_that_is_not_there_is_named(monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with (
        torch.device(device),
        pytest.raises(errors.DeviceError, match=r"AlibiFwdOp: device is .*expected cpu"),
    ):
        get_function("alibi")(seq_len=3, num_heads=2, dtype=torch.float32)


def test_an_op_without_inputs_is_seen_by_a_dispatch_mode():
    with FakeTensorMode():
        table = get_function("alibi")(seq_len=3, num_heads=2, dtype=torch.float32)
    assert isinstance(table, FakeTensor)
    assert table.shape == (2, 3, 3)
