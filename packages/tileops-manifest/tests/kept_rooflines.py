"""Write what the rooflines of the shipped rows amount to, beside this file: run it after a formula changes.

A formula is read by nobody's eye once it is written; numbers are. A change of a formula must change this file
too, where its reviewers see by how much.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tileops_manifest import Entry, Row, SpecError, load_manifest

KEPT = Path(__file__).with_name("rooflines.json")


def figures(entry: Entry) -> dict[str, list[int]]:
    """Operations and bytes of each row of an entry, and of what its last row is with one thing turned, in the
    row's first dtype.
    """
    found: dict[str, list[int]] = {}
    for row in (*entry.workloads, *turned(entry, entry.workloads[-1])):
        try:
            binding = entry.bind_row(row, entry.resolve_dtypes(row.dtypes[0]))
        except SpecError:
            if row in entry.workloads:
                raise
            continue  # the entry forbids it
        found[row.label] = [int(binding.flops), int(binding.bytes)]
    return found


def turned(entry: Entry, row: Row) -> Iterator[Row]:
    """A row with one size 1, one optional input given or left out, or one param at another of its values:
    what a formula tells apart, rows need not. Not all of them are legal.
    """
    for name, sizes in row.dims.items():
        yield replace(row, label=f"{name}=1", dims={**row.dims, name: 1 if isinstance(sizes, int) else (1,)})
    for name, spec in entry.inputs.items():
        if spec.optional:
            given = tuple(other for other in row.with_ if other != name)
            label = f"without {name}" if name in row.with_ else f"with {name}"
            yield replace(row, label=label, with_=given if name in row.with_ else (*given, name))
    for name, spec in entry.params.items():
        now = row.params.get(name, spec.default)
        others = spec.choices or {"bool": (False, True), "int": (0, 1), "float": (0.0, 1.0)}.get(
            str(spec.type), ()
        )
        for value in others:
            if value != now:
                yield replace(row, label=f"{name}={value}", params={**row.params, name: value})


def text() -> str:
    """The file's content: one line an entry."""
    entries = load_manifest().entries.items()
    lines = [f"{json.dumps(name)}: {json.dumps(figures(entry))}" for name, entry in entries]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    KEPT.write_text(text(), encoding="utf-8")
