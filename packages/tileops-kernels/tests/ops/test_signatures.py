"""Signatures, docstrings and torch schemas agree with the manifest, for every entry."""

from __future__ import annotations

import inspect

import pytest
import torch

from tileops_kernels import ops
from tileops_kernels.errors import ConfigError
from tileops_kernels.ops import CATALOG, get_function, get_op, list_ops
from tileops_kernels.ops.schema import from_text, param_schema_type, to_text

OPS = list_ops()


def test_every_entry_of_the_manifest_is_an_op():
    assert set(OPS) == set(CATALOG.manifest.entries)
    assert len(OPS) >= 30


@pytest.mark.parametrize("name", OPS)
def test_function_takes_inputs_then_params(name):
    entry = CATALOG.manifest[name]
    parameters = list(inspect.signature(get_function(entry.function_name)).parameters.values())
    positional = [spec.name for spec in entry.params.values() if not spec.kw_only]
    keyword_only = [spec.name for spec in entry.params.values() if spec.kw_only]
    assert [p.name for p in parameters] == [*entry.inputs, *positional, *keyword_only]
    assert [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] == keyword_only
    for parameter in parameters:
        if parameter.name in entry.params and not entry.params[parameter.name].required:
            assert parameter.default == entry.params[parameter.name].default


@pytest.mark.parametrize("name", OPS)
def test_class_takes_params_at_construction(name):
    entry = CATALOG.manifest[name]
    assert set(inspect.signature(get_op(name)).parameters) == set(entry.params)


@pytest.mark.parametrize("name", OPS)
def test_class_variables_are_filled_in_from_the_entry(name):
    op, entry = get_op(name), CATALOG.manifest[name]
    assert op.__name__ == op._op_name == name
    assert op.default_kernel_map == dict(entry.kernel_map)
    assert {dtype for spec in entry.inputs.values() for dtype in spec.dtypes} == op.SUPPORTED_DTYPES
    assert op.entry is entry


@pytest.mark.parametrize("name", OPS)
def test_docstrings_name_every_argument_and_output(name):
    entry = CATALOG.manifest[name]
    for doc in (get_op(name).__doc__, get_function(entry.function_name).__doc__):
        assert doc.startswith(entry.summary)
        for argument in (*entry.inputs, *entry.params, *entry.outputs):
            assert f"    {argument} (" in doc


def test_docstrings_say_the_precision_of_sums():
    assert "accumulates in float32;" in get_op("GemmFwdOp").__doc__
    assert "accumulates in the precision of the output;" in get_op("FFTC2CFwdOp").__doc__


@pytest.mark.parametrize("name", OPS)
def test_torch_schema_has_the_arguments_of_the_entry(name):
    entry, runtime = CATALOG.manifest[name], CATALOG.runtime(name)
    for overload in (runtime.overload, runtime.in_place_overload):
        if overload is None:
            continue
        schema = overload._schema
        told = [] if entry.inputs else ["device"]
        assert [argument.name for argument in schema.arguments] == [*runtime.signature.names, *told]
        written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        expected = {spec.name for spec in entry.inputs.values() if spec.mutated}
        assert written == (expected if overload is runtime.in_place_overload else set())
        for argument in schema.arguments:
            spec = entry.inputs.get(argument.name)
            if spec is not None:
                assert isinstance(argument.type, torch.OptionalType) is spec.optional


@pytest.mark.parametrize("name", OPS)
def test_every_op_is_registered_with_torch_on_import(name):
    runtime = CATALOG.runtime(name)
    # An op that always writes an input has the in-place form alone.
    overload = runtime.overload or runtime.in_place_overload
    qualified = f"tileops::{runtime.entry.function_name}{'' if runtime.overload else '_'}"
    assert overload.name() == qualified
    # Without inputs no tensor says where to run.
    places = ("CPU", "CUDA") if runtime.signature.inputs else ("BackendSelect",)
    for key in (*places, "Meta", "Autograd"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key), key


def test_no_function_is_hidden_by_a_submodule():
    import pkgutil

    submodules = {module.name for module in pkgutil.iter_modules(ops.__path__)}
    assert not submodules & set(CATALOG.op_of_function)


def test_an_optional_input_before_a_required_param_is_required_by_position(probes):
    signature = inspect.signature(get_function("group_norm"))
    assert signature.parameters["weight"].default is inspect.Parameter.empty
    assert inspect.signature(probes.table.function).parameters["bias"].default is None


def test_a_param_type_without_a_schema_type_is_refused():
    assert param_schema_type("Op", "dim", "int | list[int] | tuple[int, ...] | None") == "int[1]?"
    with pytest.raises(
        ConfigError, match=r"Op: a torch operator cannot take param 'mode' of type dtype \| str"
    ):
        param_schema_type("Op", "mode", "dtype | str")


@pytest.mark.parametrize(
    ("declared", "schema_type"),
    [
        ("int | tuple[int, int, int]", "int[3]"),
        ("int | tuple[int] | None", "int[1]?"),
        ("int | tuple[int, int] | str", "str"),
        ("int | None | tuple[int | None, int | None]", "str"),
    ],
)
def test_tuples_have_their_length_and_what_no_schema_says_is_text(declared, schema_type):
    assert param_schema_type("Op", "size", declared) == schema_type


@pytest.mark.parametrize("value", [0, -3, True, None, 0.5, "same", (1, 2), (None, 3), [4, 5]])
def test_text_of_a_param_reads_back(value):
    read = from_text(to_text(value))
    assert read == (tuple(value) if isinstance(value, list) else value)
    assert type(read) is (tuple if isinstance(value, list) else type(value))


def test_dir_lists_classes_and_functions():
    names = dir(ops)
    assert {"RMSNormFwdOp", "rms_norm", "get_op", "list_ops"} <= set(names)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(LookupError, match="no entry named 'RMSNormFwd'; did you mean 'RMSNormFwdOp'"):
        get_op("RMSNormFwd")
    with pytest.raises(LookupError, match="no entry named 'rmsnorm'; did you mean 'rms_norm'"):
        get_function("rmsnorm")
    with pytest.raises(AttributeError, match="no attribute 'SoftmxFwdOp'; did you mean 'SoftmaxFwdOp'"):
        ops.SoftmxFwdOp  # noqa: B018
