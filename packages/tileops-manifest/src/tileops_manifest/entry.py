"""An entry of the manifest: one operator, ready to check calls."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tileops_manifest.binding import Binding, output_error
from tileops_manifest.dtypes import DTYPES
from tileops_manifest.errors import (
    DtypeError,
    ExpressionError,
    MissingInputError,
    ParamError,
    RuleError,
    UnknownInputError,
    UnknownRowError,
    suggest,
)
from tileops_manifest.expr import Expression, Scope, compile_expression
from tileops_manifest.model import NumericsModel, OpModel, StatusModel
from tileops_manifest.params import Mismatch
from tileops_manifest.realise import realise
from tileops_manifest.tensors import (
    DimSpec,
    DtypeItem,
    ParamSpec,
    Roofline,
    Row,
    RuleSpec,
    TensorMeta,
    TensorSpec,
)
from tileops_manifest.unify import Unifier, flatten


@dataclass(frozen=True)
class Case:
    """One workload row in one dtype assignment; unpacks to ``(row, dtypes)``."""

    entry: Entry
    row: Row
    dtypes: Mapping[str, str]
    item: DtypeItem

    @property
    def id(self) -> str:
        """``<label>-<dtype>``, unique within the entry."""
        dtypes = self.item if isinstance(self.item, str) else "-".join(self.item.values())
        return f"{self.row.label}-{dtypes}" if dtypes else self.row.label

    def bind(self) -> Binding:
        """The binding of this case."""
        return self.entry.bind_row(self.row, self.dtypes)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.row, self.dtypes))


def function_name(op: str) -> str:
    """Functional name of an op: ``RMSNormFwdOp`` is ``rms_norm``, ``...BwdOp`` keeps ``_bwd``.

    >>> [function_name(op) for op in ("RMSNormFwdOp", "MultiHeadAttentionBwdOp", "FP8QuantFwdOp")]
    ['rms_norm', 'multi_head_attention_bwd', 'fp8_quant']
    """
    stem = op.removesuffix("Op").removesuffix("Fwd")
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", stem).lower()


@dataclass(frozen=True, eq=False)
class Entry:
    """One operator's declaration, compiled.

    ``bind`` checks a call and infers its outputs; ``bind_dims`` does the same from sizes; ``cases`` walks the
    workload rows. Entries are immutable and safe to share between threads.

    >>> from tileops_manifest import TensorMeta, load_manifest
    >>> softmax = load_manifest()["SoftmaxFwdOp"]
    >>> softmax.bind({"x": TensorMeta((4, 8), "float16")}, {"dim": -1}).outputs["output"]
    TensorMeta(shape=(4, 8), dtype='float16')
    """

    name: str
    family: str
    model: OpModel
    file: str
    dims: Mapping[str, DimSpec]
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    params: Mapping[str, ParamSpec]
    dtypes: Mapping[str, tuple[str, ...]]
    lets: Mapping[str, Expression]
    rules: tuple[RuleSpec, ...]
    roofline: Roofline
    workloads: tuple[Row, ...]
    scope: Scope
    input_dtypes: Mapping[str, str | Expression]
    output_dtypes: Mapping[str, Expression]
    intermediates: Mapping[str, Expression]

    def __repr__(self) -> str:
        return f"<Entry {self.name}>"

    @property
    def summary(self) -> str:
        """One line: what the op computes."""
        return self.model.summary

    @property
    def source(self) -> str:
        """Paper or document that defines the op; may be empty."""
        return self.model.source

    @property
    def ref_api(self) -> str:
        """Dotted name of the public function that the op mirrors, or ``none``."""
        return self.model.ref_api

    @property
    def numerics(self) -> NumericsModel:
        """The numerics contract."""
        return self.model.numerics

    @property
    def kernel_map(self) -> Mapping[str, str]:
        """Dispatch key to kernel class name; keys are opaque."""
        return self.model.kernel_map

    @property
    def status(self) -> StatusModel:
        """``spec-only`` or ``implemented``, per target."""
        return self.model.status

    @cached_property
    def function_name(self) -> str:
        """Name of the op's functional form."""
        return function_name(self.name)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the entry's content without its status, which only follows from evidence."""
        content = _without_unused(self.model.model_dump(mode="json", by_alias=True, exclude={"status"}))
        text = json.dumps([self.name, self.family, content], separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def row(self, label: str) -> Row:
        """The workload row with this label. Raises UnknownRowError."""
        for row in self.workloads:
            if row.label == label:
                return row
        raise UnknownRowError(self.name, label, (row.label for row in self.workloads))

    def cases(self) -> Iterator[Case]:
        """Every workload row in every dtype assignment that it names."""
        for row in self.workloads:
            for item in row.dtypes:
                yield Case(self, row, self.resolve_dtypes(item), item)

    def compile(self, expr: str) -> Expression:
        """Compile an expression over this entry's names. Raises ExpressionError."""
        return compile_expression(expr, self.scope)

    def canonical_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Params with defaults filled in and values checked, in declaration order.

        Sequences become tuples, ``float`` takes ints, ``int`` takes no bool. Raises ParamError.
        """
        for name in params:
            if name not in self.params:
                message = f"unknown param {name!r}{suggest(name, self.params)}"
                raise ParamError(self.name, message, argument=name, expected=tuple(self.params))
        return {name: self._canonical_param(spec, params) for name, spec in self.params.items()}

    def _canonical_param(self, spec: ParamSpec, params: Mapping[str, Any]) -> Any:
        if spec.name not in params:
            if spec.required:
                message = f"param {spec.name!r} is missing, expected {spec.type}"
                raise ParamError(self.name, message, argument=spec.name, expected=str(spec.type))
            return spec.default
        value = params[spec.name]
        try:
            canonical = spec.type.canonical(value)
        except Mismatch as mismatch:
            expected = ", ".join(filter(None, (str(spec.type), str(mismatch))))
            message = f"{spec.name} is {_shown(value)} ({type(value).__name__}), expected {expected}"
            raise ParamError(
                self.name,
                message,
                argument=spec.name,
                got=value,
                expected=expected,
                rule=str(spec.type),
            ) from None
        if spec.choices is not None and canonical not in spec.choices:
            choices = ", ".join(repr(choice) for choice in spec.choices)
            message = f"{spec.name} is {_shown(value)}, expected one of {choices}"
            raise ParamError(
                self.name,
                message,
                argument=spec.name,
                got=value,
                expected=spec.choices,
                rule=f"one of {choices}",
            )
        return canonical

    def bind(self, inputs: Mapping[str, TensorMeta | None], params: Mapping[str, Any]) -> Binding:
        """Check a call and infer its outputs.

        Raises ParamError, MissingInputError, UnknownInputError, DtypeError, ShapeError or RuleError, each
        naming the argument, what was given, what was expected and the declaration that says so.
        """
        return self._bind(self._metas(inputs), self.canonical_params(params), {})

    def bind_row(self, row: Row, dtypes: DtypeItem) -> Binding:
        """The binding of a workload row in one of its dtype assignments."""
        metas, params = realise(self, row.dims, row.params, dtypes, row.with_)
        return self._bind(metas, params, dict(row.values))

    def bind_dims(
        self,
        dims: Mapping[str, Any],
        params: Mapping[str, Any],
        dtypes: DtypeItem,
        with_: Iterable[str] | None = None,
    ) -> Binding:
        """The binding of a call given by its sizes; ``with_`` names the optional inputs that are given.

        Raises DimError for missing, unknown or negative dims, and what ``bind`` raises.
        """
        metas, canonical = realise(self, dims, params, dtypes, tuple(with_ or ()))
        return self._bind(metas, canonical, {})

    def resolve_dtypes(self, item: DtypeItem) -> dict[str, str]:
        """A full dtype assignment: a name sets the first variable; others take their first alternative.

        Raises DtypeError for an unknown variable or a dtype that the variable cannot be.
        """
        given = dict(item) if not isinstance(item, str) else {next(iter(self.dtypes), item): item}
        for name, dtype in given.items():
            if name not in self.dtypes:
                message = f"unknown dtype variable {name!r}{suggest(name, self.dtypes)}"
                raise DtypeError(self.name, message, argument=name, expected=tuple(self.dtypes))
            if dtype not in self.dtypes[name]:
                expected = " | ".join(self.dtypes[name])
                raise DtypeError(
                    self.name,
                    f"{name} is {dtype}, expected {expected}",
                    argument=name,
                    got=dtype,
                    expected=expected,
                )
        return {name: given.get(name, alternatives[0]) for name, alternatives in self.dtypes.items()}

    def _metas(self, inputs: Mapping[str, TensorMeta | None]) -> dict[str, TensorMeta | None]:
        for name in inputs:
            if name not in self.inputs:
                message = f"unknown input {name!r}{suggest(name, self.inputs)}"
                raise UnknownInputError(self.name, message, argument=name, expected=tuple(self.inputs))
        metas = {name: inputs.get(name) for name in self.inputs}
        for name, spec in self.inputs.items():
            if metas[name] is None and not spec.optional:
                message = f"input {name!r} is missing, expected {spec.dtype} {spec.shape}"
                raise MissingInputError(
                    self.name, message, argument=name, expected=f"{spec.dtype} {spec.shape}"
                )
        return metas

    def _bind(
        self, metas: dict[str, TensorMeta | None], params: dict[str, Any], values: dict[str, Any]
    ) -> Binding:
        env: dict[str, Any] = {**params, **metas}
        of_params, *rules_after = self._rules
        self._check_rules(of_params, env)
        unifier = Unifier(self.name, self.dims, env)
        for name, spec in self.params.items():
            if spec.binds in self.dtypes and params[name] is not None:
                unifier.bind_dtype(name, spec.binds, params[name], self.dtypes[spec.binds])
            elif spec.binds is not None and params[name] is not None:
                unifier.bind_param(name, spec.binds, params[name])
        dtypes = unifier.dtypes(self.inputs, metas, self.dtypes, self.input_dtypes)
        unifier.shapes(self.inputs, metas)
        dims = {
            name: env[name] for name, spec in self.dims.items() if not spec.pack and env.get(name) is not None
        }
        packs = {
            name: env[name] for name, spec in self.dims.items() if spec.pack and env.get(name) is not None
        }
        for name in self.dims:
            env.setdefault(name, None)
        for name, spec in self.params.items():
            if spec.binds is not None and params[name] is None:
                params[name] = env[name] = env[spec.binds]
        outputs = self._finish(env, rules_after)
        return Binding(self, dims, packs, dtypes, params, metas, outputs, values, env)

    @cached_property
    def _rules(self) -> tuple[tuple[RuleSpec, ...], ...]:
        """Rules on params alone, which guard the shapes, then the others by the number of lets that must have
        values first: a rule guards the lets after those.
        """
        known = {name for name, spec in self.params.items() if spec.binds is None}
        place = {name: number for number, name in enumerate(self.lets, start=2)}

        def stage(rule: RuleSpec) -> int:
            if rule.expr.names <= known and not rule.expr.tensors:
                return 0
            return max((place.get(name, 1) for name in rule.expr.names), default=1)

        stages = [stage(rule) for rule in self.rules]
        return tuple(
            tuple(rule for rule, at in zip(self.rules, stages, strict=True) if at == count)
            for count in range(len(self.lets) + 2)
        )

    def _finish(
        self, env: dict[str, Any], rules_after: Sequence[tuple[RuleSpec, ...]]
    ) -> dict[str, TensorMeta]:
        unguarded, *guarded = rules_after
        self._check_rules(unguarded, env)
        for (name, expression), rules in zip(self.lets.items(), guarded, strict=True):
            try:
                env[name] = expression.evaluate(env)
            except ExpressionError as error:
                raise output_error(self.name, name, error) from None
            self._check_rules(rules, env)
        outputs = {}
        for name, spec in self.outputs.items():
            try:
                shape = tuple(spec.shape_expression.evaluate(env))
                dtype = flatten(self.output_dtypes[name].evaluate(env))[0]
                if dtype not in DTYPES:
                    raise ExpressionError(f"`{spec.dtype}` is not a dtype but {dtype!r}")
            except ExpressionError as error:
                raise output_error(self.name, name, error) from None
            outputs[name] = env[name] = TensorMeta(shape, dtype)
        return outputs

    def _check_rules(self, rules: tuple[RuleSpec, ...], env: dict[str, Any]) -> None:
        for rule in rules:
            try:
                holds = rule.expr.evaluate(env)
            except ExpressionError as error:
                raise RuleError(self.name, f"{rule.message}: {error}", rule=rule.expr.source) from None
            if not holds:
                names = sorted(rule.expr.names | rule.expr.tensors)
                got = {name: env[name] for name in names}
                text = ", ".join(f"{name} = {_short(value)}" for name, value in got.items())
                raise RuleError(
                    self.name,
                    f"{rule.message}: `{rule.expr}` does not hold with {text}",
                    argument=names[0] if names else None,
                    got=got,
                    expected=rule.expr.source,
                    rule=rule.expr.source,
                )


# Words that the grammar gained later: they leave the digests of entries that do not use them as they were.
_LATER_WORDS = frozenset({"intermediates", "longest", "of", "filler", "disjoint"})


def _without_unused(content: Any) -> Any:
    if isinstance(content, list):
        return [_without_unused(item) for item in content]
    if not isinstance(content, dict):
        return content
    return {
        key: _without_unused(value)
        for key, value in content.items()
        if key not in _LATER_WORDS or value not in (None, {})
    }


def _shown(value: Any, most: int = 120) -> str:
    """A caller's value in a message: short, and whatever it is (`repr` of an int of 5000 digits raises)."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - any class may come here, with any __repr__
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _short(value: Any) -> str:
    if isinstance(value, TensorMeta):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value)
