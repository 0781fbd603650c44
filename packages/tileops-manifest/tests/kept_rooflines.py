"""Write what the rooflines of the shipped rows amount to, beside this file: run it after a formula changes.

A formula is read by nobody's eye once it is written; numbers are. A change of a formula must change this file
too, where its reviewers see by how much.
"""

from __future__ import annotations

import json
from pathlib import Path

from tileops_manifest import Entry, load_manifest

KEPT = Path(__file__).with_name("rooflines.json")


def figures(entry: Entry) -> dict[str, list[int]]:
    """Operations and bytes of each row of an entry, in the row's first dtype."""
    found: dict[str, list[int]] = {}
    for case in entry.cases():
        if case.row.label not in found:
            binding = case.bind()
            found[case.row.label] = [int(binding.flops), int(binding.bytes)]
    return found


def text() -> str:
    """The file's content: one line an entry."""
    entries = load_manifest().entries.items()
    lines = [f"{json.dumps(name)}: {json.dumps(figures(entry))}" for name, entry in entries]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    KEPT.write_text(text(), encoding="utf-8")
