"""What has become of mutants: one line each in a file that later runs read, add to and merge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mutants.make import TESTS, Mutant

_TESTS = "packages/tileops-tests"
# What judges an area: a change there makes its outcomes a matter of the past.
SUITES = {
    "comparator": [
        f"{_TESTS}/tests/test_{name}.py" for name in ("tolerance", "second", "comparator", "sensitivity")
    ],
    "oracles": [f"{_TESTS}/tests/oracles"],
    "rooflines": [
        f"packages/tileops-manifest/tests/{name}"
        for name in ("test_rooflines.py", "kept_rooflines.py", "rooflines.json")
    ],
    "kernels": [
        f"{_TESTS}/tests/conformance",
        "packages/tileops-workloads/src",
        *(
            f"{TESTS}/{name}.py"
            for name in ("cases", "comparator", "judge", "reference", "second", "tolerance", "verify")
        ),
    ],
}


@cache
def digest(path: Path) -> str:
    """Of a file, or of all sources and data below a folder."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*.*") if p.suffix in (".py", ".json"))
    if not files:
        raise FileNotFoundError(f"{path} is no file and holds none, expected what judges mutants")
    parts = (f"{p.relative_to(path.parent)}\0".encode() + p.read_bytes() for p in files)
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def key_of(root: Path, mutant: Mutant) -> str:
    """A mutant of this text of its file, before this suite: another text makes it another mutant, and what
    another suite said of it is not known to be true.
    """
    judges = "".join(digest(root / place) for place in SUITES[mutant.area])
    return "-".join([mutant.id, digest(root / mutant.file), hashlib.sha256(judges.encode()).hexdigest()[:12]])


def remembered(states: Iterable[Path]) -> dict[str, dict]:
    """Finished mutants by key, of all files; the last word on one counts, but no word is worse than any."""
    found: dict[str, dict] = {}
    for state in states:
        if not state.is_file():
            continue
        for line in state.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["outcome"] != "unjudged" or row["key"] not in found:
                found[row["key"]] = row
    return found
