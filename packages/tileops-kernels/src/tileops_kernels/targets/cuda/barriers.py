"""A barrier that too few threads reach never opens: generated code is looked through before it hangs a GPU.

TileLang inserts barriers between writes and reads of shared memory, and can put one inside a branch that only
some of the threads it counts take. Conditions over the thread index are evaluated for every thread; others,
over loop variables and sizes, are taken to be true for all threads or none.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import LoweringError

_KERNEL = re.compile(r"__launch_bounds__\((\d+)[,)].*?(\w+)\(.*\{\s*$")
_BARRIER = re.compile(r"\btl::__sync_thread_partial\((\d+), (\d+)\)|\b__syncthreads\(\)")
_ARRIVAL = re.compile(r"\bbar\.arrive\s+(\d+), (\d+)|\btl::__named_barrier_arrive\((\d+), (\d+)\)")
_IF = re.compile(r"if \((.*)\) \{$")
_PLAIN = re.compile(r"[\d\s()<>=!&|+\-*/%^t]*")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True)
class _Site:
    """Where threads wait or arrive: the barrier, how many it counts, and which threads come here."""

    barrier: int
    count: int
    threads: frozenset[int]
    waits: bool
    line: int


def check_barriers(source: str) -> None:
    """Look through generated CUDA.

    Raises:
        LoweringError: a barrier counts more threads than reach it; names the kernel and the line.
    """
    for kernel, sites in _sites(source.splitlines()):
        for site in sites:
            if site.waits and not _opens(site, sites):
                raise LoweringError(
                    f"{kernel}: a barrier for {site.count} threads is reached by {len(site.threads)} of them "
                    f"(line {site.line} of the generated code), and would never open"
                )


def _opens(site: _Site, sites: list[_Site]) -> bool:
    """Enough threads come here, or the rest come to other places that name the same barrier."""
    if len(site.threads) == site.count:
        return True
    others = [s.threads for s in sites if s.barrier == site.barrier and not s.threads & site.threads]
    return len(site.threads.union(*others)) >= site.count


def _sites(lines: list[str]) -> Iterator[tuple[str, list[_Site]]]:
    kernel, sites, stack, threads = "", [], [], frozenset()
    for number, line in enumerate(map(str.strip, lines), 1):
        if found := _KERNEL.search(line):
            kernel, sites = found[2], []
            threads = frozenset(range(int(found[1])))
            stack = [(threads, frozenset())]
            continue
        if not stack:
            continue
        if line.startswith("}"):
            _, rest = stack.pop()
            if line.endswith("else {"):
                stack.append((rest, frozenset()))
            if not stack:
                yield kernel, sites
        elif line.endswith("{"):
            here = stack[-1][0]
            taken = _taken(line, here)
            stack.append((here, here) if taken is None else (taken, here - taken))
        elif stack and (found := _BARRIER.search(line)):
            barrier, count = (int(found[1]), int(found[2])) if found[1] else (0, len(threads))
            sites.append(_Site(barrier, count, stack[-1][0], True, number))
        elif stack and (found := _ARRIVAL.search(line)):
            barrier, count = map(int, filter(None, found.groups()))
            sites.append(_Site(barrier, count, stack[-1][0], False, number))


def _taken(line: str, here: frozenset[int]) -> frozenset[int] | None:
    """Threads for which a condition holds; None where it does not speak of the thread index alone."""
    found = _IF.search(line)
    if not found or "threadIdx.x" not in found[1]:
        return None
    condition = found[1].replace("((int)threadIdx.x)", "t").replace("threadIdx.x", "t")
    if not _PLAIN.fullmatch(condition):
        return None
    condition = condition.replace("&&", " and ").replace("||", " or ").replace("/", "//")
    tree = ast.parse(condition, mode="eval").body
    return frozenset(t for t in here if _value(tree, t))


def _value(node: ast.expr, t: int) -> int:
    """An expression of C over integers and the thread index `t`, whose grammar is Python's here."""
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name():
            return t
        case ast.BinOp(left, op, right):
            return _OPERATORS[type(op)](_value(left, t), _value(right, t))
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, t)
        case ast.BoolOp(op, values):
            return (all if isinstance(op, ast.And) else any)(_value(v, t) for v in values)
        case ast.Compare(left, [op], [right]):
            return _OPERATORS[type(op)](_value(left, t), _value(right, t))
    raise LoweringError(f"a condition over the thread index is not understood: {ast.unparse(node)}")
