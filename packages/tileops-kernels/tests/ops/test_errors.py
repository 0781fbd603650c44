"""Every way to call an op wrongly ends in a typed error that names op, argument, got and expected."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels import errors
from tileops_kernels.ops import list_ops

X, W = torch.ones(2, 8), torch.ones(8)


def _without_storage(tensor, left):
    """A tensor whose storage was shrunk to `left` bytes, as sharded training does with what it has sent."""
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(left)
    return tensor


def _escaped():
    seen = []
    torch.vmap(lambda row: seen.append(row) or row)(X)
    return seen[0]


BAD_CALLS = {
    "wrong shape": (
        (X, torch.ones(7), [8]),
        errors.ShapeError,
        r"weight.shape is \(7,\), expected normalized_shape",
    ),
    "unsupported dtype": (
        (X.double(), W.double(), [8]),
        errors.DtypeError,
        "x.dtype is float64, expected float16",
    ),
    "complex dtype": ((X.to(torch.complex64), W, [8]), errors.DtypeError, "x.dtype is complex64"),
    "dtypes disagree": ((X, W.half(), [8]), errors.DtypeError, "weight.dtype is float16"),
    "param of the wrong type": (
        (X, W, 8),
        errors.ParamError,
        r"normalized_shape is 8 \(int\), expected list",
    ),
    "bool for a float": ((X, W, [8], True), errors.ParamError, r"eps is True \(bool\)"),
    "bool in a list of ints": (
        (torch.ones(1), torch.ones(1), [True]),
        errors.ParamError,
        "normalized_shape is",
    ),
    "missing param": ((X, W), errors.ParamError, "param 'normalized_shape' is missing"),
    "missing input": ((X,), errors.MissingInputError, "input 'weight' is missing"),
    "input is None": ((X, None, [8]), errors.MissingInputError, "input 'weight' is missing"),
    "not a tensor": ((X.tolist(), W, [8]), errors.InputTypeError, "x is list .*, expected a torch.Tensor"),
    "numpy": ((X.numpy(), W, [8]), errors.InputTypeError, "x is ndarray"),
    "too many arguments": ((X, W, [8], 1e-6, 3), errors.InputTypeError, "takes 4 arguments .*, got 5"),
    "two devices": (
        (X, W.to("meta"), [8]),
        errors.DeviceError,
        "weight.device is meta, expected x.device = cpu",
    ),
    "sparse": ((X.to_sparse(), W, [8]), errors.LayoutError, "x is a tensor of layout torch.sparse_coo"),
    "sparse, second": ((X, W.to_sparse(), [8]), errors.LayoutError, "weight is a tensor of layout"),
    "mkldnn": ((X.to_mkldnn(), W, [8]), errors.LayoutError, "x is a tensor of layout torch._mkldnn"),
    "nested": (
        (torch.nested.nested_tensor([W, W], layout=torch.jagged), W, [8]),
        errors.LayoutError,
        "x is a nested tensor",
    ),
    "quantised": (
        (torch.quantize_per_tensor(X, 1.0, 0, torch.quint8), W, [8]),
        errors.LayoutError,
        r"x is a quantised tensor \(torch.quint8\)",
    ),
    "uninitialised": (
        (torch.nn.UninitializedParameter(), W, [8]),
        errors.LayoutError,
        "x is an uninitialised parameter",
    ),
    "of an ended vmap": ((_escaped(), W, [8]), errors.LayoutError, "x is a tensor of a vmap that has ended"),
    "freed": (
        (_without_storage(X, 0), W, [8]),
        errors.LayoutError,
        r"x.untyped_storage\(\) is of 0 bytes, expected at least 64 bytes",
    ),
    "freed, second": ((X, _without_storage(W, 0), [8]), errors.LayoutError, r"weight.untyped_storage\(\)"),
    "not enough dims": ((torch.tensor(1.0), W, [8]), errors.ShapeError, r"x.shape is \(\)"),
    "another rank": ((torch.ones((1,) * 10), W, [8]), errors.ShapeError, "x.shape is"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_call_is_refused(probes, case):
    args, error, message = BAD_CALLS[case]
    with pytest.raises(error, match=message) as caught:
        probes.rows.function(*args)
    assert str(caught.value).startswith("ProbeRowsFwdOp: ")
    assert caught.value.op == "ProbeRowsFwdOp"
    assert not probes.rows.flow.prepared


@pytest.mark.parametrize("case", [case for case in BAD_CALLS if case != "too many arguments"])
def test_bad_call_is_refused_again_after_a_good_one(probes, case):
    probes.rows.function(X, W, [8])
    args, error, message = BAD_CALLS[case]
    for _ in range(2):
        with pytest.raises(error, match=message):
            probes.rows.function(*args)


def test_a_shrunk_storage_is_refused(probes):
    last = X.numel() * X.element_size()
    assert probes.rows.function(_without_storage(X, last), W, [8]).shape == X.shape
    probes.rows.runtime.plans.clear()
    with pytest.raises(errors.LayoutError, match="is of 60 bytes, expected at least 64 bytes"):
        probes.rows.function(_without_storage(X, last - 4), W, [8])


def test_a_ten_dimensional_tensor_is_an_input_like_any_other(probes):
    assert probes.rows.function(torch.ones((1,) * 9 + (8,)), W, [8]).dim() == 10


def test_unknown_keyword_suggests_the_nearest(probes):
    with pytest.raises(errors.InputTypeError, match="no argument 'epz'; did you mean 'eps'"):
        probes.rows.function(X, W, [8], epz=1.0)


def test_argument_given_twice(probes):
    with pytest.raises(errors.InputTypeError, match="argument 'weight' was given twice"):
        probes.rows.function(X, W, [8], weight=W)


def test_keyword_only_param_is_not_taken_by_position(probes):
    table = torch.zeros(1, 1, dtype=torch.int32)
    with pytest.raises(errors.InputTypeError, match="takes 3 arguments"):
        probes.table.function(X, table, None, 2)
    assert probes.table.function(X, table, scale=2)[0].shape == (1, 1, 8)


def test_unsupported_device_is_named(probes, monkeypatch):
    from tileops_kernels.ops import checks

    monkeypatch.setattr(checks, "SERVED_DEVICES", frozenset({"cuda"}))
    with pytest.raises(errors.DeviceError, match=r"x\.device is cpu, expected cuda"):
        probes.rows.function(X, W, [8])


def test_class_form_checks_params_at_construction(probes):
    with pytest.raises(errors.ParamError, match="eps is 'small'"):
        probes.rows.op([8], eps="small")
    with pytest.raises(errors.ParamError, match="param 'normalized_shape' is missing"):
        probes.rows.op()
    with pytest.raises(errors.InputTypeError, match="no argument 'epsilon'"):
        probes.rows.op([8], epsilon=1.0)


def test_class_form_checks_the_number_of_inputs(probes):
    op = probes.rows.op([8])
    with pytest.raises(errors.InputTypeError, match="takes 2 arguments"):
        op(X, W, W)
    with pytest.raises(errors.MissingInputError, match="input 'weight' is missing"):
        op(X)
    assert op(weight=W, x=X).shape == X.shape


def test_spec_only_op_says_so(probes):
    with pytest.raises(errors.NotImplementedOpError, match="ProbeSpecOnlyFwdOp: the op is spec-only"):
        probes.spec_only.function(X)
    with pytest.raises(NotImplementedError):
        probes.spec_only.op()
    with pytest.raises(NotImplementedError):
        torch.ops.tileops.probe_spec_only(X)


def test_spec_only_op_without_inputs_says_so(probes):
    probe, params = probes.spec_only_table, {"seq_len": 4, "dtype": torch.float16}
    with pytest.raises(errors.NotImplementedOpError, match="ProbeSpecOnlyTableFwdOp: the op is spec-only"):
        probe.function(**params)
    with pytest.raises(errors.NotImplementedOpError, match="ProbeSpecOnlyTableFwdOp: the op is spec-only"):
        probe.op(**params)
    with pytest.raises(NotImplementedError, match="ProbeSpecOnlyTableFwdOp: the op is spec-only"):
        torch.ops.tileops.probe_spec_only_table(4, torch.float16)


def test_ops_without_a_flow_are_listed_as_not_implemented():
    assert set(list_ops(implemented=True)).isdisjoint(list_ops(implemented=False))
    assert set(list_ops(implemented=True)) | set(list_ops(implemented=False)) == set(list_ops())


def test_error_of_a_flow_is_not_remembered(probes):
    probes.rows.flow.error = RuntimeError("no compiler")
    with pytest.raises(RuntimeError, match="no compiler"):
        probes.rows.function(X, W, [8])
    probes.rows.flow.error = None
    assert probes.rows.function(X, W, [8]).shape == X.shape


def test_writing_an_expanded_input_is_refused(probes):
    with pytest.raises(errors.LayoutError, match=r"input.stride\(\) is \(0,\)"):
        probes.inplace.function(torch.ones(1).expand(4), inplace=True)
    assert probes.inplace.function(torch.ones(1).expand(4)).shape == (4,)


@pytest.mark.parametrize(
    ("shape", "strides", "refused"),
    [((4, 3), (0, 1), True), ((3, 4), (2, 1), True), ((2, 2), (2, 3), False), ((1, 4), (0, 1), False)],
    ids=str,
)
def test_writing_an_input_that_overlaps_itself_is_refused(probes, shape, strides, refused):
    x = torch.ones(16).as_strided(shape, strides)
    if refused:
        with pytest.raises(
            errors.LayoutError, match=r"input.stride\(\) is .*expected no two elements in one place"
        ):
            probes.inplace.function(x, inplace=True)
    else:
        assert probes.inplace.function(x, inplace=True) is x
    assert probes.inplace.function(x).shape == shape


def test_writing_memory_that_another_input_shares_is_refused(probes):
    states = probes.states.function
    memory = torch.zeros(64)
    x = torch.ones(2, 8)
    states(x, memory[:8], memory[8:16])
    states(x, *memory[16:32].view(8, 2).unbind(1))  # between each other, not in each other
    states(memory[32:48].view(2, 8), memory[:8], None)
    for call, name, other in [
        ((x, memory[:8], memory[7:15]), "mean", "variance"),
        ((x, memory[:16:2], memory[4:12]), "mean", "variance"),
        ((memory[32:48].view(2, 8), memory[:8], memory[40:48]), "variance", "x"),
        ((memory[:16].view(2, 8), memory[8:16], None), "mean", "x"),
        ((memory[:16].view(torch.float16)[:16].view(2, 8), memory[4:12], None), "mean", "x"),
    ]:
        with pytest.raises(errors.LayoutError, match=f"{name} is memory that {other} shares"):
            states(*call)
        with torch.device("cpu"), pytest.raises(errors.LayoutError, match="expected memory of its own"):
            states(*call)
    assert states(memory[:0].view(0, 8), memory[:8], None).shape == (0, 8)


@pytest.mark.parametrize(
    "lazy", [torch._neg_view(W), torch._efficientzerotensor((8,))], ids=["negated", "zeros"]
)
def test_writing_a_lazy_input_is_refused(probes, lazy):
    with pytest.raises(errors.LayoutError, match="input is a lazily negated, conjugated or zero tensor"):
        probes.inplace.function(lazy, inplace=True)
    assert probes.inplace.function(lazy).shape == (8,)
