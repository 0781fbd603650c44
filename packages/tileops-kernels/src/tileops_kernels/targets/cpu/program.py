"""A whole tile program as one C++ source: a kernel's block is a function, its grid a loop around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tvm import tirx

from ..arguments import Signature
from ..errors import UnsupportedTileOpError
from .context import Context, Options
from .numeric import ctype
from .ranges import key
from .statements import _THREAD_BINDING, StatementPrinter

ENTRY_POINT: Final = "tileops_run"
OUT_OF_MEMORY: Final = 1
_GRID_ORDER: Final = ("blockIdx.z", "blockIdx.y", "blockIdx.x")


@dataclass(frozen=True)
class Translation:
    """The C++ of a program. A status above `OUT_OF_MEMORY` counts the failed device assert in `asserts`."""

    source: str
    asserts: tuple[str, ...]
    parallel: bool


def translate(func: tirx.PrimFunc, signature: Signature, options: Options) -> Translation:
    """Print a tile program in CUDA form as C++.

    Raises `UnsupportedTileOpError`, with the source line, for what the target does not know.
    """
    context = Context(options)
    try:
        return _ProgramPrinter(context, func, signature).print()
    except UnsupportedTileOpError as error:
        if error.location is not None or context.location() is None:
            raise
        raise context.unsupported(error.operation, error.detail) from None


class _ProgramPrinter:
    def __init__(self, context: Context, func: tirx.PrimFunc, signature: Signature) -> None:
        self.ctx, self.func = context, func
        self.statements = StatementPrinter(context)
        self.parameters: list[tuple[str, str]] = []
        self.host_binds: list[str] = []
        self.functions: list[str] = []
        self.launches: list[str] = []
        for parameter in func.params:
            if parameter in func.buffer_map:
                storage = context.add_global(func.buffer_map[parameter])
                self.parameters.append((f"{storage.ctype.storage}* __restrict__", storage.name))
            else:
                self.parameters.append((f"const {ctype(parameter.dtype).value}", context.name(parameter)))
                context.uniform.add(key(parameter))
        for variable in signature.dimension_variables(func):
            self.parameters.append((f"const {ctype(variable.dtype).value}", context.name(variable)))
            context.ranges.set_interval(variable, (0, None))
            context.uniform.add(key(variable))

    def print(self) -> Translation:
        self._host(self.func.body)
        ctx = self.ctx
        declared = ", ".join(["const int tl_threads", *(f"{t} {name}" for t, name in self.parameters)])
        parallel = ctx.options.parallel and not ctx.uses_atomics
        lines = [
            '#include "call.h"',
            '#include "support.h"',
            *_extra_headers(self.functions),
            f"#define TL_ARENA_BYTES ((size_t){max(64, ctx.arena_bytes)})",
            f"#define TL_PARALLEL {int(parallel)}",
            *self.functions,
            f"static int {ENTRY_POINT}({declared}) {{",
            "  int tl_status_value = 0, *const tl_status = &tl_status_value;",
            *(f"  {line}" for line in self.host_binds),
            *self.launches,
            "  return tl_status_value;",
            "}",
            f"TILEOPS_CALLABLE({ENTRY_POINT})",
            "",
        ]
        return Translation("\n".join(lines), tuple(ctx.asserts), parallel)

    # ---- outside of kernels ----

    def _host(self, stmt: object) -> None:
        with self.ctx.at(stmt):
            if isinstance(stmt, tirx.SBlockRealize) and not stmt.block.alloc_buffers:
                self._host(stmt.block.body)
            elif isinstance(stmt, tirx.SeqStmt):
                for child in stmt.seq:
                    self._host(child)
            elif isinstance(stmt, tirx.Bind):
                with self.ctx.captured() as lines:
                    self.statements.statement(stmt)
                self.host_binds.extend(line.strip() for line in lines)
            else:
                grid, body = _grid(stmt)
                self._kernel(grid, body)

    # ---- one kernel ----

    def _kernel(self, grid: Sequence[tirx.For], body: object) -> None:
        ctx = self.ctx
        for loop in grid:
            ctx.ranges.set_loop(loop.loop_var, loop.min, loop.extent)
            ctx.uniform.add(key(loop.loop_var))
        extents = [self.statements.expressions.value(loop.extent) for loop in grid]
        block = ctx.fresh("tileops_block")
        ctx.block_values = {}
        with ctx.captured() as lines:
            self.statements.statement(body)
        once = [f"  const auto {name} = {code};" for code, name in ctx.block_values.items()]
        ctx.block_values = None
        indices = [(f"const {ctype(loop.loop_var.dtype).value}", ctx.name(loop.loop_var)) for loop in grid]
        extra = [("char* const", "tl_arena"), ("int* const", "tl_status")]
        declared = ", ".join(f"{t} {name}" for t, name in [*self.parameters, *indices, *extra])
        self.functions += [
            f"static void {block}({declared}) {{",
            *(f"  {line}" for line in self.host_binds),
            *once,
            *lines,
            "}",
        ]
        passed = ", ".join(name for _, name in self.parameters)
        self.launches += _launch(
            block, passed, [(name, extent) for (_, name), extent in zip(indices, extents, strict=True)]
        )


def _extra_headers(functions: Sequence[str]) -> list[str]:
    # The tables of the trigonometric functions are left out of programs that have no use for them.
    used = any("tl_sin(" in line or "tl_cos(" in line for line in functions)
    return ['#include "support_trig.h"'] if used else []


def _grid(stmt: object) -> tuple[list[tirx.For], object]:
    """The loops over block indices, slowest first, and what a block runs; no grid means one block."""
    grid = []
    while isinstance(stmt, tirx.For) and int(stmt.kind) == _THREAD_BINDING:
        if str(stmt.thread_binding.thread_tag) not in _GRID_ORDER:
            break
        grid.append(stmt)
        stmt = stmt.body
    grid.sort(key=lambda loop: _GRID_ORDER.index(str(loop.thread_binding.thread_tag)))
    return grid, stmt


def _launch(block: str, passed: str, grid: Sequence[tuple[str, str]]) -> list[str]:
    loops = [f"for (int64_t {name} = 0; {name} < tl_n{d}; ++{name})" for d, (name, _) in enumerate(grid)]
    sizes = [f"const int64_t tl_n{d} = {extent};" for d, (_, extent) in enumerate(grid)]
    count = " * ".join(f"tl_n{d}" for d in range(len(grid))) or "1"
    arguments = ", ".join(a for a in (passed, *(f"(int32_t){name}" for name, _ in grid)) if a)
    own_arena = "tl_arena + TL_ARENA_BYTES * (size_t)tl_thread()"
    call = f"{block}({arguments + ', ' if arguments else ''}{own_arena}, tl_status);"
    return [
        "  {",
        *(f"    {size}" for size in sizes),
        f"    const int64_t tl_blocks = {count};",
        "    const int64_t tl_most = tl_blocks < tl_threads ? tl_blocks : tl_threads;",
        "    const int tl_team = TL_PARALLEL && tl_most > 1 ? (int)tl_most : 1;",
        "    char* const tl_arena = (char*)aligned_alloc(64, TL_ARENA_BYTES * (size_t)tl_team);",
        f"    if (tl_arena == nullptr) return {OUT_OF_MEMORY};",
        *_grid_loops(loops, call),
        "    free(tl_arena);",
        "    if (tl_status_value) return tl_status_value;",
        "  }",
    ]


def _grid_loops(loops: Sequence[str], call: str) -> list[str]:
    if not loops:
        return [f"    {call}"]
    plain = [f"      {loop}" for loop in loops] + [f"        {call}"]
    chunk = "tl_blocks / (tl_team * 16) > 1 ? tl_blocks / (tl_team * 16) : 1"
    return [
        "    if (tl_team > 1) {",
        f"      const int64_t tl_chunk = {chunk};",
        f"      #pragma omp parallel for collapse({len(loops)}) schedule(dynamic, tl_chunk) "
        "num_threads(tl_team)",
        *plain,
        "    } else {",
        *plain,
        "    }",
    ]
