"""Records that describe tensors without holding them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tileops_manifest.expr import Expression
from tileops_manifest.params import ParamType
from tileops_manifest.shapes import ShapePattern


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """Shape and dtype of a tensor; ``dtype`` is PyTorch's name without ``torch.``.

    >>> TensorMeta((2, 3), "float16")
    TensorMeta(shape=(2, 3), dtype='float16')
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Values:
    """Declared legal values of an integer input; bounds are expressions. ``Binding.domain`` resolves them."""

    kind: str
    low: Expression | None = None
    high: Expression | None = None
    above: str | None = None
    total: Expression | None = None
    longest: Expression | None = None
    of: str | None = None
    filler: int | None = None
    disjoint: bool = False


@dataclass(frozen=True, slots=True)
class Domain:
    """Legal values of an integer input in one call: ``low <= value < high``, structured by ``kind``.

    ``kind`` is any, range, sorted, distinct (within the last axis, but for ``filler``), lengths, offsets
    (non-decreasing from 0 to ``total``, by at most ``longest``), parts (sizes that add up to at most
    ``total``), starts (where the parts of the input ``of`` begin), permutation (of 0 .. high-1) or page_table
    (page ids, distinct within each row, or where ``disjoint`` in all).
    """

    kind: str
    low: int | None = None
    high: int | None = None
    above: str | None = None
    total: int | None = None
    longest: int | None = None
    of: str | None = None
    filler: int | None = None
    disjoint: bool = False


@dataclass(frozen=True, slots=True)
class DimSpec:
    """Meaning and domain of an index variable or pack."""

    name: str
    pack: bool
    doc: str = ""
    min: int = 0
    rank: int | None = None
    min_rank: int = 0


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared input or output.

    ``dtype`` is the declaration as text and ``dtypes`` the names it can stand for. ``mutated`` says that the
    op may write the input, ``mutated_when`` under which condition (None: always). ``alias`` (outputs) is the
    mutated input that this output is.
    """

    name: str
    dtype: str
    dtypes: tuple[str, ...]
    shape: ShapePattern | Expression
    doc: str = ""
    optional: bool = False
    mutated: bool = False
    mutated_when: Expression | None = None
    alias: str | None = None
    values: Values | None = None

    @property
    def pattern(self) -> ShapePattern:
        """The shape of an input."""
        assert isinstance(self.shape, ShapePattern)
        return self.shape

    @property
    def shape_expression(self) -> Expression:
        """The shape of an output."""
        assert isinstance(self.shape, Expression)
        return self.shape


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """One declared param; ``default`` means nothing while ``required``."""

    name: str
    type: ParamType
    required: bool
    default: Any = None
    kw_only: bool = False
    choices: tuple[Any, ...] | None = None
    binds: str | None = None
    doc: str = ""
    deviation: str | None = None


@dataclass(frozen=True, slots=True)
class RuleSpec:
    """A condition on every call and what it means."""

    expr: Expression
    message: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """Unavoidable work, and traffic where it is not simply every input read and every output written."""

    flops: Expression
    bytes: Expression | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One workload: dims (packs are tuples), params, dtype items, given optional inputs, fixed values."""

    label: str
    dims: Mapping[str, int | tuple[int, ...]]
    params: Mapping[str, Any]
    dtypes: tuple[Mapping[str, str] | str, ...]
    with_: tuple[str, ...] = ()
    values: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)


DtypeItem = Mapping[str, str] | str
