"""Checking calls: unification, outputs and the errors that say what disagrees."""

from __future__ import annotations

import re

import pytest

from tileops_manifest import (
    DimError,
    DtypeError,
    ExpressionError,
    MissingInputError,
    ParamError,
    RuleError,
    ShapeError,
    SpecError,
    TensorMeta,
    UnknownInputError,
    load_manifest,
)

MANIFEST = load_manifest()


def bind(op: str, params: dict | None = None, **inputs):
    metas = {name: None if meta is None else TensorMeta(*meta) for name, meta in inputs.items()}
    return MANIFEST[op].bind(metas, params or {})


def half(*shape: int):
    return shape, "float16"


def test_rms_norm_binds_packs_of_any_rank():
    binding = bind("RMSNormFwdOp", {"normalized_shape": [3, 4]}, x=half(5, 2, 3, 4), weight=half(3, 4))
    assert binding.packs == {"batch": (5, 2), "norm": (3, 4)}
    assert binding.dtypes == {"T": "float16"}
    assert binding.params == {"normalized_shape": (3, 4), "eps": 1e-6}
    assert binding.outputs == {"output": TensorMeta((5, 2, 3, 4), "float16")}
    assert binding.bytes == 2 * (120 + 12 + 120)
    assert binding.eval("prod(batch) + rank(output)") == 14


ERRORS = [
    (
        "RMSNormFwdOp",
        {"normalized_shape": [4096]},
        {"x": half(2, 4096), "weight": half(4095)},
        ShapeError,
        "RMSNormFwdOp: weight.shape is (4095,), expected normalized_shape = (4096,)",
        {"argument": "weight", "got": (4095,), "expected": (4096,), "rule": "[*norm]"},
    ),
    (
        "RMSNormFwdOp",
        {"normalized_shape": [4096]},
        {"x": half(2, 4095), "weight": half(4096)},
        ShapeError,
        "RMSNormFwdOp: x.shape is (2, 4095), expected [*batch, *norm] "
        "with norm = (4096,) from normalized_shape",
        {},
    ),
    (
        "RMSNormFwdOp",
        {"normalized_shape": []},
        {"x": half(2), "weight": half()},
        ShapeError,
        "RMSNormFwdOp: normalized_shape is (), expected norm of at least 1 dims",
        {"argument": "normalized_shape"},
    ),
    (
        "RMSNormFwdOp",
        {"normalized_shape": [2, 3]},
        {"x": half(3), "weight": half(2, 3)},
        ShapeError,
        "x.shape is (3,), expected [*batch, *norm] with norm = (2, 3) from normalized_shape",
        {},
    ),
    (
        "RMSNormFwdOp",
        {},
        {"x": half(2), "weight": half(2)},
        ParamError,
        "RMSNormFwdOp: param 'normalized_shape' is missing, expected list[int] | tuple[int, ...]",
        {"argument": "normalized_shape"},
    ),
    (
        "RMSNormFwdOp",
        {"normalized_shape": [2]},
        {"x": half(2)},
        MissingInputError,
        "RMSNormFwdOp: input 'weight' is missing, expected T [*norm]",
        {"argument": "weight"},
    ),
    (
        "RMSNormFwdOp",
        {"normalized_shape": [2]},
        {"x": half(2), "wieght": half(2)},
        UnknownInputError,
        "RMSNormFwdOp: unknown input 'wieght'; did you mean 'weight'?",
        {"argument": "wieght"},
    ),
    (
        "RMSNormFwdOp",
        {"normalized_shape": [2]},
        {"x": half(2), "weight": ((2,), "float32")},
        DtypeError,
        "RMSNormFwdOp: weight.dtype is float32, expected T of x = float16",
        {"argument": "weight", "got": "float32", "expected": "float16", "rule": "T"},
    ),
    (
        "RMSNormFwdOp",
        {"normalized_shape": [2]},
        {"x": ((2,), "float64"), "weight": half(2)},
        DtypeError,
        "RMSNormFwdOp: x.dtype is float64, expected float16 | bfloat16 | float32",
        {},
    ),
    (
        "GemmFwdOp",
        {},
        {"a": half(3, 4), "b": half(5, 7)},
        ShapeError,
        "GemmFwdOp: b.shape is (5, 7), expected [N, K] with K = 4 from a.shape[1]",
        {"argument": "b"},
    ),
    (
        "GemmFwdOp",
        {"trans_b": False},
        {"a": half(3, 4), "b": half(5, 7)},
        ShapeError,
        "GemmFwdOp: b.shape is (5, 7), expected [K, N] with K = 4 from a.shape[1]",
        {},
    ),
    (
        "GemmFwdOp",
        {},
        {"a": half(3, 4, 1), "b": half(5, 4)},
        ShapeError,
        "GemmFwdOp: a.shape is (3, 4, 1), expected [M, K]",
        {},
    ),
    (
        "GemmFwdOp",
        {},
        {"a": half(*[1] * 10), "b": half(5, 4)},
        ShapeError,
        "a.shape is (1, 1, 1, 1, 1, 1, 1, 1, 1, 1)",
        {},
    ),
    (
        "GemmFwdOp",
        {"trans_a": 1},
        {"a": half(3, 4), "b": half(5, 4)},
        ParamError,
        "GemmFwdOp: trans_a is 1 (int), expected bool",
        {"argument": "trans_a", "got": 1, "expected": "bool"},
    ),
    (
        "SiluAndMulFwdOp",
        {},
        {"x": half(3, 7)},
        ShapeError,
        "SiluAndMulFwdOp: x.shape is (3, 7), expected [M, 2 * N] with a multiple of 2",
        {},
    ),
    (
        "GroupedQueryAttentionFwdOp",
        {},
        {"q": half(1, 8, 6, 4), "k": half(1, 8, 4, 4), "v": half(1, 8, 4, 4)},
        RuleError,
        "H must be a multiple of H_kv: `H % H_kv == 0` does not hold with H = 6, H_kv = 4",
        {"rule": "H % H_kv == 0", "got": {"H": 6, "H_kv": 4}},
    ),
    (
        "GroupedQueryAttentionFwdOp",
        {},
        {"q": half(1, 8, 0, 4), "k": half(1, 8, 0, 4), "v": half(1, 8, 0, 4)},
        ShapeError,
        "k.shape[2] is 0, expected H_kv of at least 1",
        {"argument": "k"},
    ),
    (
        "AddFwdOp",
        {},
        {"input": half(2, 3), "other": half(4)},
        RuleError,
        "input and other must broadcast",
        {},
    ),
    (
        "AddFwdOp",
        {"alpha": 0.5},
        {"input": ((2,), "int32"), "other": ((2,), "int32")},
        RuleError,
        "takes an integer alpha",
        {},
    ),
    (
        "AddFwdOp",
        {"alpha": True},
        {"input": half(2), "other": half(2)},
        ParamError,
        "alpha is True (bool), expected int | float",
        {},
    ),
    (
        "AddFwdOp",
        {"alpha": 1 << 70},
        {"input": ((2,), "int32"), "other": ((2,), "int32")},
        RuleError,
        "takes an integer alpha",
        {},
    ),
    (
        "RMSNormFwdOp",
        {"normalized_shape": [1 << 63]},
        {"x": half(2, 4), "weight": half(4)},
        ParamError,
        "is [9223372036854775808] (list), expected list[int] | tuple[int, ...], an integer of 64 bits",
        {},
    ),
    (
        "RMSNormFwdOp",
        {"normalized_shape": [4], "eps": 10**400},
        {"x": half(2, 4), "weight": half(4)},
        ParamError,
        "expected float | None, a number that float64 can hold",
        {},
    ),
    (
        "SoftmaxFwdOp",
        {"dim": 10**5000},
        {"x": half(2, 4)},
        ParamError,
        "dim is <int whose repr raises ValueError> (int), expected int | None, an integer of 64 bits",
        {},
    ),
    (
        "DivFwdOp",
        {"rounding_mode": "up"},
        {"input": half(2), "other": half(2)},
        ParamError,
        "rounding_mode is 'up', expected one of None, 'trunc', 'floor'",
        {},
    ),
    ("SumFwdOp", {"dim": 2}, {"x": half(2, 3)}, RuleError, "dim must lie in [-rank, rank)", {}),
    ("SumFwdOp", {"dim": [0, -2]}, {"x": half(2, 3)}, RuleError, "dim must not name an axis twice", {}),
    (
        "SumFwdOp",
        {"dim": "0"},
        {"x": half(2, 3)},
        ParamError,
        "dim is '0' (str), expected int | list[int]",
        {},
    ),
    ("SumFwdOp", {"dims": 0}, {"x": half(2, 3)}, ParamError, "unknown param 'dims'; did you mean 'dim'?", {}),
    ("AmaxFwdOp", {"dim": 0}, {"x": half(0, 3)}, RuleError, "the reduced axes must not be empty", {}),
    ("AmaxFwdOp", {}, {"x": half(0, 3)}, RuleError, "the reduced axes must not be empty", {}),
    ("LogSumExpFwdOp", {"dim": []}, {"x": half(2)}, RuleError, "dim must name at least one axis", {}),
    ("ClampScalarFwdOp", {}, {"input": half(2)}, RuleError, "at least one of min and max", {}),
    (
        "GroupNormFwdOp",
        {"num_groups": 2},
        {"x": half(2, 4, 3), "weight": half(4)},
        RuleError,
        "given together",
        {},
    ),
    (
        "GroupNormFwdOp",
        {"num_groups": 3},
        {"x": half(2, 4, 3)},
        RuleError,
        "num_groups must divide the channels",
        {},
    ),
    (
        "FusedAddRMSNormFwdOp",
        {},
        {"x": half(2, 4), "residual": half(2, 5), "weight": half(4)},
        ShapeError,
        "residual.shape is (2, 5), expected [*batch, *norm] with batch = (2,) from x.shape, norm = (4,)",
        {},
    ),
    (
        "FusedAddRMSNormFwdOp",
        {},
        {"x": half(2, 4), "residual": half(2, 4), "weight": half(2, 4)},
        ShapeError,
        "weight.shape is (2, 4), expected [*norm] = (4,)",
        {},
    ),
    (
        "RopeNeoxFwdOp",
        {"layout": "2d"},
        {"x": half(2, 4)},
        ShapeError,
        "x.shape is (2, 4), expected [batch, seq_len, num_heads, head_dim]",
        {},
    ),
    (
        "RopeNeoxFwdOp",
        {"layout": "3d"},
        {"x": half(2, 4)},
        ParamError,
        "layout is '3d', expected one of '1d', '2d'",
        {},
    ),
    (
        "MoePermuteNopadFwdOp",
        {"num_experts": 8, "num_experts_local": 4},
        {"hidden_states": half(3, 16), "topk_ids": ((3, 2), "int32"), "expert_map": ((9,), "int32")},
        ShapeError,
        "expert_map.shape is (9,), expected [num_experts] with num_experts = 8",
        {},
    ),
]


@pytest.mark.parametrize(("op", "params", "inputs", "error", "message", "attributes"), ERRORS)
def test_a_wrong_call_is_refused(op, params, inputs, error, message, attributes):
    with pytest.raises(error) as caught:
        bind(op, params, **inputs)
    assert message in str(caught.value)
    assert caught.value.op == op
    for name, expected in attributes.items():
        assert getattr(caught.value, name) == expected


def test_every_error_is_a_spec_error():
    assert all(issubclass(error, SpecError) for _, _, _, error, _, _ in ERRORS)


@pytest.mark.parametrize(
    ("op", "params", "shape", "expected"),
    [
        ("SumFwdOp", {}, (2, 3), ()),
        ("SumFwdOp", {"dim": []}, (2, 3), ()),
        ("SumFwdOp", {"dim": [-1], "keepdim": True}, (2, 3), (2, 1)),
        ("SumFwdOp", {"dim": (0, 2)}, (2, 3, 4), (3,)),
        ("SumFwdOp", {"dim": 0}, (0, 3), (3,)),
        ("SumFwdOp", {"dim": -1}, (), ()),
        ("AllFwdOp", {"dim": []}, (2, 3), (2, 3)),
        ("AmaxFwdOp", {"dim": 1}, (0, 3), (0,)),
        ("ArgmaxFwdOp", {"keepdim": True}, (2, 3), (1, 1)),
        ("ProdFwdOp", {}, (2, 3), (2,)),
    ],
)
def test_reductions_follow_the_mirrored_function(op, params, shape, expected):
    assert bind(op, params, x=(shape, "float16")).outputs["output"].shape == expected


@pytest.mark.parametrize(("rank", "axis"), [(0, 0), (1, 0), (2, 1), (3, 0), (4, 1)])
def test_softmax_without_dim_takes_the_implicit_axis_of_torch(rank, axis):
    assert bind("SoftmaxFwdOp", x=half(*[2] * rank)).eval("axis") == axis


def test_output_dtypes_follow_the_declaration():
    assert bind("ReciprocalFwdOp", input=((2,), "int32")).outputs["output"].dtype == "float32"
    assert bind("ReciprocalFwdOp", input=((2,), "bfloat16")).outputs["output"].dtype == "bfloat16"
    assert bind("EqFwdOp", input=half(2), other=half(2)).outputs["output"].dtype == "bool"
    assert bind("ArgmaxFwdOp", x=half(2)).outputs["output"].dtype == "int64"


def test_zero_dim_and_empty_tensors_bind():
    assert bind("AddFwdOp", input=half(), other=half(3, 0)).outputs["output"].shape == (3, 0)
    binding = bind("RMSNormFwdOp", {"normalized_shape": [4]}, x=half(0, 4), weight=half(4))
    assert binding.outputs["output"].shape == (0, 4)
    assert binding.flops == 0


def test_mutation_depends_on_the_params_and_is_not_counted_twice():
    plain = bind("ReluFwdOp", input=half(8))
    inplace = bind("ReluFwdOp", {"inplace": True}, input=half(8))
    assert plain.mutated == ()
    assert inplace.mutated == ("input",)
    assert plain.bytes == inplace.bytes == 2 * 8 * 2


def test_an_int_is_a_float_and_sequences_become_tuples():
    entry = MANIFEST["RMSNormFwdOp"]
    assert entry.canonical_params({"normalized_shape": [8], "eps": 1}) == {
        "normalized_shape": (8,),
        "eps": 1.0,
    }
    assert type(entry.canonical_params({"normalized_shape": [8], "eps": 1})["eps"]) is float
    assert MANIFEST["AddFwdOp"].canonical_params({"alpha": 2})["alpha"] == 2
    assert type(MANIFEST["AddFwdOp"].canonical_params({"alpha": 2})["alpha"]) is int


def test_optional_inputs_may_be_absent_or_none():
    with_none = bind("GroupNormFwdOp", {"num_groups": 2}, x=half(2, 4, 3), weight=None)
    without = bind("GroupNormFwdOp", {"num_groups": 2}, x=half(2, 4, 3))
    assert (
        with_none.inputs
        == without.inputs
        == {"x": TensorMeta((2, 4, 3), "float16"), "weight": None, "bias": None}
    )


def test_domains_are_resolved_for_the_call():
    binding = bind(
        "RopeNeoxPositionIdsFwdOp", {"max_position": 9}, x=half(3, 2, 4), position_ids=((3,), "int64")
    )
    domain = binding.domain("position_ids")
    assert (domain.kind, domain.low, domain.high) == ("range", 0, 9)
    assert binding.domain("x") is None
    assert binding.dtypes == {"T": "float16", "position_ids": "int64"}


def test_bind_dims_realises_the_inputs():
    binding = MANIFEST["GemmFwdOp"].bind_dims({"M": 2, "N": 3, "K": 5}, {"trans_a": True}, "float32")
    assert binding.inputs == {"a": TensorMeta((5, 2), "float32"), "b": TensorMeta((3, 5), "float32")}
    with_affine = MANIFEST["GroupNormFwdOp"].bind_dims(
        {"N": 1, "C": 4, "spatial": []}, {"num_groups": 2}, "float16", with_=["weight", "bias"]
    )
    assert with_affine.inputs["bias"] == TensorMeta((4,), "float16")


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"M": 2, "N": 3}, "needs a size for K"),
        ({"M": 2, "N": 3, "K": -1}, "expected sizes >= 0"),
        ({"M": 2, "N": 3, "K": [4]}, "expected one size"),
        ({"M": 2, "N": 3, "K": True}, "expected sizes >= 0"),
        ({"M": 2, "N": 3, "k": 4}, "unknown dim 'k'"),
    ],
)
def test_bind_dims_refuses_wrong_sizes(dims, message):
    with pytest.raises(DimError, match=message):
        MANIFEST["GemmFwdOp"].bind_dims(dims, {}, "float16")


def test_bind_dims_fills_a_param_from_the_pack_it_equals():
    entry = MANIFEST["RMSNormFwdOp"]
    assert entry.bind_dims({"batch": [2], "norm": [8]}, {}, "float16").params["normalized_shape"] == (8,)
    with pytest.raises(ShapeError, match=r"norm = \(9,\) from normalized_shape"):
        entry.bind_dims({"batch": [2], "norm": [8]}, {"normalized_shape": [9]}, "float16")


def test_eval_refuses_text_outside_the_language():
    binding = bind("ReluFwdOp", input=half(8))
    with pytest.raises(ExpressionError, match="not bound"):
        binding.eval("B")
    with pytest.raises(ExpressionError, match="attributes"):
        binding.eval("input.shape")


class Opaque:
    """An integer that allows arithmetic and comparison alone, as a symbolic size of a compiler does."""

    def __init__(self, value: int) -> None:
        self._value = value

    __hash__ = None

    def __int__(self):
        raise AssertionError("int() was called on a size")

    def __index__(self):
        raise AssertionError("a size was used as an index")

    def __repr__(self) -> str:
        return f"s{self._value}"

    @staticmethod
    def value(other):
        return other._value if isinstance(other, Opaque) else other


def _lift(name: str, wrap: bool):
    def method(self, other):
        result = getattr(self._value, name)(Opaque.value(other))
        return Opaque(result) if wrap else result

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv", "mod", "rmod"):
    setattr(Opaque, f"__{_name}__", _lift(f"__{_name}__", wrap=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Opaque, f"__{_name}__", _lift(f"__{_name}__", wrap=False))
Opaque.__neg__ = lambda self: Opaque(-self._value)
Opaque.__hash__ = None  # assigning __eq__ does not unset it


def test_an_op_without_inputs_takes_sizes_and_dtype_from_its_params():
    entry = MANIFEST["AlibiFwdOp"]
    binding = entry.bind({}, {"seq_len": 4, "num_heads": 2, "dtype": "torch.float32"})
    assert binding.outputs == {"output": TensorMeta((2, 4, 4), "float32")}
    assert (binding.dims, binding.dtypes) == ({"H": 2, "S": 4}, {"T": "float32"})
    assert binding.bytes == 4 * 32
    again = entry.bind_dims({"H": 2, "S": 4}, {}, "float32")
    assert (again.params, again.outputs) == (binding.params, binding.outputs)


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"dtype": "int32"}, ParamError, "dtype is int32, expected float16 | bfloat16 | float32"),
        ({"seq_len": 0}, ShapeError, "seq_len is 0, expected S of at least 1"),
        ({"num_heads": -1}, ShapeError, "num_heads is -1, expected H of at least 1"),
    ],
)
def test_a_param_that_binds_is_held_to_what_it_binds(params, error, message):
    call = {"seq_len": 4, "num_heads": 2, "dtype": "float16", **params}
    with pytest.raises(error, match=re.escape(message)):
        MANIFEST["AlibiFwdOp"].bind({}, call)


def test_an_input_disagrees_with_the_dtype_that_a_param_binds(tmp_path):
    text = (
        "grammar: 1\nfamily: toy\nops:\n  CastFwdOp:\n    summary: toy\n    ref_api: none\n"
        "    dtypes: {T: float16 | float32}\n    inputs:\n      x: {dtype: T, shape: '[N]'}\n"
        "    outputs:\n      y: {dtype: T, shape: '[N]'}\n"
        "    params:\n      dtype: {type: dtype | None, default: null, binds: T}\n"
        "    numerics: {accumulate: none, nan: copied}\n    roofline: {flops: N}\n"
        "    workloads:\n      - {label: one, dims: {N: 3}, dtypes: [float16, float32]}\n"
    )
    path = tmp_path / "toy.yaml"
    path.write_text(text, encoding="utf-8")
    entry = load_manifest(path)["CastFwdOp"]
    x = {"x": TensorMeta((3,), "float16")}
    assert entry.bind(x, {}).params == {"dtype": "float16"}
    assert entry.bind_dims({"N": 3}, {"dtype": "float32"}, "float16").inputs["x"].dtype == "float32"
    with pytest.raises(DtypeError, match=r"x\.dtype is float16, expected T of dtype = float32"):
        entry.bind(x, {"dtype": "float32"})


def _opaque(value):
    """Sizes hidden; a dtype is a constant to a compiler as well."""
    if isinstance(value, tuple):
        return tuple(map(_opaque, value))
    return Opaque(value) if isinstance(value, int) else value


@pytest.mark.parametrize("op", list(MANIFEST))
def test_every_entry_binds_opaque_sizes(op):
    """Compilers trace with symbolic sizes: dims are never hashed, converted or used as indices."""
    for case in MANIFEST[op].cases():
        plain = case.bind()
        opaque = {
            name: meta and TensorMeta(tuple(Opaque(size) for size in meta.shape), meta.dtype)
            for name, meta in plain.inputs.items()
        }
        params = {
            name: value for name, value in plain.params.items() if case.entry.params[name].binds is None
        }
        bound = {
            spec.name: _opaque(plain.params[spec.name])
            for spec in case.entry.params.values()
            if spec.binds is not None
        }
        binding = case.entry.bind(opaque, {**params, **bound})
        for name, meta in binding.outputs.items():
            assert tuple(map(Opaque.value, meta.shape)) == plain.outputs[name].shape
            assert meta.dtype == plain.outputs[name].dtype
        # What a row fixes of an integer input's values is no part of the call.
        if case.entry.roofline.bytes is None and not plain.values:
            assert Opaque.value(binding.flops) == plain.flops
            assert Opaque.value(binding.bytes) == plain.bytes


def test_an_opaque_size_that_disagrees_is_refused():
    a, b = TensorMeta((Opaque(3), Opaque(4)), "float16"), TensorMeta((Opaque(5), Opaque(7)), "float16")
    with pytest.raises(ShapeError, match=r"b\.shape is \(s5, s7\), expected \[N, K\] with K = s4"):
        MANIFEST["GemmFwdOp"].bind({"a": a, "b": b}, {})
