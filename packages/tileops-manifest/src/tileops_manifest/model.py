"""The schema of a manifest file: frozen records, unknown fields refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    field_serializer,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue

GRAMMAR = 1
OP_NAME = r"^[A-Z][A-Za-z0-9]*Op$"
NAME = r"^[A-Za-z][A-Za-z0-9_]*$"
PACK_OR_NAME = r"^\*?[A-Za-z][A-Za-z0-9_]*$"

Name = Annotated[str, Field(pattern=NAME)]
Expr = Annotated[str, Field(min_length=1, description="expression of the manifest language")]
ExprOrInt = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    WithJsonSchema({"type": ["string", "integer"]}),
]


class Record(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, str_strip_whitespace=True, validate_default=True
    )

    @field_validator("*", mode="after")
    @classmethod
    def _frozen_mapping(cls, value: Any) -> Any:
        """`frozen` keeps a field's name bound; a mapping must also keep its content."""
        return MappingProxyType(dict(value)) if isinstance(value, Mapping) else value

    @field_serializer("*", mode="wrap")
    def _plain_mapping(self, value: Any, handler: SerializerFunctionWrapHandler) -> Any:
        return handler(dict(value) if isinstance(value, MappingProxyType) else value)


class Shorthand(Record):
    """A record that may be written as one string."""

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


def _doc_only(value: Any) -> Any:
    return {"doc": value} if isinstance(value, str) else value


class DimModel(Shorthand):
    """Meaning and domain of an index variable (`name`) or a pack of them (`*name`)."""

    doc: str = ""
    min: int = Field(0, ge=0, description="least value (for a pack: of each dim)")
    rank: int | None = Field(None, ge=0, description="exact number of dims of a pack")
    min_rank: int = Field(0, ge=0, description="least number of dims of a pack")


ValueKind = Literal[
    "any", "range", "sorted", "distinct", "lengths", "offsets", "parts", "starts", "permutation", "page_table"
]  # fmt: skip


class ValuesModel(Shorthand):
    """Legal values of an integer input."""

    kind: ValueKind
    low: ExprOrInt | None = Field(None, description="least value (default 0)")
    high: ExprOrInt | None = Field(None, description="first value above the range")
    above: Name | None = Field(None, description="an input of the same shape that this one is never below")
    total: ExprOrInt | None = Field(
        None, description="offsets: the last value; parts: the most that they add up to"
    )
    longest: ExprOrInt | None = Field(None, description="offsets: the most that two neighbours differ by")
    of: Name | None = Field(None, description="starts: the input of parts that begin there")
    filler: int | None = Field(None, description="distinct: a value that may stand any number of times")
    disjoint: bool | None = Field(None, description="page_table: no page stands in two rows either")


def _any_only(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _flag_or_expression(value: Any) -> Any:
    if not isinstance(value, bool | str):
        raise ValueError("expected true, false or an expression")
    return value


class InputModel(Record):
    """One tensor argument."""

    dtype: Expr
    shape: Expr
    doc: str = ""
    optional: bool = False
    mutated: Annotated[
        Any, AfterValidator(_flag_or_expression), WithJsonSchema({"type": ["boolean", "string"]})
    ] = Field(False, description="written by the op: always, or when this expression holds")
    values: Annotated[ValuesModel | None, BeforeValidator(_any_only)] = None


class OutputModel(Record):
    """One tensor result."""

    dtype: Expr
    shape: Expr
    doc: str = ""
    alias: Name | None = Field(
        None, description="the mutated input that this output is, whenever it is mutated"
    )


class ParamModel(Record):
    """One non-tensor argument; without `default` it is required."""

    type: Expr
    default: Any = None
    kw_only: bool = False
    choices: tuple[Any, ...] | None = None
    binds: Name | None = Field(None, description="the dim, pack or dtype variable that this param equals")
    doc: str = ""
    deviation: str | None = Field(None, description="how the param or its default differs from `ref_api`")


class RuleModel(Record):
    """A condition on every call."""

    expr: Expr
    message: Annotated[str, Field(min_length=1)]


Nan = Literal["propagate", "first", "last", "false", "true", "tested", "copied", "undefined", "none"]
Inf = Literal["ieee", "given", "nan", "copied", "undefined", "none"]
NegativeZero = Literal["ieee", "either", "copied", "zero", "none"]
Ties = Literal["first", "any", "none"]
Empty = Literal["empty", "zero", "one", "nan", "true", "false", "-inf", "error"]
Accumulate = Literal["none", "exact", "int64", "float32", "float64", "output"]

# Values that an op computes on its way and that its kernels keep in a storage dtype.
Intermediate = Literal[
    "probabilities",
    "score_gradients",
    "dequantized",
    "rotated",
    "activations",
    "expert_outputs",
    "states",
    "scaled_tokens",
]


class NumericsModel(Record):
    """What a correct result is, beyond the formula. See docs/manifest-spec.md for each word."""

    accumulate: Accumulate
    tf32: bool = False
    nan: Nan
    inf: Inf = "ieee"
    negative_zero: NegativeZero = "ieee"
    ties: Ties = "none"
    empty: Empty = "empty"
    determinism: Literal["bitwise", "run-to-run"] = "bitwise"
    aliasing: Literal["none", "inplace"] = "none"
    exact: bool = False
    intermediates: Mapping[Intermediate, Expr] = Field(
        {}, description="dtypes that named intermediate values may be rounded to before they are used"
    )


class RooflineModel(Record):
    """Work and traffic that no implementation can avoid."""

    flops: ExprOrInt
    bytes: ExprOrInt | None = Field(None, description="only where the op reads part of an input")


Status = Literal["spec-only", "implemented"]


class StatusModel(Record):
    """Per target: `implemented` only with evidence."""

    cpu: Status = "spec-only"
    cuda: Status = "spec-only"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _sizes(value: Any) -> Any:
    sizes = value if isinstance(value, tuple) else (value,)
    if not all(_is_integer(size) and size >= 0 for size in sizes):
        raise ValueError("expected a size or a list of sizes, integers >= 0")
    return value


def _integers(value: Any) -> Any:
    if not all(map(_is_integer, value if isinstance(value, tuple) else (value,))):
        raise ValueError("expected an integer or a list of integers")
    return value


def _dtype_item(value: Any) -> Any:
    if not isinstance(value, str) and not (
        isinstance(value, Mapping) and all(isinstance(dtype, str) for dtype in value.values())
    ):
        raise ValueError("expected a dtype, or a mapping of dtype variables to dtypes")
    return value


def _one_or_many(item: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item}]})


Sizes = Annotated[Any, AfterValidator(_sizes), _one_or_many({"type": "integer", "minimum": 0})]
Integers = Annotated[Any, AfterValidator(_integers), _one_or_many({"type": "integer"})]
DtypeItem = Annotated[
    Any,
    AfterValidator(_dtype_item),
    WithJsonSchema({"type": ["string", "object"], "additionalProperties": {"type": "string"}}),
]


class RowModel(Record):
    """One workload: sizes, params and the dtypes to run it in."""

    label: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    dims: Mapping[Name, Sizes] = {}
    params: Mapping[Name, Any] = {}
    dtypes: Annotated[tuple[DtypeItem, ...], Field(min_length=1)]
    with_: tuple[Name, ...] = Field((), alias="with", description="optional inputs that are given")
    values: Mapping[Name, Integers] = Field({}, description="values of integer inputs")


class OpModel(Record):
    """One entry."""

    summary: Annotated[str, Field(min_length=1)]
    source: str = ""
    ref_api: str
    deviations: tuple[str, ...] = Field(
        (), description="differences from `ref_api` that no single param explains"
    )
    dtypes: Mapping[Name, Expr] = {}
    dims: Mapping[
        Annotated[str, Field(pattern=PACK_OR_NAME)], Annotated[DimModel, BeforeValidator(_doc_only)]
    ] = {}
    inputs: Mapping[Name, InputModel]
    outputs: Annotated[Mapping[Name, OutputModel], Field(min_length=1)]
    params: Mapping[Name, ParamModel] = {}
    let: Mapping[Name, Expr] = Field({}, description="named sub-expressions, in order")
    rules: tuple[RuleModel, ...] = ()
    numerics: NumericsModel
    roofline: RooflineModel
    kernel_map: Mapping[str, Annotated[str, Field(pattern=NAME)]] = {}
    status: StatusModel = StatusModel()
    workloads: Annotated[tuple[RowModel, ...], Field(min_length=1)]


class FileModel(Record):
    """One manifest file: one family of entries."""

    grammar: Literal[1] = Field(description="version of the grammar that the file is written in")
    family: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
    ops: Mapping[Annotated[str, Field(pattern=OP_NAME)], OpModel]
