"""Do the tests bite? `hatch run tools:mutation`.

Every mutant of the kernels' tile programs, the comparator, the oracles and the roofline formulas (or a
sample) is run against the suite that should notice it: a kernel against its ops' verdicts on CPU, the rest
against their package's tests. Finished mutants are kept in a state file, so that a run can be interrupted,
resumed and split (`--shard 1/8`). Exit status 1 unless `--goal` of them are killed, or argued to be
equivalent in `tools/mutants/equivalent.toml`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # PYTHONSAFEPATH keeps the script's own folder off the path

from boundary.model import load_table  # noqa: E402
from mutants.make import AREAS, Mutant, make_mutants  # noqa: E402
from mutants.ops import ops_for, users  # noqa: E402

STATE = ROOT / ".mutation/state.jsonl"
RESULT = ROOT / "docs/results/mutation.json"
EQUIVALENT = ROOT / "tools/mutants/equivalent.toml"
SUITE_SECONDS = 600
# How many ops judge a mutant of an oracle's file, and how many of all that of a file of helpers.
MOST_OPS, SOME_OPS = 24, 12
OPS_BY_FILE = """
import json
from tileops_tests.oracles import get_oracle, list_oracles, module_of
found = {}
for op in list_oracles():
    found.setdefault(module_of(get_oracle(op)).rpartition(".")[2] + ".py", []).append(op)
print(json.dumps(found))
"""
OUTCOMES = ("killed", "equivalent", "survived", "unjudged")


@dataclass(frozen=True)
class Suite:
    """The tests of an area that is judged by pytest: its package, environment and files."""

    package: str
    environment: str
    tests: tuple[str, ...]

    @property
    def sources(self) -> Path:
        return ROOT / "packages" / self.package / "src"


SUITES = {
    "comparator": Suite(
        "tileops-tests",
        "matrix.tests",
        tuple(f"test_{name}.py" for name in ("comparator", "tolerance", "sensitivity", "second")),
    ),
    "oracles": Suite("tileops-tests", "matrix.tests", ("oracles",)),
    "rooflines": Suite("tileops-manifest", "matrix.manifest", ("test_rooflines.py",)),
}


class JudgeError(RuntimeError):
    """A suite does not pass without a mutant, or a judge does not answer."""


def interpreter(environment: str) -> str:
    """The Python of a hatch environment of this checkout, which is made if need be.

    Raises:
        JudgeError: the environment cannot be made.
    """
    words = [sys.executable, "-m", "hatch", "--quiet", "run", f"{environment}:python", "-c"]
    done = subprocess.run(
        [*words, "import sys; print(sys.executable)"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise JudgeError(f"{environment}: {(done.stdout + done.stderr)[-1000:]}")
    return done.stdout.splitlines()[-1]


class SuiteJudge:
    """Runs an area's tests over a copy of its package in which one file is mutated."""

    def __init__(self, suite: Suite, scratch: Path) -> None:
        self.suite, self.scratch = suite, scratch
        self.python = interpreter(suite.environment)
        shutil.copytree(
            suite.sources, scratch, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
        )
        self._sound: dict[str, bool] = {}
        self._ops: dict[str, list[str]] | None = None

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        selection = self._selection(mutant)
        if not self._passes_unmutated(selection):
            return "unjudged", "its suite does not pass without a mutant"
        place = self.scratch / Path(mutant.file).relative_to(self.suite.sources.relative_to(ROOT))
        plain = place.read_bytes()
        place.write_bytes(mutant.apply((ROOT / mutant.file).read_bytes()))
        try:
            return self._run(selection)
        finally:
            place.write_bytes(plain)

    def _selection(self, mutant: Mutant) -> str:
        """Oracles' tests are chosen by op: those that the mutated file registers."""
        if mutant.area != "oracles":
            return ""
        if self._ops is None:
            self._ops = self._ops_by_file()
        everything = sorted(op for ops in self._ops.values() for op in ops)
        # A file of helpers is judged by some ops of every family.
        ops = self._ops.get(Path(mutant.file).name) or everything[:: max(1, len(everything) // SOME_OPS)]
        return " or ".join(sorted(ops)[:MOST_OPS])

    def _ops_by_file(self) -> dict[str, list[str]]:
        """Which ops each file of oracles defines, as its package says."""
        done = subprocess.run([self.python, "-c", OPS_BY_FILE], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise JudgeError(f"the oracles cannot be listed: {done.stderr[-1000:]}")
        return json.loads(done.stdout)

    def _passes_unmutated(self, selection: str) -> bool:
        if selection not in self._sound:
            self._sound[selection] = self._run(selection)[0] == "survived"
        return self._sound[selection]

    def _run(self, selection: str) -> tuple[str, str]:
        folder = ROOT / "packages" / self.suite.package / "tests"
        chosen = ["-k", selection] if selection else []
        words = [self.python, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *chosen]
        paths = [str(self.scratch), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        try:
            done = subprocess.run(
                [*words, *(str(folder / test) for test in self.suite.tests)],
                cwd=ROOT, capture_output=True, text=True, env=environment, timeout=SUITE_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "killed", f"no end within {SUITE_SECONDS} s"
        if done.returncode == 0:
            return "survived", "its suite passes"
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return "killed", (lines or [f"pytest ended with {done.returncode}"])[0][:160]

    def close(self) -> None:
        """Nothing runs on."""


class KernelJudge:
    """One process of the tests environment that judges mutants of kernels, one after the other."""

    def __init__(self, scratch: Path) -> None:
        self.users = users(ROOT, load_table(ROOT))
        sources = ROOT / "packages/tileops-kernels/src"
        words = [
            interpreter("matrix.tests"),
            str(ROOT / "tools/mutants/judge.py"),
            str(sources),
            str(scratch),
        ]
        self.process = subprocess.Popen(
            words, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        source = (ROOT / mutant.file).read_bytes()
        ops = ops_for(mutant.file, source.decode(), mutant.line, self.users)
        asked = {
            "id": mutant.id,
            "file": mutant.file.partition("/src/")[2],
            "text": mutant.apply(source).decode(),
            "ops": ops,
        }
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise JudgeError(f"the kernels' judge ended with {self.process.wait()}")
        answer = json.loads(line)
        return answer["outcome"], answer["detail"]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def choose(mutants: list[Mutant], sample: int | None, seed: int, shard: tuple[int, int]) -> list[Mutant]:
    """A sample takes from every area alike, by seed; a shard takes every n-th of what is left."""
    if sample is not None:
        by_area = {area: [m for m in mutants if m.area == area] for area in AREAS}
        for found in by_area.values():
            random.Random(seed).shuffle(found)
        turns = [
            m for turn in zip(*(_endless(found) for found in by_area.values()), strict=False) for m in turn
        ]
        mutants = list(dict.fromkeys(m for m in turns if m is not None))[:sample]
    index, count = shard
    return mutants[index - 1 :: count]


def _endless(found: list[Mutant]) -> list[Mutant | None]:
    return [*found, *[None] * (10_000 - len(found))]


def remembered(state: Path) -> dict[str, dict]:
    """Finished mutants by key; the last word on one counts."""
    if not state.is_file():
        return {}
    lines = state.read_text(encoding="utf-8").splitlines()
    return {row["key"]: row for row in map(json.loads, filter(None, lines))}


def key_of(mutant: Mutant) -> str:
    """A mutant of this text: another text of the file makes it another mutant."""
    digest = hashlib.sha256((ROOT / mutant.file).read_bytes()).hexdigest()[:12]
    return f"{mutant.id}-{digest}"


def run(mutants: Iterable[Mutant], state: Path) -> list[dict]:
    """Judge what is not remembered; every finished mutant is on disk before the next begins."""
    done = remembered(state)
    argued = {row["id"]: row["because"] for row in tomllib.loads(EQUIVALENT.read_text()).get("mutant", ())}
    rows = []
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        judges: dict[str, SuiteJudge | KernelJudge] = {}
        state.parent.mkdir(parents=True, exist_ok=True)
        log = stack.enter_context(state.open("a", encoding="utf-8"))
        for mutant in mutants:
            key = key_of(mutant)
            row = done.get(key)
            # A survivor is shown to the tests again: they may have learned since.
            if row is None or row["outcome"] not in ("killed", "equivalent"):
                if mutant.area not in judges:
                    made = _judge_of(mutant.area, scratch / mutant.area)
                    judges[mutant.area] = made
                    stack.callback(made.close)
                outcome, detail = judges[mutant.area].judge(mutant)
                row = {"key": key, "id": mutant.id, "area": mutant.area, "note": mutant.note,
                       "mutant": str(mutant), "outcome": outcome, "detail": detail}  # fmt: skip
                log.write(json.dumps(row) + "\n")
                log.flush()
            if row["outcome"] == "survived" and mutant.id in argued:
                row = row | {"outcome": "equivalent", "detail": argued[mutant.id]}
            print(f"{row['outcome']:10} {row['area']:10} {row['mutant']} ({row['detail']})", file=sys.stderr)
            rows.append(row)
    return rows


def _judge_of(area: str, scratch: Path) -> SuiteJudge | KernelJudge:
    scratch.mkdir()
    return KernelJudge(scratch) if area == "kernels" else SuiteJudge(SUITES[area], scratch)


def summary(rows: list[dict], total: int) -> dict:
    """The figures, with every survivor by name; `of` is how many mutants there are in all."""
    counts = Counter(row["outcome"] for row in rows)
    areas = {}
    for area in dict.fromkeys(row["area"] for row in rows):
        found = Counter(row["outcome"] for row in rows if row["area"] == area)
        areas[area] = {name: found[name] for name in OUTCOMES}
    kept = ("id", "area", "mutant", "detail")
    return {
        "schema": "tileops-mutation/1",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "of": total,
        "mutants": len(rows),
        **{name: counts[name] for name in OUTCOMES},
        "areas": areas,
        "survivors": [{k: r[k] for k in kept} for r in rows if r["outcome"] in ("survived", "unjudged")],
    }


def reaches(found: dict, goal: float) -> bool:
    """Whether enough mutants are killed or argued; what could not be judged counts for nothing."""
    judged = found["mutants"] - found["unjudged"]
    return judged > 0 and found["killed"] + found["equivalent"] >= goal * judged


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard, expected one such as 2/8")
    return int(index), int(count)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hatch run tools:mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("--area", action="append", choices=AREAS, help="only these (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="N mutants, from every area alike")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="every N-th mutant")
    parser.add_argument(
        "--goal", type=float, default=0.95, metavar="SHARE", help="killed or argued, of those judged (0.95)"
    )
    parser.add_argument("--state", type=Path, default=STATE, help="finished mutants; delete it to begin anew")
    parser.add_argument("--out", type=Path, help=f"write the figures here (all mutants: {RESULT.name})")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument(
        "--remembered", action="store_true", help="run none: the figures of what the state file holds"
    )
    parser.add_argument("--list", action="store_true", help="name the mutants and run none")
    args = parser.parse_args(argv)
    mutants = make_mutants(ROOT, args.area or AREAS)
    chosen = choose(mutants, args.sample, args.seed, args.shard)
    if args.remembered:
        done = remembered(args.state)
        chosen = [mutant for mutant in chosen if key_of(mutant) in done]
        found = summary([done[key_of(mutant)] for mutant in chosen], len(mutants))
        (args.out or RESULT).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0 if reaches(found, args.goal) else 1
    if args.list:
        print("\n".join(f"{mutant.id} {mutant.area:10} {mutant}" for mutant in chosen))
        return 0
    try:
        found = summary(run(chosen, args.state), len(mutants))
    except JudgeError as error:
        print(f"mutation: {error}", file=sys.stderr)
        return 2
    whole = args.sample is None and args.shard == (1, 1) and args.area is None
    out = args.out or (RESULT if whole else None)
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        figures = ", ".join(f"{found[name]} {name}" for name in OUTCOMES)
        print(f"{found['mutants']} of {found['of']} mutants: {figures}")
    return 0 if reaches(found, args.goal) else 1


if __name__ == "__main__":
    raise SystemExit(main())
