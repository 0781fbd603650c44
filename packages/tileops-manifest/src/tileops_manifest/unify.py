"""Unification: real shapes and dtypes against an entry's declarations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tileops_manifest.errors import DtypeError, ExpressionError, ParamError, ShapeError, SpecError
from tileops_manifest.expr import Expression
from tileops_manifest.shapes import Alternative, Conflict, Item, Unsolved
from tileops_manifest.tensors import DimSpec, TensorMeta, TensorSpec

Metas = Mapping[str, TensorMeta | None]


def flatten(dtypes: Any) -> tuple[str, ...]:
    """The names in a dtype expression's value: one name, or a nested tuple of them."""
    if isinstance(dtypes, tuple):
        return tuple(name for part in dtypes for name in flatten(part))
    return (dtypes,)


class Unifier:
    """Binds dims, packs and dtype variables in ``env`` from the inputs of one call."""

    def __init__(self, op: str, dims: Mapping[str, DimSpec], env: dict[str, Any]) -> None:
        self.op = op
        self.dims = dims
        self.env = env
        self.origins: dict[str, str] = {}
        self.bound_dtypes: dict[str, str] = {}

    def bind_dtype(self, param: str, variable: str, dtype: str, allowed: tuple[str, ...]) -> None:
        """Bind a dtype variable that a param names. Raises ParamError for a dtype that it cannot be."""
        if dtype not in allowed:
            expected = " | ".join(allowed)
            raise ParamError(
                self.op,
                f"{param} is {dtype}, expected {expected}",
                argument=param,
                got=dtype,
                expected=expected,
                rule=f"{variable}: {expected}",
            )
        self.bound_dtypes[variable] = dtype
        self.origins[variable] = param

    def bind_param(self, param: str, name: str, value: Any) -> None:
        """Bind a dim or pack that a param commits to."""
        pack = self.dims[name].pack
        if pack != isinstance(value, tuple):
            value = (value,) if pack else value
        self.env[name] = value
        self.origins[name] = param

    def shapes(self, specs: Mapping[str, TensorSpec], metas: Metas) -> None:
        """Match every given input, inputs whose packs are still unknown last. Raises ShapeError."""
        given = {name: meta for name, meta in metas.items() if meta is not None}
        pending = [name for name in specs if name in given]
        deferred: list[tuple[str, int, Item]] = []
        while pending:
            waiting = []
            for name in pending:
                try:
                    deferred += self._match(specs[name], given[name])
                except Unsolved:
                    waiting.append(name)
            if len(waiting) == len(pending):
                raise ShapeError(
                    self.op, f"the packs of {', '.join(waiting)} cannot be told apart", argument=waiting[0]
                )
            pending = waiting
        for name, axis, item in deferred:
            self._check_expression(specs[name], given[name], axis, item)
        self._check_domains()

    def _match(self, spec: TensorSpec, meta: TensorMeta) -> list[tuple[str, int, Item]]:
        alternative = spec.pattern.select(self.env)
        shape = meta.shape
        lengths = self._lengths(spec, alternative, shape)
        deferred = []
        axis = 0
        for item, length in zip(alternative.items, lengths, strict=True):
            try:
                if item.pack:
                    self._bind(item.name, shape[axis : axis + length], f"{spec.name}.shape", axis)
                elif item.solve is not None and item.name not in self.env:
                    self._bind(
                        item.name, item.solve(shape[axis], self.env), f"{spec.name}.shape[{axis}]", axis
                    )
                elif item.expression is not None:
                    deferred.append((spec.name, axis, item))
                else:
                    self._bind(item.name, shape[axis], f"{spec.name}.shape[{axis}]", axis)
            except Conflict as conflict:
                raise self._shape_error(spec, shape, alternative, conflict.detail) from None
            axis += length
        return deferred

    def _lengths(self, spec: TensorSpec, alternative: Alternative, shape: tuple[Any, ...]) -> list[int]:
        """How many axes each item takes. Raises Unsolved when two packs have no known length."""
        lengths: list[int | None] = []
        least = 0
        for item in alternative.items:
            length: int | None = 1
            if item.pack:
                bound = self.env.get(item.name)
                length = len(bound) if bound is not None else self.dims[item.name].rank  # type: ignore[index]
                least += self.dims[item.name].min_rank if length is None else 0  # type: ignore[index]
            lengths.append(length)
        fixed = sum(length for length in lengths if length is not None)
        free = lengths.count(None)
        if len(shape) < fixed + least or (free == 0 and len(shape) != fixed):
            raise self._shape_error(spec, shape, alternative, "")
        if free > 1:
            raise Unsolved
        return [len(shape) - fixed if length is None else length for length in lengths]

    def _bind(self, name: str | None, value: Any, origin: str, axis: int) -> None:
        assert name is not None
        if name not in self.env or self.env[name] is None:
            if not isinstance(value, tuple) and value < 0:
                raise Conflict(axis, f"{name} >= 0")
            self.env[name] = value
            self.origins[name] = origin
            return
        known = self.env[name]
        if isinstance(known, tuple):
            same = len(known) == len(value) and all(a == b for a, b in zip(known, value, strict=True))
        else:
            same = known == value
        if not same:
            raise Conflict(axis, f"{name} = {known}")

    def _check_expression(self, spec: TensorSpec, meta: TensorMeta, axis: int, item: Item) -> None:
        shape = meta.shape
        alternative = spec.pattern.select(self.env)
        try:
            expected = item.expression.evaluate(self.env)  # type: ignore[union-attr]
        except ExpressionError as error:
            raise ShapeError(self.op, f"{spec.name}.shape: {error}", argument=spec.name, got=shape) from None
        if not shape[axis] == expected:
            raise self._shape_error(spec, shape, alternative, f"{item.text} = {expected}")

    def _check_domains(self) -> None:
        for name, spec in self.dims.items():
            value = self.env.get(name)
            if value is None:
                continue
            origin = self.origins.get(name, name)
            sizes = value if spec.pack else (value,)
            if any(size < spec.min for size in sizes):
                raise ShapeError(
                    self.op,
                    f"{origin} is {value}, expected {name} of at least {spec.min}",
                    argument=origin.split(".")[0],
                    got=value,
                    expected=spec.min,
                    rule=f"{name} >= {spec.min}",
                )
            if spec.pack and (len(value) < spec.min_rank or spec.rank not in (None, len(value))):
                needed = f"{spec.rank}" if spec.rank is not None else f"at least {spec.min_rank}"
                raise ShapeError(
                    self.op,
                    f"{origin} is {value}, expected {name} of {needed} dims",
                    argument=origin.split(".")[0],
                    got=value,
                    expected=needed,
                    rule=f"rank of {name}",
                )

    def _shape_error(
        self, spec: TensorSpec, shape: tuple[Any, ...], alternative: Alternative, why: str
    ) -> ShapeError:
        expected, text = self._expected(spec.name, alternative, why)
        message = f"{spec.name}.shape is {tuple(shape)}, expected {text}"
        return ShapeError(
            self.op, message, argument=spec.name, got=tuple(shape), expected=expected, rule=str(spec.shape)
        )

    def _expected(self, owner: str, alternative: Alternative, why: str) -> tuple[Any, str]:
        """What the shape should be: the full shape where one dim says it, else the pattern and known dims.

        Dims that the offending input itself bound explain nothing and are left out.
        """
        names = [item.name for item in alternative.items if item.name is not None]
        known = {
            name: self.env[name]
            for name in names
            if self.env.get(name) is not None and not self.origins.get(name, "").startswith(f"{owner}.")
        }
        if len(alternative.items) == 1 and names and names[0] in known and alternative.items[0].solve is None:
            value = known[names[0]]
            full = tuple(value) if isinstance(value, tuple) else (value,)
            label = self.origins[names[0]] if self._from_param(names[0]) else alternative.text
            return full, f"{label} = {full}"
        facts = {f"{name} = {value}": f" from {self.origins[name]}" for name, value in known.items()}
        details = ([why] if why and why not in facts else []) + [
            fact + origin for fact, origin in facts.items()
        ]
        return alternative.text, alternative.text + (f" with {', '.join(details)}" if details else "")

    def _from_param(self, name: str) -> bool:
        return "." not in self.origins.get(name, ".")

    def dtypes(
        self,
        specs: Mapping[str, TensorSpec],
        metas: Metas,
        variables: Mapping[str, tuple[str, ...]],
        of_input: Mapping[str, str | Expression],
    ) -> dict[str, str]:
        """Bind dtype variables from the inputs, then check the dtypes that follow. Raises DtypeError."""
        bound = dict(self.bound_dtypes)
        origins = {variable: self.origins[variable] for variable in bound}
        for name, source in of_input.items():
            meta = metas[name]
            if meta is None or not isinstance(source, str):
                continue
            if source not in bound:
                if meta.dtype not in variables[source]:
                    raise self._dtype_error(specs[name], meta, variables[source], "")
                bound[source] = meta.dtype
                origins[source] = name
            elif meta.dtype != bound[source]:
                raise self._dtype_error(specs[name], meta, (bound[source],), f"{source} of {origins[source]}")
        for name in variables:
            if name not in specs:
                self.env[name] = bound.get(name)
        for name, source in of_input.items():
            meta = metas[name]
            if meta is None or isinstance(source, str):
                continue
            allowed = flatten(source.evaluate(self.env))
            if meta.dtype not in allowed:
                rule = str(source)
                raise self._dtype_error(specs[name], meta, allowed, "" if rule == allowed[0] else rule)
        return bound

    def _dtype_error(
        self, spec: TensorSpec, meta: TensorMeta, allowed: tuple[str, ...], why: str
    ) -> SpecError:
        expected = " | ".join(allowed)
        text = f"{why} = {expected}" if why else expected
        message = f"{spec.name}.dtype is {meta.dtype}, expected {text}"
        return DtypeError(
            self.op, message, argument=spec.name, got=meta.dtype, expected=expected, rule=spec.dtype
        )
