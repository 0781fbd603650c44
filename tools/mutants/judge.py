"""Judge mutants of kernels: each in a copy of the implementation, by tileops-tests' own verdict on CPU.

    hatch run matrix.tests:python tools/mutants/judge.py PACKAGE_SOURCES SCRATCH

Reads one JSON object a line from standard input (`id`, `file` below the package's sources, `text` of the
mutated file, `ops`), answers each with one (`id`, `outcome`, `detail`) on standard output. A mutant is killed
when an op that uses it fails; cases that are cheap to judge come first.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from tileops_manifest import load_manifest
from tileops_tests.limits import Limits
from tileops_tests.oracles import get_oracle
from tileops_tests.sandbox import build_sandbox
from tileops_tests.verify import Options, OpVerification
from tileops_tests.zygote import Zygote

LIMITS = Limits(run_seconds=60.0, compile_seconds=120.0, start_seconds=120.0)
# The ragged row in every dtype decides most; what survives it is shown the whole tier.
STAGES: tuple[tuple[str, ...], ...] = (("ragged-*",), ())
PACKAGE = "tileops_kernels"


def first_failure(ops: Iterable[str], only: tuple[str, ...], cache: Path) -> tuple[str, str] | None:
    """(op, what failed) of the first op that fails, None where all pass."""
    with build_sandbox("cpu", cache=cache) as sandbox, Zygote(sandbox, LIMITS) as zygote:
        for op in ops:
            options = Options(only=only, limits=LIMITS)
            record = OpVerification(load_manifest()[op], get_oracle(op), zygote, options).run()
            if record.failures:
                return op, f"{record.failures[0].case}: {record.failures[0].code}"
    return None


def judge(ops: Iterable[str], cache: Path) -> tuple[str, str]:
    """Outcome and detail: the first failure that any op shows."""
    for only in STAGES:
        found = first_failure(ops, only, cache)
        if found:
            return "killed", " ".join(found)
    return "survived", f"passes {', '.join(ops)}"


class Sound:
    """Ops whose suites pass without a mutant: the others would kill anything."""

    def __init__(self, cache: Path) -> None:
        self.cache, self.known = cache, {}

    def __call__(self, op: str) -> bool:
        if op not in self.known:
            try:
                self.known[op] = first_failure([op], STAGES[0], self.cache) is None
            except Exception:  # noqa: BLE001 - an oracle that fails can judge nobody
                self.known[op] = False
        return self.known[op]


def main(argv: list[str]) -> int:
    sources, scratch = Path(argv[0]), Path(argv[1])
    package = scratch / PACKAGE
    shutil.copytree(sources / PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    # Ahead of the installed one, which is never imported here: the worker imports what this path finds first.
    sys.path.insert(0, str(scratch))
    importlib.invalidate_caches()
    sound = Sound(scratch / "cache")
    for line in sys.stdin:
        asked = json.loads(line)
        ops = [op for op in asked["ops"] if sound(op)]
        if not ops:
            detail = f"no sound suite among {', '.join(asked['ops']) or 'none'}"
            print(json.dumps({"id": asked["id"], "outcome": "unjudged", "detail": detail}), flush=True)
            continue
        place = scratch / asked["file"]
        plain = place.read_text(encoding="utf-8")
        place.write_text(asked["text"], encoding="utf-8")
        try:
            outcome, detail = judge(ops, scratch / "cache")
        except Exception as error:  # noqa: BLE001 - an oracle that fails says nothing about the mutant
            outcome, detail = "unjudged", f"{type(error).__name__}: {error}"[:200]
        finally:
            place.write_text(plain, encoding="utf-8")
        print(json.dumps({"id": asked["id"], "outcome": outcome, "detail": detail}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
