"""Cheats against their judges: `hatch run tools:redteam`.

Each case of tools/cheats/cases.toml is run: a candidate is judged by tileops-tests in its own environment,
a cheat against the clock, the report or the process by the test that carries it out. A case is caught when it
is rejected for its own reason. Prints `caught X of Y` with a row each; exit status 1 unless all are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
CASES = ROOT / "tools/cheats/cases.toml"
# Where a judge's tests lie, and the environment that they run in (None: this one).
TESTS: dict[str, tuple[str, str | None]] = {
    "tests": ("packages/tileops-tests/tests", "matrix.tests"),
    "bench": ("packages/tileops-bench/tests", "matrix.bench"),
    "tools": ("tools/tests", None),
}
VERDICTS = "matrix.tests"


class JudgeError(RuntimeError):
    """A judge did not answer: nothing can be said about its cases."""


@dataclass(frozen=True)
class Row:
    """What came of one case."""

    case: dict
    caught: bool
    detail: str

    def data(self) -> dict:
        kept = ("number", "kind", "sample", "judge", "code", "candidate", "test", "cuda")
        return {key: self.case[key] for key in kept if key in self.case} | {
            "caught": self.caught,
            "detail": self.detail,
        }


def load_cases(path: Path = CASES) -> list[dict]:
    """The cases with an id each."""
    cases = tomllib.loads(path.read_text(encoding="utf-8"))["case"]
    return [case | {"id": f"{case['number']}-{place}"} for place, case in enumerate(cases)]


def command(environment: str | None, *words: str) -> list[str]:
    """A command in a hatch environment of this checkout, or in the running one."""
    if environment is None:
        return [sys.executable, *words]
    return [sys.executable, "-m", "hatch", "--quiet", "run", f"{environment}:python", *words]


def verdicts(cases: Sequence[dict], scratch: Path) -> list[Row]:
    """Judge candidates.

    Raises:
        JudgeError: the judge ended without an answer.
    """
    asked, answered = scratch / "cases.json", scratch / "verdicts.json"
    asked.write_text(json.dumps([c | {"candidate": f"{ROOT}/{c['candidate']}"} for c in cases]))
    words = command(VERDICTS, str(ROOT / "tools/cheats/verdicts.py"), str(asked), str(answered))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise JudgeError(f"verdicts ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    answers = json.loads(answered.read_text(encoding="utf-8"))
    return [judged(case, answers[case["id"]]) for case in cases]


def judged(case: dict, answer: dict) -> Row:
    """A candidate is caught when it fails for its own reason, and says what it must."""
    reasons = {case["code"], *case.get("also", ())}.intersection(answer["codes"])
    right = answer["status"] == "failed" and bool(reasons) and answer["declared"] > 0
    right = right and case.get("says", "") in answer["message"]
    shown = ", ".join(answer["codes"]) or answer["status"]
    return Row(case, right, shown if right else f"{shown}: {answer['message']}, expected {case['code']}")


def tests(judge: str, cases: Sequence[dict], scratch: Path) -> list[Row]:
    """Run the tests that carry cheats out, all of one judge in one process."""
    folder, environment = TESTS[judge]
    report = scratch / f"{judge}.xml"
    # Ids with brackets or line ends in them cannot be named to pytest: whole functions are.
    nodes = sorted({f"{folder}/{case['test'].partition('[')[0]}" for case in cases})
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *nodes)
    done = subprocess.run(command(environment, *words), cwd=ROOT, capture_output=True, text=True)
    if not report.is_file():
        raise JudgeError(
            f"the tests of {judge} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"
        )
    outcomes = read_report(report)
    return [tested(case, outcomes) for case in cases]


def read_report(path: Path) -> dict[str, bool]:
    """Whether each test passed, by `file.py::name` as far as a report tells."""
    outcomes: dict[str, bool] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        module = case.get("classname", "").rpartition(".")[2]
        bad = any(case.find(tag) is not None for tag in ("failure", "error", "skipped"))
        name = f"{module}.py::{case.get('name')}"
        outcomes[name] = outcomes.get(name, True) and not bad
    return outcomes


def tested(case: dict, outcomes: dict[str, bool]) -> Row:
    """A cheat is caught when its test ran and passed: the test asserts the reason."""
    name = case["test"].rpartition("/")[2]
    ran = [ok for test, ok in outcomes.items() if test == name or test.startswith(f"{name}[")]
    caught = bool(ran) and all(ran)
    return Row(case, caught, case["code"] if caught else f"{len(ran)} tests ran, {ran.count(False)} failed")


def run(cases: Sequence[dict]) -> list[Row]:
    """Every case, in order."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        for judge in TESTS:
            chosen = [case for case in cases if case["judge"] == judge]
            rows += tests(judge, chosen, Path(scratch)) if chosen else []
        chosen = [case for case in cases if case["judge"] == "verdict"]
        rows += verdicts(chosen, Path(scratch)) if chosen else []
    order = [case["id"] for case in cases]
    return sorted(rows, key=lambda row: order.index(row.case["id"]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hatch run tools:redteam", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--judge", choices=("verdict", *TESTS), help="only the cases of one judge")
    args = parser.parse_args(argv)
    try:
        rows = run([case for case in load_cases() if args.judge in (None, case["judge"])])
    except JudgeError as error:
        print(f"redteam: {error}", file=sys.stderr)
        return 2
    caught = sum(row.caught for row in rows)
    if args.json:
        print(
            json.dumps({"cases": len(rows), "caught": caught, "rows": [row.data() for row in rows]}, indent=1)
        )
    else:
        kind = None
        for row in rows:
            if row.case["kind"] != kind:
                kind = row.case["kind"]
                print(f"\n{kind}")
            note = f" (for the device: {row.case['cuda']})" if "cuda" in row.case else ""
            mark = "caught" if row.caught else "MISSED"
            print(f"{row.case['number']:4} {mark} {row.case['sample']}: {row.detail}{note}")
        print(f"\ncaught {caught} of {len(rows)}")
    return 0 if caught == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
