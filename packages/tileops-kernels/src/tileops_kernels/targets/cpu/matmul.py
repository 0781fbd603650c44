"""Matrix products: packed operands and the support header's blocked kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm import tirx

from .numeric import CType
from .ranges import same_expr
from .regions import Loops, Region, accumulator_type, assign, load, region

if TYPE_CHECKING:
    from .statements import StatementPrinter


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
    with Loops(p, [v for v, _ in order], extents, independent=True):
        target = f"{packed}[{p.ctx.name(i)} * {columns} + {p.ctx.name(j)}]"
        p.ctx.line(f"{target} = {load(p, r.buffer, at, t)};")
    return packed


def gemm(p: StatementPrinter, call: tirx.Call) -> None:
    """C += A @ B, by the support header's kernel on packed operands of the accumulator's type."""
    a, b, c = (region(call.args[n]) for n in range(3))
    transpose_a, transpose_b = bool(int(call.args[3])), bool(int(call.args[4]))
    m, n, k = (int(call.args[d]) for d in (5, 6, 7))
    clear, t = call.args[9], accumulator_type(c.buffer.dtype)
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
            with Loops(p, [i, j], extents, independent=True):
                assign(
                    p,
                    c.buffer,
                    _at(c, _matrix(p, c), i, j),
                    f"{product}[{ctx.name(i)} * {n} + {ctx.name(j)}]",
                )
