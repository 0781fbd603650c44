"""From a validated record to an entry: expressions compiled, names bound, all problems collected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

from tileops_manifest.dtypes import DTYPES, is_integral
from tileops_manifest.entry import Entry
from tileops_manifest.errors import ExpressionError, suggest
from tileops_manifest.expr import Expression, Scope, compile_dtype, compile_expression
from tileops_manifest.model import DimModel, OpModel, ValuesModel
from tileops_manifest.params import Mismatch, parse_type
from tileops_manifest.shapes import ShapePattern, compile_pattern
from tileops_manifest.tensors import (
    DimSpec,
    ParamSpec,
    Roofline,
    Row,
    RuleSpec,
    TensorMeta,
    TensorSpec,
    Values,
)
from tileops_manifest.unify import flatten

Path = tuple[str | int, ...]
Report = Callable[[Path, int | None, str], None]  # path inside the entry, offset in that scalar, message

# Bounds that each kind of integer input needs, beyond the optional `low`.
_NEEDS = {
    "any": frozenset(),
    "range": frozenset({"high"}),
    "sorted": frozenset({"high"}),
    "distinct": frozenset({"high"}),
    "lengths": frozenset({"high"}),
    "permutation": frozenset({"high"}),
    "page_table": frozenset({"high"}),
    "offsets": frozenset({"total"}),
    "parts": frozenset({"total"}),
    "starts": frozenset({"of"}),
}
_MAY = {kind: needs | ({"low", "above"} if "high" in needs else set()) for kind, needs in _NEEDS.items()}
_MAY["offsets"] |= {"longest"}
_MAY["distinct"] |= {"filler"}
_MAY["page_table"] |= {"disjoint"}
_WORDS = ("low", "high", "above", "total", "longest", "of", "filler", "disjoint")


def build_entry(name: str, family: str, model: OpModel, file: str, report: Report) -> Entry | None:
    """Compile one entry. Problems go to ``report``; None when there was any."""
    builder = _Builder(name, family, model, file, report)
    entry = builder.build()
    return None if builder.failed else entry


class _Builder:
    def __init__(self, name: str, family: str, model: OpModel, file: str, report: Report) -> None:
        self.name = name
        self.family = family
        self.model = model
        self.file = file
        self._report = report
        self.failed = False
        self.params = frozenset(model.params)
        self.inputs = frozenset(model.inputs)
        self.tensors = self.inputs | frozenset(model.outputs)
        self.dtypes: dict[str, tuple[str, ...]] = {}
        self.input_dtypes: dict[str, str | Expression] = {}

    def problem(self, path: Path, message: str, offset: int | None = None) -> None:
        self.failed = True
        self._report(path, offset, message)

    def compile(
        self, source: str, scope: Scope, path: Path, how: Callable = compile_expression
    ) -> Expression | None:
        try:
            return how(source, scope)
        except ExpressionError as error:
            self.problem(path, str(error), error.offset)
            return None

    def build(self) -> Entry | None:
        model = self.model
        self._dtype_variables()
        patterns = {name: self._pattern(name, spec.shape) for name, spec in model.inputs.items()}
        dims = self._dims(patterns)
        self._disjoint_names(dims)
        values = frozenset(dims) | self.params | frozenset(model.dtypes)
        self._input_dtypes(Scope(self.params | frozenset(model.dtypes), self.inputs))
        lets, values = self._lets(values)
        scope = Scope(values, self.inputs)
        full = Scope(values, self.tensors, data=True)
        outputs, output_dtypes = self._outputs(scope)
        inputs = self._inputs(patterns, scope)
        params = self._params(dims)
        rules = tuple(
            RuleSpec(expr, rule.message)
            for i, rule in enumerate(model.rules)
            if (expr := self.compile(rule.expr, scope, ("rules", i, "expr")))
        )
        flops = self.compile(model.roofline.flops, full, ("roofline", "flops"))
        traffic = None
        if model.roofline.bytes is not None:
            traffic = self.compile(model.roofline.bytes, full, ("roofline", "bytes"))
        intermediates = self._intermediates(scope)
        rows = self._rows()
        if self.failed:
            return None
        return Entry(
            name=self.name,
            family=self.family,
            model=model,
            file=self.file,
            dims=MappingProxyType(dims),
            inputs=MappingProxyType(inputs),
            outputs=MappingProxyType(outputs),
            params=MappingProxyType(params),
            dtypes=MappingProxyType(self.dtypes),
            lets=MappingProxyType(lets),
            rules=rules,
            roofline=Roofline(flops, traffic),  # type: ignore[arg-type]
            workloads=rows,
            scope=full,
            input_dtypes=MappingProxyType(self.input_dtypes),
            output_dtypes=MappingProxyType(output_dtypes),
            intermediates=MappingProxyType(intermediates),
        )

    def _dtype_variables(self) -> None:
        for name, source in self.model.dtypes.items():
            expression = self.compile(source, Scope(frozenset()), ("dtypes", name), compile_dtype)
            if expression is not None:
                self._declare_dtypes(name, flatten(expression.evaluate({})), ("dtypes", name))

    def _declare_dtypes(self, name: str, dtypes: tuple[str, ...], path: Path) -> None:
        unknown = [dtype for dtype in dtypes if dtype not in DTYPES]
        if unknown or len(set(dtypes)) != len(dtypes):
            self.problem(path, f"not a union of distinct dtypes: {' | '.join(map(str, dtypes))}")
            return
        self.dtypes[name] = dtypes

    def _pattern(self, name: str, source: str) -> ShapePattern | None:
        try:
            return compile_pattern(source, self.params)
        except ExpressionError as error:
            self.problem(("inputs", name, "shape"), str(error), error.offset)
            return None

    def _dims(self, patterns: Mapping[str, ShapePattern | None]) -> dict[str, DimSpec]:
        usable = [pattern for pattern in patterns.values() if pattern is not None]
        packs = {name: None for pattern in usable for name in sorted(pattern.packs)}
        plain = {name: None for pattern in usable for name in sorted(pattern.dims)}
        declared = {key.removeprefix("*"): (key, dim) for key, dim in self.model.dims.items()}
        bound = {spec.binds for spec in self.model.params.values()}
        for name, (key, _) in declared.items():
            if name in bound and name not in packs and name not in plain:
                (packs if key.startswith("*") else plain)[name] = None
        for name, (key, dim) in declared.items():
            self._check_dim(name, key, dim, packs, plain, complete=len(usable) == len(patterns))
        for name in packs:
            if name in plain:
                self.problem(("inputs",), f"{name!r} is used both as a dim and as a pack *{name}")
        ordered = [name for name in declared if name in packs or name in plain]
        ordered += [name for name in (*plain, *packs) if name not in declared]
        return {
            name: DimSpec(name, name in packs, **declared[name][1].model_dump())
            if name in declared
            else DimSpec(name, name in packs)
            for name in dict.fromkeys(ordered)
        }

    def _check_dim(self, name: str, key: str, dim: DimModel, packs: Any, plain: Any, complete: bool) -> None:
        path = ("dims", key)
        right = f"*{name}" if name in packs else name
        if complete and name not in packs and name not in plain:
            self.problem(
                path,
                f"dim {key!r} is in no input's shape and no param binds it{suggest(name, (*packs, *plain))}",
            )
        elif complete and key != right:
            self.problem(path, f"{name!r} is {'a pack' if name in packs else 'one dim'}: write it {right}")
        if not key.startswith("*") and (dim.rank is not None or dim.min_rank):
            self.problem(path, f"rank and min_rank belong to packs, {name!r} is one dim")

    def _disjoint_names(self, dims: Mapping[str, DimSpec]) -> None:
        seen: dict[str, str] = {}
        groups = {
            "inputs": self.model.inputs,
            "outputs": self.model.outputs,
            "params": self.model.params,
            "dtypes": self.model.dtypes,
            "let": self.model.let,
        }
        for group, names in groups.items():
            for name in names:
                if name in seen:
                    self.problem((group, name), f"name {name!r} is already used in {seen[name]}")
                elif name in DTYPES:
                    self.problem((group, name), f"name {name!r} is a dtype")
                else:
                    seen[name] = group
        for name in dims:
            if name in seen:
                self.problem((seen[name], name), f"name {name!r} is also a dim of an input's shape")

    def _input_dtypes(self, scope: Scope) -> None:
        for name, spec in self.model.inputs.items():
            path: Path = ("inputs", name, "dtype")
            if spec.dtype in self.model.dtypes:
                self.input_dtypes[name] = spec.dtype
                continue
            expression = self.compile(spec.dtype, scope, path, compile_dtype)
            if expression is None:
                continue
            if "promote" in spec.dtype or "int_to_float" in spec.dtype:
                self.problem(
                    path, "promotion is for outputs; an input's dtype is a union, a variable or same_as"
                )
            for other in expression.tensors:
                if self.model.inputs[other].optional and not spec.optional:
                    self.problem(path, f"same_as({other}) names an optional input")
            self.input_dtypes[name] = expression
            if not expression.names and not expression.tensors:
                alternatives = flatten(expression.evaluate({}))
                if len(alternatives) > 1:
                    self._declare_dtypes(name, alternatives, path)
                    self.input_dtypes[name] = name

    def _lets(self, values: frozenset[str]) -> tuple[dict[str, Expression], frozenset[str]]:
        lets: dict[str, Expression] = {}
        for name, source in self.model.let.items():
            expression = self.compile(source, Scope(values, self.inputs), ("let", name))
            if expression is not None:
                lets[name] = expression
            values |= {name}
        return lets, values

    def _inputs(self, patterns: Mapping[str, ShapePattern | None], scope: Scope) -> dict[str, TensorSpec]:
        specs = {}
        for name, spec in self.model.inputs.items():
            pattern = patterns[name]
            dtypes = self._possible(self.input_dtypes.get(name))
            values = self._values(name, spec.values, scope)
            if spec.values is None and dtypes and _integers_only(dtypes):
                self.problem(
                    ("inputs", name), "an integer input declares its legal values (`values: any` if all are)"
                )
            when = None
            if isinstance(spec.mutated, str):
                when = self.compile(spec.mutated, scope, ("inputs", name, "mutated"))
            if pattern is not None:
                specs[name] = TensorSpec(
                    name,
                    spec.dtype,
                    dtypes,
                    pattern,
                    spec.doc,
                    spec.optional,
                    spec.mutated is not False,
                    when,
                    None,
                    values,
                )
        return specs

    def _values(self, name: str, values: ValuesModel | None, scope: Scope) -> Values | None:
        if values is None:
            return None
        path: Path = ("inputs", name, "values")
        given = {key for key in _WORDS if getattr(values, key) is not None}
        for key in sorted(_NEEDS[values.kind] - given):
            self.problem(path, f"values of kind {values.kind} need `{key}`")
        for key in sorted(given - _MAY[values.kind]):
            self.problem((*path, key), f"values of kind {values.kind} take no `{key}`")
        for key, other in (("above", values.above), ("of", values.of)):
            if other is not None and other not in self.inputs - {name}:
                self.problem((*path, key), f"{other!r} is not another input{suggest(other, self.inputs)}")
        if values.of in self.inputs and getattr(self.model.inputs[values.of].values, "kind", None) != "parts":
            self.problem((*path, "of"), f"{values.of!r} is not an input whose values are parts")
        low = values.low if values.low is not None or "low" not in _MAY[values.kind] else "0"
        bounds = {
            key: None if source is None else self.compile(source, scope, (*path, key))
            for key, source in (
                ("low", low),
                ("high", values.high),
                ("total", values.total),
                ("longest", values.longest),
            )
        }
        return Values(
            values.kind,
            **bounds,
            above=values.above,
            of=values.of,
            filler=values.filler,
            disjoint=bool(values.disjoint),
        )

    def _outputs(self, scope: Scope) -> tuple[dict[str, TensorSpec], dict[str, Expression]]:
        specs, dtypes = {}, {}
        for name, spec in self.model.outputs.items():
            path: Path = ("outputs", name)
            shape = self.compile(spec.shape, scope, (*path, "shape"))
            dtype = self.compile(spec.dtype, scope, (*path, "dtype"), compile_dtype)
            if spec.alias is not None:
                source = self.model.inputs.get(spec.alias)
                if source is None or source.mutated is False:
                    self.problem((*path, "alias"), f"{spec.alias!r} is not a mutated input")
            if shape is None or dtype is None:
                continue
            if not dtype.names and not dtype.tensors and len(flatten(dtype.evaluate({}))) > 1:
                self.problem((*path, "dtype"), "an output has one dtype: name a variable, a param or same_as")
            dtypes[name] = dtype
            specs[name] = TensorSpec(
                name, spec.dtype, self._possible(dtype), shape, spec.doc, alias=spec.alias
            )
        return specs, dtypes

    def _intermediates(self, scope: Scope) -> dict[str, Expression]:
        compiled = {}
        for name, source in self.model.numerics.intermediates.items():
            path: Path = ("numerics", "intermediates", name)
            expression = self.compile(source, scope, path, compile_dtype)
            if expression is None:
                continue
            if not expression.names and not expression.tensors and len(flatten(expression.evaluate({}))) > 1:
                self.problem(path, "an intermediate has one dtype: name a variable or same_as")
            compiled[name] = expression
        return compiled

    def _possible(self, source: str | Expression | None) -> tuple[str, ...]:
        """Every dtype that a declaration can stand for, over all assignments of the variables."""
        if source is None:
            return ()
        if isinstance(source, str):
            return self.dtypes.get(source, ())
        params = [name for name in self.params if name in source.names]
        domains = {name: self._param_dtypes(name) for name in params}
        variables = {**self.dtypes, **domains}
        found: dict[str, None] = {}
        for assignment in product(*variables.values()):
            env: dict[str, Any] = dict(zip(variables, assignment, strict=True))
            env.update({name: TensorMeta((), self._dtype_in(name, env)) for name in source.tensors})
            try:
                found.update(dict.fromkeys(flatten(source.evaluate(env))))
            except ExpressionError:
                continue  # this assignment has no promotion; a call with it is refused
        return tuple(dtype for dtype in found if dtype is not None)

    def _dtype_in(self, name: str, env: Mapping[str, Any]) -> str:
        source = self.input_dtypes.get(name)
        if isinstance(source, str):
            return env[source]
        if source is None:
            return ""
        inner = dict(env)
        inner.update(
            {other: TensorMeta((), self._dtype_in(other, env)) for other in source.tensors if other != name}
        )
        return flatten(source.evaluate(inner))[0]

    def _param_dtypes(self, name: str) -> tuple[Any, ...]:
        spec = self.model.params[name]
        if "dtype" not in spec.type:
            return (True, False) if spec.type == "bool" else (spec.default,)
        return (*(spec.choices or tuple(DTYPES)), *((None,) if "None" in spec.type else ()))

    def _params(self, dims: Mapping[str, DimSpec]) -> dict[str, ParamSpec]:
        specs = {}
        for name, spec in self.model.params.items():
            path: Path = ("params", name)
            required = "default" not in spec.model_fields_set
            try:
                kind = parse_type(spec.type)
            except ExpressionError as error:
                self.problem((*path, "type"), str(error), error.offset)
                continue
            default = spec.default
            choices = spec.choices
            try:
                default = None if required else kind.canonical(spec.default)
            except Mismatch:
                self.problem((*path, "default"), f"default {spec.default!r} is not of type {spec.type}")
            try:
                choices = None if choices is None else tuple(kind.canonical(choice) for choice in choices)
            except Mismatch:
                self.problem(
                    (*path, "choices"), f"choices {list(choices or ())!r} are not all of type {spec.type}"
                )
            if not required and choices is not None and default not in choices:
                self.problem((*path, "default"), f"default {default!r} is not one of the choices")
            if spec.binds is not None:
                self._check_binds((*path, "binds"), spec.binds, spec.type, dims)
            specs[name] = ParamSpec(
                name, kind, required, default, spec.kw_only, choices, spec.binds, spec.doc, spec.deviation
            )
        self._param_order()
        return specs

    def _check_binds(self, path: Path, name: str, kind: str, dims: Mapping[str, DimSpec]) -> None:
        known = (*dims, *self.model.dtypes)
        if name not in known:
            self.problem(path, f"{name!r} is not a dim, pack or dtype variable{suggest(name, known)}")
        elif ("dtype" in kind) != (name in self.model.dtypes):
            what = "a dtype variable" if name in self.model.dtypes else "a size"
            self.problem(path, f"{name!r} is {what}, a param of type {kind} cannot equal it")

    def _param_order(self) -> None:
        optional_seen = keyword_seen = False
        for name, spec in self.model.params.items():
            required = "default" not in spec.model_fields_set
            if keyword_seen and not spec.kw_only:
                self.problem(("params", name), f"positional param {name!r} follows a keyword-only one")
            elif required and optional_seen and not spec.kw_only:
                self.problem(("params", name), f"required param {name!r} follows one with a default")
            optional_seen |= not required
            keyword_seen |= spec.kw_only

    def _rows(self) -> tuple[Row, ...]:
        seen: set[str] = set()
        rows = []
        for i, row in enumerate(self.model.workloads):
            if row.label in seen:
                self.problem(("workloads", i, "label"), f"label {row.label!r} is used twice in {self.name}")
            seen.add(row.label)
            rows.append(
                Row(
                    row.label,
                    MappingProxyType(dict(row.dims)),
                    MappingProxyType(dict(row.params)),
                    row.dtypes,
                    row.with_,
                    MappingProxyType(dict(row.values)),
                )
            )
        return tuple(rows)


def _integers_only(dtypes: tuple[str, ...]) -> bool:
    return all(is_integral(dtype) or dtype == "bool" for dtype in dtypes) and any(map(is_integral, dtypes))
