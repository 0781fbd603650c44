"""The result of checking a call against its entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from tileops_manifest.dtypes import itemsize
from tileops_manifest.errors import ExpressionError, SpecError
from tileops_manifest.expr import DATA, Expression
from tileops_manifest.functions import prod
from tileops_manifest.tensors import Domain, TensorMeta
from tileops_manifest.unify import flatten

if TYPE_CHECKING:
    from tileops_manifest.entry import Entry


# Kinds whose values the roofline assumes, where a row does not fix them: an even split of the total.
_DETERMINED = frozenset({"offsets", "parts", "starts"})


def nbytes(meta: TensorMeta) -> Any:
    """Size of a dense tensor in bytes."""
    return prod(meta.shape) * itemsize(meta.dtype)


@dataclass(frozen=True)
class Binding:
    """A call that its entry allows: every name of the entry with its value.

    ``dims`` and ``packs`` hold the index variables, ``dtypes`` the dtype variables (an input declared as a
    union without a variable is listed under its own name), ``params`` the canonical params, ``outputs`` what
    the op returns. ``values`` are the fixed values of integer inputs when the binding was made from a row.
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
        """The value of an expression over this call: dims, packs, params, dtypes, lets, inputs, outputs.

        Raises ExpressionError for text outside the language, an unknown name, or no value.
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
    def intermediates(self) -> dict[str, str]:
        """Dtype that each named intermediate value of the numerics contract may be rounded to."""
        return {name: flatten(self._evaluate(dtype))[0] for name, dtype in self.entry.intermediates.items()}

    @cached_property
    def results(self) -> dict[str, TensorMeta]:
        """Everything that the call computes: its outputs, then the mutated inputs that no output is."""
        aliased = {spec.alias for spec in self.entry.outputs.values()}
        written = (name for name in self.mutated if name not in aliased)
        return {**self.outputs, **{name: self.inputs[name] for name in written}}  # type: ignore[dict-item]

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
        low, high, total, longest = (
            None if bound is None else self._evaluate(bound)
            for bound in (values.low, values.high, values.total, values.longest)
        )
        return Domain(
            values.kind, low, high, values.above, total, longest, values.of, values.filler, values.disjoint
        )

    def _evaluate(self, expression: Expression) -> Any:
        return expression.evaluate({**self.env, DATA: _Data(self)})


@dataclass(frozen=True, slots=True)
class _Data:
    """Values of integer inputs as far as they are known, for expressions that ask for them."""

    binding: Binding

    def sum(self, name: str) -> Any:
        meta = self.binding.inputs[name]
        if meta is None:
            return 0
        fixed = self.binding.values.get(name)
        if isinstance(fixed, tuple):
            return sum(fixed)
        domain = self.binding.domain(name)
        if fixed is None and domain is not None and domain.kind in _DETERMINED:
            return sum(self.values(name))
        return self._greatest(name, domain, fixed) * prod(meta.shape)

    def values(self, name: str) -> tuple[Any, ...]:
        meta = self.binding.inputs[name]
        if meta is None:
            return ()
        fixed = self.binding.values.get(name)
        if isinstance(fixed, tuple):
            return fixed
        domain = self.binding.domain(name)
        if fixed is None and domain is not None and domain.kind == "offsets":
            return _even_offsets(domain.total, meta.shape[0] - 1)
        if fixed is None and domain is not None and domain.kind == "parts":
            offsets = _even_offsets(domain.total, meta.shape[0])
            return tuple(end - start for start, end in pairwise(offsets))
        if domain is not None and domain.kind == "starts":
            return tuple(accumulate(self.values(domain.of), initial=0))[:-1]
        return (self._greatest(name, domain, fixed),) * prod(meta.shape)

    def _greatest(self, name: str, domain: Domain | None, fixed: int | None) -> Any:
        if fixed is not None:
            return fixed
        if domain is None or domain.high is None:
            raise ExpressionError(f"the values of {name} have no upper bound")
        return domain.high - 1


def _even_offsets(total: int, parts: int) -> tuple[int, ...]:
    return tuple(total * i // max(parts, 1) for i in range(parts + 1))


def output_error(op: str, name: str, error: ExpressionError) -> SpecError:
    """An output whose shape or dtype has no value for this call."""
    return SpecError(op, f"{name}: {error}", argument=name)
