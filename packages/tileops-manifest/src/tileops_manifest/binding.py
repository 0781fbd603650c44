"""The result of checking a call against its entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tileops_manifest.dtypes import itemsize
from tileops_manifest.errors import ExpressionError, SpecError
from tileops_manifest.expr import SUMS
from tileops_manifest.functions import prod
from tileops_manifest.tensors import Domain, TensorMeta

if TYPE_CHECKING:
    from tileops_manifest.entry import Entry


def nbytes(meta: TensorMeta) -> Any:
    """Size of a dense tensor in bytes."""
    return prod(meta.shape) * itemsize(meta.dtype)


@dataclass(frozen=True)
class Binding:
    """A call that its entry allows: every name of the entry with its value.

    ``dims`` and ``packs`` hold the index variables, ``dtypes`` the dtype variables (an input declared as a union
    without a variable is listed under its own name), ``params`` the canonical params, ``outputs`` what the op
    returns. ``values`` are the fixed values of integer inputs when the binding was made from a workload row.
    """

    entry: Entry = field(repr=False)
    dims: dict[str, int]
    packs: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    params: dict[str, Any]
    inputs: dict[str, TensorMeta | None]
    outputs: dict[str, TensorMeta]
    values: dict[str, int | tuple[int, ...]]
    env: dict[str, Any] = field(repr=False, compare=False)

    def eval(self, expr: str) -> Any:
        """The value of an expression over this call's dims, packs, params, dtypes, lets, inputs and outputs.

        Raises ExpressionError for text outside the language, an unknown name or an expression without a value.
        """
        return self._evaluate(self.entry.compile(expr))

    @cached_property
    def mutated(self) -> tuple[str, ...]:
        """Names of the given inputs that this call writes."""
        return tuple(
            name
            for name, spec in self.entry.inputs.items()
            if spec.mutated
            and self.inputs[name] is not None
            and (spec.mutated_when is None or spec.mutated_when.evaluate(self.env))
        )

    @cached_property
    def flops(self) -> int:
        """Arithmetic operations of the call, by the entry's formula."""
        return self._evaluate(self.entry.roofline.flops)

    @cached_property
    def bytes(self) -> int:
        """Bytes read and written: the entry's formula, or every given input once and every output once."""
        if self.entry.roofline.bytes is not None:
            return self._evaluate(self.entry.roofline.bytes)
        return sum(nbytes(meta) for meta in self._traffic())

    def _traffic(self) -> Iterator[TensorMeta]:
        yield from (meta for meta in self.inputs.values() if meta is not None)
        for name in self.mutated:
            yield self.inputs[name]  # type: ignore[misc]
        for name, meta in self.outputs.items():
            # An output that is a mutated input was counted as that input's write.
            if self.entry.outputs[name].alias not in self.mutated:
                yield meta

    def domain(self, name: str) -> Domain | None:
        """Legal values of an integer input, with bounds evaluated; None when the entry declares none."""
        values = self.entry.inputs[name].values
        if values is None:
            return None
        low, high, total = (
            None if bound is None else self._evaluate(bound) for bound in (values.low, values.high, values.total)
        )
        return Domain(values.kind, low, high, values.above, total)

    def _evaluate(self, expression: Any) -> Any:
        return expression.evaluate({**self.env, SUMS: _Sums(self)})


class _Sums(Mapping[str, Any]):
    """Sums of the values of integer inputs, computed when an expression asks."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding

    def __getitem__(self, name: str) -> Any:
        meta = self._binding.inputs.get(name)
        if meta is None:
            return 0
        count = prod(meta.shape)
        if name in self._binding.values:
            fixed = self._binding.values[name]
            return sum(fixed) if isinstance(fixed, tuple) else fixed * count
        domain = self._binding.domain(name)
        if domain is None or domain.high is None:
            raise ExpressionError(f"sum_of({name}) needs an input with an upper bound of its values")
        return (domain.high - 1) * count

    def __iter__(self) -> Iterator[str]:
        return iter(self._binding.inputs)

    def __len__(self) -> int:
        return len(self._binding.inputs)


def output_error(op: str, name: str, error: ExpressionError) -> SpecError:
    """An output whose shape or dtype has no value for this call."""
    return SpecError(op, f"{name}: {error}", argument=name)
