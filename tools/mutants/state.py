"""What has become of mutants: one line each in a file that later runs read, add to and merge."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from mutants.make import TESTS, Mutant

_TESTS = "packages/tileops-tests"
# What judges a kernel by cases.
CASES = (
    "packages/tileops-workloads/src",
    *(
        f"{TESTS}/{name}.py"
        for name in ("cases", "comparator", "judge", "reference", "second", "tolerance", "verify")
    ),
)
# What judges an area.
SUITES: dict[str, tuple[str, ...]] = {
    "comparator": tuple(
        f"{_TESTS}/tests/test_{name}.py" for name in ("tolerance", "second", "comparator", "sensitivity")
    ),
    "oracles": (f"{_TESTS}/tests/oracles",),
    "rooflines": tuple(
        f"packages/tileops-manifest/tests/{name}"
        for name in ("test_rooflines.py", "kept_rooflines.py", "rooflines.json")
    ),
    "kernels": (f"{_TESTS}/tests/conformance", *CASES),
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
    """A mutant of this text of its file: another text makes it another mutant."""
    return f"{mutant.id}-{digest(root / mutant.file)}"


def witnesses(root: Path, mutant: Mutant, outcome: str, by: Iterable[str] = ()) -> dict[str, str]:
    """What an outcome rests on, with its digests: a kill on what killed (`by`, files below the root; where
    there is none a kernel's on its cases), everything else on the whole suite.
    """
    places = SUITES[mutant.area]
    if outcome == "killed":
        places = tuple(by) or (CASES if mutant.area == "kernels" else places)
    return {place: digest(root / place) for place in places}


def still_holds(root: Path, row: dict) -> bool:
    """Whether a finished mutant would be judged the same way today, as far as digests tell."""
    if row["outcome"] == "unjudged":
        return False
    return all((root / place).exists() and digest(root / place) == was for place, was in row["by"].items())


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
