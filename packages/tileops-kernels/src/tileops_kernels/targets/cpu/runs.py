"""float16 in loops: whole runs are converted around them.

The processor converts 16 elements at once, but the compiler's vectoriser does not know the instruction, and
bit arithmetic takes ten times as long. So a loop over a run of float16 reads and writes float32 scratch, and
helpers convert the run before and after it. What is computed stays the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tvm import tirx

from .flatten import step_of
from .numeric import ctype
from .ranges import children

if TYPE_CHECKING:
    from .statements import StatementPrinter

_DTYPE: Final = "float16"
# Elements of a scratch run; it should stay in the first level of the cache.
_LONGEST: Final = 4096


@contextmanager
def converted_runs(p: StatementPrinter, loop: tirx.For) -> Iterator[None]:
    """Print a loop, in the body of this context, with its runs of float16 converted; others as they are."""
    loads, store = _runs(p, loop)
    if not loads and store is None:
        yield
        return
    ctx = p.ctx
    with ctx.block(""):
        count, longest = ctx.fresh("count"), ctx.ranges.interval(loop.extent)[1]
        ctx.line(f"const int64_t {count} = {p.expressions.index(loop.extent)};")
        place = f"[{ctx.name(loop.loop_var)} - {p.expressions.index(loop.min)}]"
        for bits, load in loads.items():
            scratch = ctx.scratch("run", "float", longest, 4)
            ctx.line(f"tl_load_run_{_DTYPE}({scratch}, &{_first(p, load, loop)}, {count});")
            ctx.converted[bits] = scratch + place
        if store is not None:
            scratch = ctx.scratch("run", "float", longest, 4)
            ctx.run_store = scratch + place
        yield
        ctx.converted.clear()
        if store is not None:
            ctx.run_store = None
            ctx.line(f"tl_store_run_{_DTYPE}(&{_first(p, store, loop)}, {scratch}, {count});")


def _runs(p: StatementPrinter, loop: tirx.For) -> tuple[dict[str, tirx.BufferLoad], tirx.BufferStore | None]:
    """The loads (by the code of their bits) and the store that move through float16 one element a step."""
    nest, store = p.ctx.nest, loop.body
    longest = p.ctx.ranges.interval(loop.extent)[1]
    if (
        nest is None
        or not nest.unguarded
        or p.ctx.options.reverse_parallel
        or not isinstance(store, tirx.BufferStore)
        or loop.step is not None
        or longest is None
        or longest > _LONGEST
    ):
        return {}, None
    p.ctx.ranges.set_loop(loop.loop_var, loop.min, loop.extent)
    if ctype(store.buffer.dtype).narrow and _moves_bits(store.value):
        return {}, None
    loads = {
        p.expressions.raw_load(load): load
        for load in _loads(store.value)
        if _is_run(load.buffer, load.indices, loop.loop_var)
    }
    return loads, store if _is_run(store.buffer, store.indices, loop.loop_var) else None


def _moves_bits(value: object) -> bool:
    """True for what a store writes bit for bit, without a value in between."""
    if isinstance(value, tirx.Call):
        return value.op.name == "tirx.if_then_else"
    return isinstance(value, tirx.BufferLoad)


def _is_run(buffer: tirx.Buffer, indices: object, variable: tirx.Var) -> bool:
    return str(buffer.dtype) == _DTYPE and step_of(buffer, list(indices), variable) == 1


def _loads(expr: object) -> Iterator[tirx.BufferLoad]:
    if isinstance(expr, tirx.BufferLoad):
        yield expr
    for child in children(expr):
        yield from _loads(child)


def _first(p: StatementPrinter, access: tirx.BufferLoad | tirx.BufferStore, loop: tirx.For) -> str:
    """The element that the first iteration reads or writes."""
    start = {loop.loop_var: loop.min}
    indices = [tirx.stmt_functor.substitute(tirx.convert(i), start) for i in access.indices]
    return p.expressions.access(p.ctx.storage_of(access.buffer), indices)[0]
