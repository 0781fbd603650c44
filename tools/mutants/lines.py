"""Which ops' oracles run which lines: the ops that can tell a mutant of a line."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mutants.forked import in_fork

SECONDS = 900.0
FOLDER = "tileops_tests/oracles"

Lines = Mapping[str, Mapping[int, list[str]]]


def ops_by_line() -> Lines:
    """File (below the package's sources) -> line -> ops whose oracle ran it on their ragged rows.

    Raises:
        RuntimeError: the oracles do not run.
    """
    result = in_fork(_trace_all, SECONDS)
    if "value" not in result:
        raise RuntimeError(f"the oracles do not run without a mutant: {result['ended']}")
    return {file: {int(line): ops for line, ops in lines.items()} for file, lines in result["value"].items()}


def ops_of(lines: Lines, file: str, first: int, last: int) -> tuple[str, ...]:
    """The ops that run one of the lines; where none does, those of the nearest line above that is run (the
    function's head), and of a file that none runs all.
    """
    known = lines.get(file, {})
    found = {op for line in range(first, last + 1) for op in known.get(line, ())}
    above = [line for line in known if line < first]
    if not found and above:
        found = set(known[max(above)])
    if not found:
        found = {op for ran in lines.values() for ops in ran.values() for op in ops}
    return tuple(sorted(found))


def _trace_all() -> dict[str, dict[int, list[str]]]:
    from tileops_tests.oracles import get_oracle, list_oracles

    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for op in list_oracles():
        with _traced(lambda file, line, op=op: found[file][line].add(op)):
            _use(get_oracle(op))
    return {file: {line: sorted(ops) for line, ops in lines.items()} for file, lines in found.items()}


def _use(oracle: Any) -> None:
    """Everything that an oracle is asked for, on the row of odd sizes in each of its dtypes."""
    from tileops_manifest import load_manifest
    from tileops_workloads import make_workload

    entry = load_manifest()[oracle.op]
    row = entry.row("ragged")
    for dtypes in row.dtypes:
        for distribution in ("normal", "adversarial"):
            workload = make_workload(entry, row, dtypes, distribution=distribution)
            inputs, params = workload.gen_inputs(), workload.params
            outputs = oracle.ref_program(inputs, params)
            oracle.second_opinion(inputs, params)
            oracle.canonical_form(inputs, params, outputs)
            oracle.scale(inputs, params)
            oracle.reduction_length(inputs, params)
            if oracle.wide is not None:
                oracle.wide_program(inputs, params)
        for check in oracle.properties:
            check(oracle.ref_program, inputs, params)


@contextmanager
def _traced(ran: Callable[[str, int], None]) -> Iterator[None]:
    """Report every line of the oracles that is run."""

    def enter(frame: FrameType, event: str, argument: object) -> Callable | None:
        _, found, name = frame.f_code.co_filename.rpartition(FOLDER)
        if not found:
            return None
        file = FOLDER + name

        def line(frame: FrameType, event: str, argument: object) -> Callable:
            if event == "line":
                ran(file, frame.f_lineno)
            return line

        ran(file, frame.f_lineno)
        return line

    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(None)
