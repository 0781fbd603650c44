"""Every param is moved in every branch, and to the ends of its domain."""

from __future__ import annotations

import pytest

from tileops_manifest import load_manifest
from tileops_workloads import make_workload, param_dims
from tileops_workloads.boundary import MAX_ELEMENTS
from tileops_workloads.scale import elements

MANIFEST = load_manifest()


def found(op, name, **params):
    """Values of a param in the shapes of an op that have these params."""
    entry = MANIFEST[op]
    given = [{n: spec.default for n, spec in entry.params.items()} | dict(p) for _, p, _ in param_dims(entry)]
    return [p[name] for p in given if all(p[n] == value for n, value in params.items())]


@pytest.mark.parametrize("op", tuple(MANIFEST))
def test_shapes_are_legal_and_small_and_distinct(op):
    entry = MANIFEST[op]
    seen = set()
    for dims, params, with_ in param_dims(entry):
        assert elements(entry.bind_dims(dims, params, entry.workloads[0].dtypes[0], with_)) <= MAX_ELEMENTS
        seen.add(repr((sorted(dims.items()), sorted(params.items()), with_)))
    assert len(seen) == len(list(param_dims(entry)))


@pytest.mark.parametrize(
    ("op", "names"),
    [
        ("NanToNumFwdOp", {"nan", "posinf", "neginf"}),
        ("LayerNormFwdOp", {"eps"}),
        ("GroupNormFwdOp", {"num_groups", "eps"}),
    ],
)
def test_every_param_that_may_vary_has_a_value_of_no_row(op, names):
    entry = MANIFEST[op]
    for name in names:
        rows = [row.params.get(name, entry.params[name].default) for row in entry.workloads]
        assert any(value not in rows for value in found(op, name))


@pytest.mark.parametrize(
    ("op", "switches", "names"),
    [
        ("BatchNormFwdOp", {"training": True}, ("momentum", "eps")),
        ("BatchNormFwdOp", {"training": False}, ("momentum", "eps")),
        ("InstanceNormFwdOp", {"use_input_stats": False}, ("eps",)),
        ("LeakyReluFwdOp", {"inplace": True}, ("negative_slope",)),
        ("LeakyReluFwdOp", {"inplace": False}, ("negative_slope",)),
        ("VarFwdOp", {"keepdim": True}, ("dim", "correction")),
        ("RopeLlama31FwdOp", {"layout": "1d"}, ("low_freq_factor", "high_freq_factor", "scale_factor")),
    ],
)
def test_params_move_in_each_branch(op, switches, names):
    for name in names:
        default = MANIFEST[op].params[name].default
        assert any(value != default for value in found(op, name, **switches))


def test_one_shape_moves_all_params_of_a_branch():
    entry = MANIFEST["RopeLongRopeFwdOp"]
    defaults = {name: spec.default for name, spec in entry.params.items() if name != "layout"}
    assert any(
        all(params.get(name, default) != default for name, default in defaults.items())
        for _, params, _ in param_dims(entry)
    )


def test_optional_inputs_are_given_and_absent_in_each_branch():
    branches = {(params["layout"], with_) for _, params, with_ in param_dims(MANIFEST["RopeLongRopeFwdOp"])}
    given = ("rescale_factors",)
    assert branches == {(layout, with_) for layout in ("1d", "2d") for with_ in (given, ())}


def test_an_entry_without_a_choice_has_no_shape():
    assert not list(param_dims(MANIFEST["ExpFwdOp"]))


@pytest.mark.parametrize(
    ("op", "name", "ends"),
    [
        ("DropoutFwdOp", "p", {0.0, 1.0}),
        ("RMSNormFwdOp", "eps", {0.0}),
        ("RopeNeoxFwdOp", "base", {1.0}),
        ("LeakyReluFwdOp", "negative_slope", {-8.0, 8.0}),
        ("ClampScalarFwdOp", "min", {-8.0, 8.0}),
        ("VarFwdOp", "correction", {-2, 3}),
        ("GroupNormFwdOp", "num_groups", {1}),
    ],
)
def test_params_reach_the_ends_of_their_domains(op, name, ends):
    assert ends <= set(found(op, name))


def test_groups_of_a_shape_that_is_no_rows_leave_rows_over():
    entry = MANIFEST["GroupedGemmFwdOp"]
    for dims, params, with_ in param_dims(entry):
        inputs = make_workload(entry, None, "float16", dims=dims, params=params, with_=with_).gen_inputs()
        assert int(inputs["batch_sizes"].sum()) < dims["batch_sum"]
    row = entry.workloads[0]
    scaled = make_workload(entry, row, row.dtypes[0], scale="cpu")
    assert int(scaled.gen_inputs()["batch_sizes"].sum()) == scaled.binding.env["batch_sum"]
