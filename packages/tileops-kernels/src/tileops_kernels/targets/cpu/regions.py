"""Regions of buffers, and the loops, loads and stores over them that tile operations are printed with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm import tirx

from .numeric import CTYPES, CType, ctype

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


def loop_variables(extents: Sequence[object]) -> list[tirx.Var]:
    return [tirx.Var(f"i{d}", n.dtype) for d, n in enumerate(extents)]


def converted(value: object, dtype: object) -> object:
    return value if str(value.dtype) == str(dtype) else tirx.Cast(dtype, value)


def zero(t: CType) -> str:
    return f"({t.value})0"


def accumulator_type(dtype: object) -> CType:
    """Narrow floats accumulate in float32."""
    t = ctype(dtype)
    return CTYPES["float32"] if t.narrow else t


def stored_code(code: str, t: CType) -> str:
    return f"tl_store_{t.name}({code})" if t.narrow else f"(uint8_t)({code})" if t.name == "bool" else code


def load(p: StatementPrinter, buffer: tirx.Buffer, indices: Sequence[object], t: CType) -> str:
    return p.expressions.as_type(tirx.BufferLoad(buffer, list(indices)), t)


def assign(p: StatementPrinter, buffer: tirx.Buffer, indices: Sequence[object], code: str) -> None:
    storage = p.ctx.storage_of(buffer)
    element, guard = p.expressions.access(storage, list(indices))
    line = f"{element} = {stored_code(code, storage.ctype)};"
    p.ctx.line(f"if ({guard}) {line}" if guard else line)


class Loops:
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


def constant_product(p: StatementPrinter, extents: Sequence[object]) -> int:
    product = 1
    for extent in extents:
        if not isinstance(extent, tirx.IntImm):
            raise p.ctx.unsupported(f"a tile operation over the symbolic extent {extent}")
        product *= extent.value
    return product


def row_major(p: StatementPrinter, variables: Sequence[tirx.Var], extents: Sequence[object]) -> str:
    code = "0"
    for variable, extent in zip(variables, extents, strict=True):
        code = f"({code}) * {p.expressions.index(extent)} + {p.ctx.name(variable)}"
    return code
