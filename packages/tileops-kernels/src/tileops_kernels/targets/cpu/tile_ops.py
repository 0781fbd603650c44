"""Tile operations as plain loops.

Copies, fills and transposes become the `T.Parallel` nest that they stand for and take the same path as one
in the program. Matrix products, reductions and scans are printed directly, since here the order of
accumulation is a decision: sums over the innermost dimension are the only ones that the compiler may
reassociate, and are marked as such one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tvm import tirx

from .numeric import CTYPES, CType, ctype
from .ranges import key, same_expr

if TYPE_CHECKING:
    from .statements import StatementPrinter


@dataclass(frozen=True)
class Region:
    """A box of a buffer."""

    buffer: tirx.Buffer
    mins: tuple
    extents: tuple

    @property
    def moving(self) -> tuple[int, ...]:
        """The dimensions that are longer than one."""
        return tuple(
            d for d, n in enumerate(self.extents) if not (isinstance(n, tirx.IntImm) and n.value == 1)
        )

    def at(self, offsets: Sequence[object]) -> list[object]:
        """Indices of the element at these offsets, one for each dimension that is longer than one."""
        indices, rest = list(self.mins), iter(offsets)
        for d in self.moving:
            indices[d] = indices[d] + next(rest)
        return indices


def region(expr: object) -> Region:
    load = expr.args[0]
    return Region(load.buffer, tuple(load.indices), tuple(expr.args[2:]))


_SCOPE_LEVEL: Final = {"local": 2, "local.fragment": 2, "local.var": 2, "shared": 1, "shared.dyn": 1}


def _loop_variables(extents: Sequence[object]) -> list[tirx.Var]:
    return [tirx.Var(f"i{d}", n.dtype) for d, n in enumerate(extents)]


def _converted(value: object, dtype: object) -> object:
    return value if str(value.dtype) == str(dtype) else tirx.Cast(dtype, value)


# ---- element-wise ----


def _moved(
    p: StatementPrinter, call: tirx.Call, combine: Callable[[object, object], object] | None = None
) -> None:
    """dst = src over a region, or dst = combine(dst, src)."""
    target = region(call.args[1])
    if not (isinstance(call.args[0], tirx.Call) and call.args[0].op.name == "tl.region"):
        source, extents = None, [target.extents[d] for d in target.moving]
    else:
        source = region(call.args[0])
        # The iteration space is that of the side nearer to the registers: only the other may hang over a
        # tensor's edge.
        level = [_SCOPE_LEVEL.get(r.buffer.scope(), 0) for r in (source, target)]
        base = source if level[0] >= level[1] else target
        extents = [base.extents[d] for d in base.moving]
        if len(source.moving) != len(target.moving):
            raise p.ctx.unsupported(
                call.op.name, f"regions of shapes {list(source.extents)} and {list(target.extents)}"
            )
    variables = _loop_variables(extents)
    value = call.args[0] if source is None else tirx.BufferLoad(source.buffer, source.at(variables))
    value = _converted(value, target.buffer.dtype)
    indices = target.at(variables)
    if combine is not None:
        value = combine(tirx.BufferLoad(target.buffer, indices), value)
    p.parallel_loops(variables, extents, tirx.BufferStore(target.buffer, value, indices))


def _copy(p: StatementPrinter, call: tirx.Call) -> None:
    if call.annotations and any(str(k) in ("dst_block", "cluster_mask") for k in call.annotations):
        raise p.ctx.unsupported("a copy between blocks of a cluster")
    _moved(p, call)


def _atomic(combine: Callable[[object, object], object]) -> Callable:
    def printer(p: StatementPrinter, call: tirx.Call) -> None:
        p.ctx.uses_atomics = True
        _moved(p, call, combine)

    return printer


def _fill(p: StatementPrinter, call: tirx.Call) -> None:
    target = region(call.args[0])
    extents = [target.extents[d] for d in target.moving]
    variables = _loop_variables(extents)
    value = _converted(call.args[1], target.buffer.dtype)
    p.parallel_loops(variables, extents, tirx.BufferStore(target.buffer, value, target.at(variables)))


def _transpose(p: StatementPrinter, call: tirx.Call) -> None:
    source, target = region(call.args[0]), region(call.args[1])
    extents = [source.extents[d] for d in source.moving]
    variables = _loop_variables(extents)
    value = _converted(tirx.BufferLoad(source.buffer, source.at(variables)), target.buffer.dtype)
    p.parallel_loops(variables, extents, tirx.BufferStore(target.buffer, value, target.at(variables[::-1])))


# ---- reductions and scans ----


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


def _zero(t: CType) -> str:
    return f"({t.value})0"


COMBINES: Final = {
    "sum": Combine("{a} = ({t})({a} + {x})", "+", _zero),
    "max": Combine("{a} = {x} > {a} ? {x} : {a}", "max", _lowest),
    "min": Combine("{a} = {x} < {a} ? {x} : {a}", "min", _highest),
    "bitand": Combine(
        "{a} = ({t})({a} & {x})", "&", lambda t: "true" if t.name == "bool" else f"({t.value})~({t.value})0"
    ),
    "bitor": Combine("{a} = ({t})({a} | {x})", "|", _zero),
    "bitxor": Combine("{a} = ({t})({a} ^ {x})", "^", _zero),
}
_OF_MAGNITUDE: Final = {"abssum": "sum", "absmax": "max"}


def combine_line(combine: Combine, accumulator: str, value: str, t: CType) -> str:
    return combine.code.format(a=accumulator, x=value, t=t.value) + ";"


def _accumulator(dtype: object) -> CType:
    """Narrow floats accumulate in float32."""
    t = ctype(dtype)
    return CTYPES["float32"] if t.narrow else t


def _stored(code: str, t: CType) -> str:
    return f"tl_store_{t.name}({code})" if t.narrow else f"(uint8_t)({code})" if t.name == "bool" else code


def _load(p: StatementPrinter, buffer: tirx.Buffer, indices: Sequence[object], t: CType) -> str:
    return p.expressions.as_type(tirx.BufferLoad(buffer, list(indices)), t)


def _assign(p: StatementPrinter, buffer: tirx.Buffer, indices: Sequence[object], code: str) -> None:
    storage = p.ctx.storage_of(buffer)
    element, guard = p.expressions.access(storage, list(indices))
    line = f"{element} = {_stored(code, storage.ctype)};"
    p.ctx.line(f"if ({guard}) {line}" if guard else line)


class _Loops:
    """Plain loops over some dimensions of a region; a context manager that closes them."""

    def __init__(
        self,
        p: StatementPrinter,
        variables: Sequence[tirx.Var],
        extents: Sequence[object],
        *,
        independent: bool = False,
    ) -> None:
        self.p, self.variables, self.extents, self.independent = p, variables, extents, independent

    def __enter__(self) -> None:
        for n, (variable, extent) in enumerate(zip(self.variables, self.extents, strict=True)):
            if self.independent and n == len(self.variables) - 1:
                self.p.ctx.line("#pragma GCC ivdep")
            self.p.ctx.line(self.p.loop_head(variable, tirx.const(0, variable.dtype), extent) + " {")
            self.p.ctx.depth += 1

    def __exit__(self, *_: object) -> None:
        for _ in self.variables:
            self.p.ctx.depth -= 1
            self.p.ctx.line("}")


def _reduce(p: StatementPrinter, call: tirx.Call) -> None:
    source, target = region(call.args[0]), region(call.args[1])
    kind, dim, clear = str(call.args[2].value), int(call.args[3]), call.args[4]
    keep_nan = bool(int((call.annotations or {}).get("nan_propagate", 0)))
    combine = COMBINES[_OF_MAGNITUDE.get(kind, kind)]
    variables = _loop_variables(source.extents)
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
        return _accumulator(self.target.buffer.dtype)

    def _initial(self) -> str:
        fresh, old = self.combine.identity(self.t), _load(self.p, self.target.buffer, self.target_at, self.t)
        if self.magnitude:
            fresh = _zero(self.t)
        if isinstance(self.clear, tirx.IntImm):
            return fresh if self.clear.value else old
        return f"({self.p.expressions.value(self.clear)} ? {fresh} : {old})"

    def _element(self) -> str:
        code = _load(self.p, self.source.buffer, self.source_at, self.t)
        return f"tl_abs({code})" if self.magnitude else code

    def innermost(self) -> None:
        """One accumulator per output; only the loop over the last dimension may be reassociated."""
        p, ctx, t = self.p, self.p.ctx, self.t
        accumulator, nan = ctx.fresh("acc"), ctx.fresh("nan")
        keep_nan = self.keep_nan and t.is_float
        with _Loops(p, self.variables[: self.dim], self.source.extents[: self.dim]):
            ctx.line(f"{t.value} {accumulator} = {self._initial()};")
            if keep_nan:
                ctx.line(f"int {nan} = {accumulator} != {accumulator};")
            also = f" reduction(|:{nan})" if keep_nan else ""
            ctx.line(f"#pragma omp simd reduction({self.combine.clause}:{accumulator}){also}")
            with _Loops(p, self.variables[self.dim :], self.source.extents[self.dim :]):
                ctx.line(f"const {t.value} tl_x = {self._element()};")
                ctx.line(combine_line(self.combine, accumulator, "tl_x", t))
                if keep_nan:
                    ctx.line(f"{nan} |= tl_x != tl_x;")
            if keep_nan:
                ctx.line(f"if ({nan}) {accumulator} = NAN;")
            _assign(p, self.target.buffer, self.target_at, accumulator)

    def outer(self) -> None:
        """A row of accumulators, in order: vectorises over the dimensions behind, without reassociation."""
        p, ctx, t, dim = self.p, self.p.ctx, self.t, self.dim
        inner, extents = self.variables[dim + 1 :], self.source.extents[dim + 1 :]
        count = _constant_product(p, extents)
        with _Loops(p, self.variables[:dim], self.source.extents[:dim]):
            row = ctx.scratch("accs", t.storage, count, t.bytes)
            at = f"{row}[{_row_major(p, inner, extents)}]"
            with _Loops(p, inner, extents, independent=True):
                ctx.line(f"{at} = {self._initial()};")
            with (
                _Loops(p, [self.variables[dim]], [self.source.extents[dim]]),
                _Loops(p, inner, extents, independent=True),
            ):
                ctx.line(f"const {t.value} tl_x = {self._element()};")
                ctx.line(f"{t.value} tl_a = {at};")
                update = combine_line(self.combine, "tl_a", "tl_x", t)
                if self.keep_nan and t.is_float:
                    update = f"if (tl_x != tl_x || tl_a != tl_a) tl_a = NAN; else {update}"
                ctx.line(update)
                ctx.line(f"{at} = tl_a;")
            with _Loops(p, inner, extents, independent=True):
                _assign(p, self.target.buffer, self.target_at, at)


def _constant_product(p: StatementPrinter, extents: Sequence[object]) -> int:
    product = 1
    for extent in extents:
        if not isinstance(extent, tirx.IntImm):
            raise p.ctx.unsupported(f"a tile operation over the symbolic extent {extent}")
        product *= extent.value
    return product


def _row_major(p: StatementPrinter, variables: Sequence[tirx.Var], extents: Sequence[object]) -> str:
    code = "0"
    for variable, extent in zip(variables, extents, strict=True):
        code = f"({code}) * {p.expressions.index(extent)} + {p.ctx.name(variable)}"
    return code


def _scan(kind: str) -> Callable:
    def printer(p: StatementPrinter, call: tirx.Call) -> None:
        source, target = region(call.args[0]), region(call.args[1])
        dim, reverse = int(call.args[2]), bool(int(call.args[3]))
        t, combine = _accumulator(target.buffer.dtype), COMBINES[kind]
        variables = _loop_variables(source.extents)
        offsets = list(variables)
        if reverse:
            offsets[dim] = source.extents[dim] - 1 - variables[dim]
        at = [[m + o for m, o in zip(r.mins, offsets, strict=True)] for r in (source, target)]
        inner, extents = variables[dim + 1 :], source.extents[dim + 1 :]
        with _Loops(p, variables[:dim], source.extents[:dim]):
            row = p.ctx.scratch("accs", t.storage, _constant_product(p, extents), t.bytes)
            for v in inner:
                p.ctx.name(v)
            place = f"{row}[{_row_major(p, inner, extents)}]"
            with _Loops(p, inner, extents, independent=True):
                p.ctx.line(f"{place} = {combine.identity(t)};")
            with _Loops(p, [variables[dim]], [source.extents[dim]]), _Loops(p, inner, extents):
                p.ctx.line(f"const {t.value} tl_x = {_load(p, source.buffer, at[0], t)};")
                p.ctx.line(combine_line(combine, place, "tl_x", t))
                _assign(p, target.buffer, at[1], place)

    return printer


# ---- reducers: deferred reductions that a T.Parallel loop feeds ----


def _reducer_init(p: StatementPrinter, call: tirx.Call) -> None:
    target = region(call.args[0])
    storage = p.ctx.storage_of(target.buffer)
    variables = _loop_variables(target.extents)
    combine = COMBINES[p.ctx.reducers[key(target.buffer.data)]]
    start = (
        p.expressions.value(call.args[1])
        if len(call.args) > 1
        else combine.identity(_accumulator(target.buffer.dtype))
    )
    with _Loops(p, variables, target.extents):
        _assign(p, target.buffer, variables, start)
    assert not storage.is_global


def _reducer_update(p: StatementPrinter, call: tirx.Call) -> None:
    load = call.args[0]
    t = _accumulator(load.buffer.dtype)
    combine = COMBINES[p.ctx.reducers[key(load.buffer.data)]]
    old = _load(p, load.buffer, load.indices, t)
    with p.ctx.block(""):
        p.ctx.line(f"const {t.value} tl_x = {p.expressions.as_type(call.args[1], t)};")
        p.ctx.line(f"{t.value} tl_a = {old};")
        p.ctx.line(combine_line(combine, "tl_a", "tl_x", t))
        _assign(p, load.buffer, load.indices, "tl_a")


def _finalize_reducer(p: StatementPrinter, call: tirx.Call) -> None:
    _moved(p, call)


def _finalize_in_place(_p: StatementPrinter, _call: tirx.Call) -> None:
    """The older form: the accumulator is the result."""


# ---- matrix product ----


def _matrix(p: StatementPrinter, r: Region) -> tuple[int, int]:
    """The dimensions that are rows and columns."""
    moving = r.moving
    if len(moving) > 2:
        raise p.ctx.unsupported("T.gemm", f"an operand region of shape {list(r.extents)}")
    if len(moving) == 2:
        return moving
    last = len(r.extents) - 1
    if len(moving) == 1 and moving[0] != last:
        return moving[0], last
    return last - 1, last


def _at(r: Region, dims: tuple[int, int], row: object, column: object) -> list[object]:
    indices = list(r.mins)
    indices[dims[0]] = indices[dims[0]] + row
    indices[dims[1]] = indices[dims[1]] + column
    return indices


def _in_place(p: StatementPrinter, r: Region, columns: int, t: CType) -> str | None:
    """The address of an operand that lies packed in local memory already, in the product's type."""
    storage = p.ctx.storage_of(r.buffer)
    last = len(r.extents) - 1
    rows_then_columns = last >= 1 and _matrix(p, r) == (last - 1, last)
    if storage.is_global or storage.ctype is not t or not rows_then_columns:
        return None
    width = storage.shape[last]
    if not (
        isinstance(width, tirx.IntImm)
        and width.value == columns
        and same_expr(r.mins[last], tirx.IntImm("int32", 0))
    ):
        return None
    return f"{storage.name} + {p.expressions.offset(storage, r.mins)}"


def _pack(p: StatementPrinter, r: Region, transposed: bool, rows: int, columns: int, t: CType) -> str:
    """An operand as a packed matrix of type `t`: itself where it is one, else a copy."""
    address = None if transposed else _in_place(p, r, columns, t)
    if address is not None:
        return address
    packed = p.ctx.scratch("packed", t.storage, rows * columns, t.bytes)
    i, j = tirx.Var("i", "int32"), tirx.Var("j", "int32")
    at = _at(r, _matrix(p, r), *((j, i) if transposed else (i, j)))
    order = [(j, columns), (i, rows)] if transposed else [(i, rows), (j, columns)]  # memory in its own order
    extents = [tirx.const(extent, "int32") for _, extent in order]
    with _Loops(p, [v for v, _ in order], extents, independent=True):
        target = f"{packed}[{p.ctx.name(i)} * {columns} + {p.ctx.name(j)}]"
        p.ctx.line(f"{target} = {_load(p, r.buffer, at, t)};")
    return packed


def _gemm(p: StatementPrinter, call: tirx.Call) -> None:
    """C += A @ B, by the support header's kernel on packed operands of the accumulator's type."""
    a, b, c = (region(call.args[n]) for n in range(3))
    transpose_a, transpose_b = bool(int(call.args[3])), bool(int(call.args[4]))
    m, n, k = (int(call.args[d]) for d in (5, 6, 7))
    clear, t = call.args[9], _accumulator(c.buffer.dtype)
    ctx = p.ctx
    with ctx.block(""):
        left, right = _pack(p, a, transpose_a, m, k, t), _pack(p, b, transpose_b, k, n, t)
        in_place = _in_place(p, c, n, t)
        product = in_place or _pack(p, c, False, m, n, t)
        if not (isinstance(clear, tirx.IntImm) and clear.value == 0):
            ctx.line(f"if ({p.expressions.value(clear)}) memset({product}, 0, {m * n * t.bytes});")
        ctx.line(f"tl_gemm<{t.value}, {m}, {n}, {k}>({left}, {right}, {product});")
        if in_place is None:
            i, j = tirx.Var("i", "int32"), tirx.Var("j", "int32")
            extents = [tirx.const(m, "int32"), tirx.const(n, "int32")]
            with _Loops(p, [i, j], extents, independent=True):
                _assign(
                    p,
                    c.buffer,
                    _at(c, _matrix(p, c), i, j),
                    f"{product}[{ctx.name(i)} * {n} + {ctx.name(j)}]",
                )


TILE_OPS: Final = {
    **dict.fromkeys(("tl.tileop.copy", "tl.tileop.async_copy", "tl.tileop.tma_copy"), _copy),
    **dict.fromkeys(("tl.tileop.gemm", "tl.tileop.wgmma_gemm", "tl.tileop.tcgen05_gemm"), _gemm),
    "tl.tileop.fill": _fill,
    "tl.tileop.transpose": _transpose,
    "tl.tileop.reduce": _reduce,
    "tl.tileop.cumsum": _scan("sum"),
    "tl.tileop.cummax": _scan("max"),
    "tl.tileop.atomicadd": _atomic(lambda old, new: old + new),
    "tl.tileop.atomicmax": _atomic(tirx.max),
    "tl.tileop.atomicmin": _atomic(tirx.min),
    "tl.tileop.reducer_init": _reducer_init,
    "tl.reducer_update": _reducer_update,
    "tl.tileop.finalize_reducer_v2": _finalize_reducer,
    "tl.tileop.finalize_reducer": _finalize_in_place,
}
