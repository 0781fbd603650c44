"""Statements of a tile program, printed as C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Final

from tvm import tirx

from .calls import CALLS
from .conditions import hoist_guards
from .context import Context, Nest
from .expressions import ExpressionPrinter
from .flatten import flatten
from .numeric import ctype
from .ranges import children, key, mentions
from .runs import converted_runs
from .tile_ops import TILE_OPS

_SERIAL, _PARALLEL, _VECTORIZED, _UNROLLED, _THREAD_BINDING = range(5)

# Synchronisation, pipelining and register hints: nothing to do where one thread runs a block from top to
# bottom.
_NO_OPERATION: Final = frozenset(
    {
        "tirx.tvm_storage_sync",
        "tirx.ptx_arrive_barrier",
        "tirx.ptx_commit_group",
        "tirx.ptx_wait_group",
        *(
            f"tl.{name}"
            for name in [
                "sync_warp",
                "fence_proxy_async",
                "warpgroup_arrive",
                "warpgroup_commit_batch",
                "warpgroup_wait",
                "warpgroup_fence_operand",
                "wait_wgmma",
                "set_max_nreg",
                "no_set_max_nreg",
                "annotate_producer_reg_dealloc",
                "annotate_consumer_reg_alloc",
                "pdl_trigger",
                "pdl_sync",
                "ptx_commit_group",
                "ptx_wait_group",
                "tma_store_arrive",
                "tma_store_wait",
                "mbarrier_wait_parity",
                "mbarrier_expect_tx",
                "ptx_arrive_barrier",
                "cluster_sync",
                "cluster_arrive",
                "cluster_arrive_relaxed",
                "cluster_wait",
                "tcgen05_before_thread_sync",
                "tcgen05_after_thread_sync",
                "ptx_cp_async_barrier_noinc",
                "ptx_fence_barrier_init",
                "named_barrier_arrive",
            ]
        ),
    }
)
_IGNORED_ATTRIBUTES: Final = frozenset(
    {
        "threadblock_swizzle_pattern",
        "tl.min_blocks_per_sm",
        "l2_hit_ratio",
        "tl.assume",
        "tirx.assume",
        "pragma_unroll_explicit",
    }
)


class StatementPrinter:
    """Prints statements into a context; the tile operations are in `tile_ops`."""

    def __init__(self, context: Context) -> None:
        self.ctx = context
        self.expressions = ExpressionPrinter(context)

    def statement(self, stmt: object) -> None:
        handler = _STATEMENTS.get(type(stmt).__name__)
        with self.ctx.at(stmt):
            if handler is None:
                raise self.ctx.unsupported(f"the statement {type(stmt).__name__}")
            handler(self, stmt)

    # ---- structure ----

    def _sequence(self, stmt: tirx.SeqStmt) -> None:
        for child in stmt.seq:
            self.statement(child)

    def _realize(self, stmt: tirx.SBlockRealize) -> None:
        self.statement(stmt.block)

    def _block(self, stmt: tirx.SBlock) -> None:
        for name, value in dict(stmt.annotations).items():
            if str(name).startswith("reducer_info"):
                self.ctx.reducers.update({key(data): str(info["op"]) for data, info in dict(value).items()})
        for buffer in stmt.alloc_buffers:
            self._allocate(buffer)
        self.statement(stmt.body)

    def _allocate(self, buffer: tirx.Buffer) -> None:
        if buffer.scope() == "global":
            raise self.ctx.unsupported("T.alloc_global", "pass the workspace as a parameter")
        if buffer.scope() in ("shared.barrier", "shared.cluster_barrier"):
            return
        self.ctx.add_local(buffer)

    def _alloc_statement(self, stmt: object) -> None:
        self._allocate(stmt.buffer)

    def _declaration(self, stmt: object) -> None:
        self.ctx.storage_of(stmt.buffer)

    def _attribute(self, stmt: tirx.AttrStmt) -> None:
        if str(stmt.attr_key) not in _IGNORED_ATTRIBUTES:
            raise self.ctx.unsupported(f"the attribute {stmt.attr_key}")
        self.statement(stmt.body)

    def _bind(self, stmt: tirx.Bind) -> None:
        variable, value = stmt.var, stmt.value
        if isinstance(value, tirx.Call) and value.op.name == "tl.launch_thread_idx":
            self.ctx.thread_variables.add(key(variable))
            return
        if not self.ctx.all_defined(value):
            self.ctx.inlined[key(variable)] = value
            return
        self.ctx.line(
            f"const {ctype(variable.dtype).value} {self.ctx.name(variable)} = "
            f"{self.expressions.value(value)};"
        )
        self.ctx.ranges.set_interval(variable, self.ctx.ranges.interval(value))

    def _store(self, stmt: tirx.BufferStore) -> None:
        if stmt.predicate is not None:
            raise self.ctx.unsupported("a predicated store")
        if self.ctx.run_store is not None:
            self.ctx.line(f"{self.ctx.run_store} = {self.expressions.unrounded(stmt.value)};")
            return
        storage = self.ctx.storage_of(stmt.buffer)
        element, guard = self.expressions.access(storage, list(stmt.indices))
        code = f"{element} = {self.expressions.stored(stmt.value, storage.ctype)};"
        self.ctx.line(f"if ({guard}) {code}" if guard else code)

    def _branch(self, stmt: tirx.IfThenElse) -> None:
        with self.ctx.block(f"if ({self.expressions.value(stmt.condition)})"):
            self.statement(stmt.then_case)
        if stmt.else_case is not None:
            with self.ctx.block("else"):
                self.statement(stmt.else_case)

    def _while(self, stmt: tirx.While) -> None:
        with self.ctx.block(f"while ({self.expressions.value(stmt.condition)})"):
            self.statement(stmt.body)

    def _assert(self, stmt: tirx.AssertStmt) -> None:
        self.check(stmt.condition, str(stmt.message))

    def check(self, condition: object, message: str) -> None:
        """Stop the block where the condition fails, and let the launch report the message."""
        failure = self.ctx.failure(message)
        with self.ctx.block(f"if (!({self.expressions.value(condition)}))"):
            self.ctx.line(f"{failure};")
            self.ctx.line("return;")

    # ---- loops ----

    def _loop(self, stmt: tirx.For) -> None:
        if int(stmt.kind) == _THREAD_BINDING:
            raise self.ctx.unsupported(f"a loop over {stmt.thread_binding.thread_tag} inside a block")
        if int(stmt.kind) == _PARALLEL and self.ctx.nest is None:
            self.nest(hoist_guards(stmt))
        else:
            self._plain_loop(stmt)

    def nest(self, loop: object) -> None:
        """Print a parallel nest; in two versions where one condition decides all its guards.

        Where none does for the whole nest (an index read from memory), the loops inside are nests of their
        own: what the outer variable decides is free there.
        """
        nest = Nest(*_footprint(loop))
        with self._in_nest(nest), self.ctx.captured() as guarded:
            self._sub_statement(loop)
        if nest.guards == 0:
            with self._in_nest(Nest(nest.variables, nest.written, unguarded=True)):
                self._sub_statement(_map_loops(loop, flatten))
            return
        if not nest.shared:
            if isinstance(loop, tirx.For) and isinstance(loop.body, tirx.For):
                self._plain_loop(loop)
            else:
                self.ctx.lines.extend(guarded)
            return
        inside = Nest(
            nest.variables, nest.written, assume_shared=True, unguarded=nest.guards == nest.shared_guards
        )
        with self.ctx.block(f"if ({' && '.join(nest.shared)})"), self._in_nest(inside):
            self._sub_statement(_map_loops(loop, flatten) if inside.unguarded else loop)
        with self.ctx.block("else"):
            self.ctx.lines.extend(guarded)

    @contextmanager
    def _in_nest(self, nest: Nest):
        self.ctx.nest = nest
        yield
        self.ctx.nest = None

    def _plain_loop(self, stmt: tirx.For) -> None:
        with converted_runs(self, stmt):
            self._print_loop(stmt)

    def _print_loop(self, stmt: tirx.For) -> None:
        if int(stmt.kind) == _PARALLEL and _is_independent(stmt):
            self.ctx.line("#pragma GCC ivdep")
        reverse = self.ctx.options.reverse_parallel and int(stmt.kind) == _PARALLEL
        with self.ctx.block(
            self.loop_head(stmt.loop_var, stmt.min, stmt.extent, step=stmt.step, reverse=reverse)
        ):
            self.statement(stmt.body)

    def loop_head(
        self, variable: tirx.Var, start: object, extent: object, *, step: object = None, reverse: bool = False
    ) -> str:
        """The head of a loop over ``[start, start + extent)``; makes the variable's range known."""
        self.ctx.ranges.set_loop(variable, start, extent)
        t, name = ctype(variable.dtype).value, self.ctx.name(variable)
        first = self.expressions.value(start)
        end = (
            self.expressions.value(extent) if first == "0" else f"{first} + {self.expressions.value(extent)}"
        )
        by = "1" if step is None else self.expressions.value(step)
        if reverse:
            return f"for ({t} {name} = {end} - 1; {name} >= {first}; --{name})"
        return f"for ({t} {name} = {first}; {name} < {end}; {name} += {by})"

    def parallel_loops(
        self, variables: Sequence[tirx.Var], extents: Sequence[object], body: tirx.Stmt
    ) -> None:
        """Print ``T.Parallel(*extents)`` around a statement that a tile operation stands for."""
        for variable, extent in zip(reversed(variables), reversed(extents), strict=True):
            body = tirx.For(variable, tirx.const(0, variable.dtype), extent, tirx.ForKind.PARALLEL, body)
        self._sub_statement(body)

    def _sub_statement(self, stmt: object) -> None:
        handler = _STATEMENTS[type(stmt).__name__]
        handler(self, stmt)

    # ---- calls ----

    def _evaluate(self, stmt: tirx.Evaluate) -> None:
        call = stmt.value
        if isinstance(call, tirx.IntImm):
            return
        if not isinstance(call, tirx.Call):
            raise self.ctx.unsupported(f"the expression {type(call).__name__} as a statement")
        name = getattr(call.op, "name", str(call.op))
        if name in _NO_OPERATION or (
            name == "tirx.call_extern" and str(call.args[0].value).startswith("debug_print")
        ):
            return
        handler = _CALL_STATEMENTS.get(name) or TILE_OPS.get(name)
        if handler is not None:
            handler(self, call)
        elif name in CALLS:
            self.ctx.line(f"{CALLS[name](self.expressions, call)};")
        else:
            raise self.ctx.unsupported(
                f"T.{name.removeprefix('tl.tileop.')}" if name.startswith("tl.tileop.") else name
            )

    def _break(self, _call: tirx.Call) -> None:
        self.ctx.line("break;")

    def _continue(self, _call: tirx.Call) -> None:
        self.ctx.line("continue;")

    def _return(self, _call: tirx.Call) -> None:
        self.ctx.line("return;")

    def _device_assert(self, call: tirx.Call) -> None:
        where = self.ctx.location() or "an unknown line"
        self.check(
            call.args[0], str(call.args[1].value) if len(call.args) > 1 else f"T.device_assert at {where}"
        )

    def _atomic_store(self, call: tirx.Call) -> None:
        load = call.args[0].args[0]
        self.ctx.uses_atomics = True
        self._store(tirx.BufferStore(load.buffer, call.args[1], list(load.indices)))


def _map_loops(stmt: object, change: Callable[[tirx.For], tirx.For]) -> object:
    """A nest, whose conditions may have moved in front of it, with its loops changed."""
    if isinstance(stmt, tirx.IfThenElse):
        return tirx.IfThenElse(stmt.condition, _map_loops(stmt.then_case, change), stmt.else_case)
    return change(stmt) if isinstance(stmt, tirx.For) else stmt


def _footprint(loop: object) -> tuple[set[int], set[int]]:
    """The variables that a nest defines and the data it may write."""
    variables: set[int] = set()
    written: set[int] = set()

    def visit(node: object) -> None:
        if isinstance(node, tirx.For):
            variables.add(key(node.loop_var))
        elif isinstance(node, (tirx.Bind, tirx.Let)):
            variables.add(key(node.var))
        elif isinstance(node, tirx.BufferStore):
            written.add(key(node.buffer.data))
        elif isinstance(node, tirx.Call) and "atomic" in getattr(node.op, "name", ""):
            written.add(key(node.args[0].args[0].buffer.data))

    tirx.stmt_functor.post_order_visit(loop, visit)
    return variables, written


def _is_independent(loop: tirx.For) -> bool:
    """Whether the compiler may take the iterations of an innermost `T.Parallel` loop as independent.

    TileLang promises that they are, except through what a thread owns: an element whose index does not move
    with the loop (a reducer, a scalar used as a temporary) carries from one iteration to the next here,
    where one thread runs them all.
    """
    variables = {key(loop.loop_var)}

    def moves(stmt: object) -> bool:
        if isinstance(stmt, tirx.SeqStmt):
            return all(map(moves, stmt.seq))
        if isinstance(stmt, tirx.IfThenElse):
            return (
                _is_pure(stmt.condition)
                and moves(stmt.then_case)
                and (stmt.else_case is None or moves(stmt.else_case))
            )
        if isinstance(stmt, tirx.Bind):
            return _is_pure(stmt.value)
        return (
            isinstance(stmt, tirx.BufferStore)
            and _is_pure(stmt.value)
            and any(mentions(i, variables) for i in stmt.indices)
        )

    return moves(loop.body)


def _is_pure(expr: object) -> bool:
    if isinstance(expr, tirx.Call) and "atomic" in getattr(expr.op, "name", ""):
        return False
    return all(map(_is_pure, children(expr)))


_STATEMENTS: Final = {
    "SeqStmt": StatementPrinter._sequence,
    "SBlockRealize": StatementPrinter._realize,
    "SBlock": StatementPrinter._block,
    "AllocBuffer": StatementPrinter._alloc_statement,
    "DeclBuffer": StatementPrinter._declaration,
    "AttrStmt": StatementPrinter._attribute,
    "Bind": StatementPrinter._bind,
    "BufferStore": StatementPrinter._store,
    "IfThenElse": StatementPrinter._branch,
    "While": StatementPrinter._while,
    "AssertStmt": StatementPrinter._assert,
    "For": StatementPrinter._loop,
    "Evaluate": StatementPrinter._evaluate,
}
_CALL_STATEMENTS: Final = {
    "tl.loop_break": StatementPrinter._break,
    "tirx.break_loop": StatementPrinter._break,
    "tirx.continue_loop": StatementPrinter._continue,
    "tirx.thread_return": StatementPrinter._return,
    "tl.device_assert": StatementPrinter._device_assert,
    "tl.device_assert_with_msg": StatementPrinter._device_assert,
    "tl.atomic_store_elem_op": StatementPrinter._atomic_store,
}
