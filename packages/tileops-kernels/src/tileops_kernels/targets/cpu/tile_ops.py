"""Tile operations by name. Copies, fills and transposes become the `T.Parallel` nest that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tvm import tirx

from .matmul import gemm
from .reductions import finalize_in_place, reduce, reducer_init, reducer_update, scan
from .regions import converted, loop_variables, region

if TYPE_CHECKING:
    from .statements import StatementPrinter


_SCOPE_LEVEL: Final = {"local": 2, "local.fragment": 2, "local.var": 2, "shared": 1, "shared.dyn": 1}


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
    variables = loop_variables(extents)
    value = call.args[0] if source is None else tirx.BufferLoad(source.buffer, source.at(variables))
    value = converted(value, target.buffer.dtype)
    indices = target.at(variables)
    if combine is not None:
        value = combine(tirx.BufferLoad(target.buffer, indices), value)
    with p.ctx.bounded():
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
    variables = loop_variables(extents)
    value = converted(call.args[1], target.buffer.dtype)
    p.parallel_loops(variables, extents, tirx.BufferStore(target.buffer, value, target.at(variables)))


def _transpose(p: StatementPrinter, call: tirx.Call) -> None:
    source, target = region(call.args[0]), region(call.args[1])
    extents = [source.extents[d] for d in source.moving]
    variables = loop_variables(extents)
    value = converted(tirx.BufferLoad(source.buffer, source.at(variables)), target.buffer.dtype)
    p.parallel_loops(variables, extents, tirx.BufferStore(target.buffer, value, target.at(variables[::-1])))


def _finalize_reducer(p: StatementPrinter, call: tirx.Call) -> None:
    _moved(p, call)


TILE_OPS: Final = {
    **dict.fromkeys(("tl.tileop.copy", "tl.tileop.async_copy", "tl.tileop.tma_copy"), _copy),
    **dict.fromkeys(("tl.tileop.gemm", "tl.tileop.wgmma_gemm", "tl.tileop.tcgen05_gemm"), gemm),
    "tl.tileop.fill": _fill,
    "tl.tileop.transpose": _transpose,
    "tl.tileop.reduce": reduce,
    "tl.tileop.cumsum": scan("sum"),
    "tl.tileop.cummax": scan("max"),
    "tl.tileop.atomicadd": _atomic(lambda old, new: old + new),
    "tl.tileop.atomicmax": _atomic(tirx.max),
    "tl.tileop.atomicmin": _atomic(tirx.min),
    "tl.tileop.reducer_init": reducer_init,
    "tl.reducer_update": reducer_update,
    "tl.tileop.finalize_reducer_v2": _finalize_reducer,
    "tl.tileop.finalize_reducer": finalize_in_place,
}
