"""Measure what the package costs: ``python packages/tileops-manifest/tests/measure_cost.py``.

Prints the import time, and the time to load and fully validate at least 200 entries with 700 rows. They are
the shipped entries under new names, each copy with formulas of its own, so that no cache of compiled formulas
helps. Every figure is the least of several fresh processes; processor time, since a shared machine says
little about elapsed time.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tileops_manifest.loader import PACKAGED

COPIES = 2
RUNS = 5

IMPORT = "import time; t = time.process_time(); import tileops_manifest; print(time.process_time() - t)"
LOAD = (
    "import sys, time; from tileops_manifest import load_manifest; t = time.process_time(); "
    "r = load_manifest(sys.argv[1]).report; print(time.process_time() - t, r.entries, r.rows, r.evaluated)"
)


def synthesise(folder: Path) -> None:
    """Write COPIES renamed copies of every packaged file into ``folder``."""
    for copy in range(COPIES):
        for file in PACKAGED.glob("*.yaml"):
            text = re.sub(
                r"^  (\w+?)(FwdOp|BwdOp):", rf"  \1V{copy}\2:", file.read_text("utf-8"), flags=re.MULTILINE
            )
            text = re.sub(r'flops: "([^"]+)"', rf'flops: "\1 + {copy}"', text)
            (folder / f"{file.stem}_{copy}.yaml").write_text(text, encoding="utf-8")


def fastest(code: str, *arguments: str) -> list[str]:
    """The words that the fastest of RUNS fresh interpreters prints; the first is its time."""
    runs = [
        subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        for _ in range(RUNS)
    ]
    return min((run.stdout.split() for run in runs), key=lambda words: float(words[0]))


def main() -> None:
    print(f"import {float(fastest(IMPORT)[0]):.3f} s")
    with tempfile.TemporaryDirectory() as folder:
        synthesise(Path(folder))
        seconds, entries, rows, evaluated = fastest(LOAD, folder)
    counts = f"{entries} entries, {rows} rows, {evaluated} rule evaluations"
    print(f"load and validate {counts}: {float(seconds):.3f} s")


if __name__ == "__main__":
    main()
