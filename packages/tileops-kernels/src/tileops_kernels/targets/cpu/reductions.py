"""Reductions, scans and reducers: here the order of accumulation is a decision.

Sums over the innermost dimension are the only ones that the compiler may reassociate; they are marked one by
one. Everything else accumulates in the order of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tvm import tirx

from .numeric import CType
from .ranges import key
from .regions import (
    Loops,
    Region,
    accumulator_type,
    assign,
    constant_product,
    load,
    loop_variables,
    region,
    row_major,
    zero,
)

if TYPE_CHECKING:
    from .statements import StatementPrinter


@dataclass(frozen=True)
class Combine:
    """How two partial results combine; `clause` is the OpenMP reduction that lets them be reassociated."""

    code: str
    clause: str
    identity: Callable[[CType], str]


def _lowest(t: CType) -> str:
    if t.is_float:
        return f"(-({t.value})INFINITY)"
    return f"{t.value[:-2].upper()}_MIN" if t.is_signed else f"({t.value})0"


def _highest(t: CType) -> str:
    return (
        f"({t.value})INFINITY"
        if t.is_float
        else "true"
        if t.name == "bool"
        else f"({t.value}){t.value[:-2].upper()}_MAX"
    )


COMBINES: Final = {
    "sum": Combine("{a} = ({t})({a} + {x})", "+", zero),
    "max": Combine("{a} = {x} > {a} ? {x} : {a}", "max", _lowest),
    "min": Combine("{a} = {x} < {a} ? {x} : {a}", "min", _highest),
    "bitand": Combine(
        "{a} = ({t})({a} & {x})", "&", lambda t: "true" if t.name == "bool" else f"({t.value})~({t.value})0"
    ),
    "bitor": Combine("{a} = ({t})({a} | {x})", "|", zero),
    "bitxor": Combine("{a} = ({t})({a} ^ {x})", "^", zero),
}
_OF_MAGNITUDE: Final = {"abssum": "sum", "absmax": "max"}


def combine_line(combine: Combine, accumulator: str, value: str, t: CType) -> str:
    return combine.code.format(a=accumulator, x=value, t=t.value) + ";"


def reduce(p: StatementPrinter, call: tirx.Call) -> None:
    source, target = region(call.args[0]), region(call.args[1])
    kind, dim, clear = str(call.args[2].value), int(call.args[3]), call.args[4]
    keep_nan = bool(int((call.annotations or {}).get("nan_propagate", 0)))
    combine = COMBINES[_OF_MAGNITUDE.get(kind, kind)]
    variables = loop_variables(source.extents)
    source_at = [m + v for m, v in zip(source.mins, variables, strict=True)]
    kept = [d for d in range(len(variables)) if d != dim]
    if len(target.extents) == len(source.extents):
        target_at = [m if d == dim else m + variables[d] for d, m in enumerate(target.mins)]
    elif kept:
        target_at = [m + variables[d] for d, m in zip(kept, target.mins, strict=True)]
    else:
        target_at = list(target.mins)
    plan = _Reduction(
        p,
        source,
        target,
        source_at,
        target_at,
        variables,
        dim,
        kind in _OF_MAGNITUDE,
        combine,
        keep_nan,
        clear,
    )
    plan.innermost() if dim == len(variables) - 1 else plan.outer()


@dataclass(frozen=True)
class _Reduction:
    p: StatementPrinter
    source: Region
    target: Region
    source_at: list
    target_at: list
    variables: list
    dim: int
    magnitude: bool
    combine: Combine
    keep_nan: bool
    clear: object

    @property
    def t(self) -> CType:
        return accumulator_type(self.target.buffer.dtype)

    def _initial(self) -> str:
        fresh, old = self.combine.identity(self.t), load(self.p, self.target.buffer, self.target_at, self.t)
        if self.magnitude:
            fresh = zero(self.t)
        if isinstance(self.clear, tirx.IntImm):
            return fresh if self.clear.value else old
        return f"({self.p.expressions.value(self.clear)} ? {fresh} : {old})"

    def _element(self) -> str:
        code = load(self.p, self.source.buffer, self.source_at, self.t)
        return f"tl_abs({code})" if self.magnitude else code

    def innermost(self) -> None:
        """One accumulator per output; only the loop over the last dimension may be reassociated."""
        p, ctx, t = self.p, self.p.ctx, self.t
        accumulator, nan = ctx.fresh("acc"), ctx.fresh("nan")
        keep_nan = self.keep_nan and t.is_float
        with Loops(p, self.variables[: self.dim], self.source.extents[: self.dim]):
            ctx.line(f"{t.value} {accumulator} = {self._initial()};")
            if keep_nan:
                ctx.line(f"int {nan} = {accumulator} != {accumulator};")
            also = f" reduction(|:{nan})" if keep_nan else ""
            ctx.line(f"#pragma omp simd reduction({self.combine.clause}:{accumulator}){also}")
            with Loops(p, self.variables[self.dim :], self.source.extents[self.dim :]):
                ctx.line(f"const {t.value} tl_x = {self._element()};")
                ctx.line(combine_line(self.combine, accumulator, "tl_x", t))
                if keep_nan:
                    ctx.line(f"{nan} |= tl_x != tl_x;")
            if keep_nan:
                ctx.line(f"if ({nan}) {accumulator} = NAN;")
            assign(p, self.target.buffer, self.target_at, accumulator)

    def outer(self) -> None:
        """A row of accumulators, in order: vectorises over the dimensions behind, without reassociation."""
        p, ctx, t, dim = self.p, self.p.ctx, self.t, self.dim
        inner, extents = self.variables[dim + 1 :], self.source.extents[dim + 1 :]
        count = constant_product(p, extents)
        with Loops(p, self.variables[:dim], self.source.extents[:dim]):
            row = ctx.scratch("accs", t.storage, count, t.bytes)
            at = f"{row}[{row_major(p, inner, extents)}]"
            with Loops(p, inner, extents, independent=True):
                ctx.line(f"{at} = {self._initial()};")
            with (
                Loops(p, [self.variables[dim]], [self.source.extents[dim]]),
                Loops(p, inner, extents, independent=True),
            ):
                ctx.line(f"const {t.value} tl_x = {self._element()};")
                ctx.line(f"{t.value} tl_a = {at};")
                update = combine_line(self.combine, "tl_a", "tl_x", t)
                if self.keep_nan and t.is_float:
                    update = f"if (tl_x != tl_x || tl_a != tl_a) tl_a = NAN; else {update}"
                ctx.line(update)
                ctx.line(f"{at} = tl_a;")
            with Loops(p, inner, extents, independent=True):
                assign(p, self.target.buffer, self.target_at, at)


def scan(kind: str) -> Callable:
    def printer(p: StatementPrinter, call: tirx.Call) -> None:
        source, target = region(call.args[0]), region(call.args[1])
        dim, reverse = int(call.args[2]), bool(int(call.args[3]))
        t, combine = accumulator_type(target.buffer.dtype), COMBINES[kind]
        variables = loop_variables(source.extents)
        offsets = list(variables)
        if reverse:
            offsets[dim] = source.extents[dim] - 1 - variables[dim]
        at = [[m + o for m, o in zip(r.mins, offsets, strict=True)] for r in (source, target)]
        inner, extents = variables[dim + 1 :], source.extents[dim + 1 :]
        with Loops(p, variables[:dim], source.extents[:dim]):
            row = p.ctx.scratch("accs", t.storage, constant_product(p, extents), t.bytes)
            for v in inner:
                p.ctx.name(v)
            place = f"{row}[{row_major(p, inner, extents)}]"
            with Loops(p, inner, extents, independent=True):
                p.ctx.line(f"{place} = {combine.identity(t)};")
            with Loops(p, [variables[dim]], [source.extents[dim]]), Loops(p, inner, extents):
                p.ctx.line(f"const {t.value} tl_x = {load(p, source.buffer, at[0], t)};")
                p.ctx.line(combine_line(combine, place, "tl_x", t))
                assign(p, target.buffer, at[1], place)

    return printer


def reducer_init(p: StatementPrinter, call: tirx.Call) -> None:
    target = region(call.args[0])
    storage = p.ctx.storage_of(target.buffer)
    variables = loop_variables(target.extents)
    combine = COMBINES[p.ctx.reducers[key(target.buffer.data)]]
    start = (
        p.expressions.value(call.args[1])
        if len(call.args) > 1
        else combine.identity(accumulator_type(target.buffer.dtype))
    )
    with Loops(p, variables, target.extents):
        assign(p, target.buffer, variables, start)
    assert not storage.is_global


def reducer_update(p: StatementPrinter, call: tirx.Call) -> None:
    target = call.args[0]
    t = accumulator_type(target.buffer.dtype)
    combine = COMBINES[p.ctx.reducers[key(target.buffer.data)]]
    old = load(p, target.buffer, target.indices, t)
    with p.ctx.block(""):
        p.ctx.line(f"const {t.value} tl_x = {p.expressions.as_type(call.args[1], t)};")
        p.ctx.line(f"{t.value} tl_a = {old};")
        p.ctx.line(combine_line(combine, "tl_a", "tl_x", t))
        assign(p, target.buffer, target.indices, "tl_a")


def finalize_in_place(_p: StatementPrinter, _call: tirx.Call) -> None:
    """The older form: the accumulator is the result."""
