"""Who judges a mutant: per area a process in the environment of the tests that should notice it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boundary.model import load_table
from mutants.make import Mutant
from mutants.ops import ops_for, users
from mutants.state import SUITES

HERE = Path(__file__).parent
IDLE_SECONDS = 1.0  # that a judge without a mutant takes to end
# One process at a time does the work; what a plugin of some wheel does is no part of a suite.
QUIET = {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


class JudgeError(RuntimeError):
    """A judge cannot be started."""


@dataclass(frozen=True)
class Said:
    """What became of a mutant, why, and which files killed it, where that is known."""

    outcome: str
    detail: str
    by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Area:
    """Where an area's mutants are made and judged.

    Attributes:
        environment: of hatch.
        sources: of the package that is mutated.
        stages: tests, as arguments of pytest, in the order in which a mutant is shown them.
        script: the judge's.
        warm: what may be imported before a mutant: nothing that is mutated.
    """

    environment: str
    sources: str
    stages: tuple[tuple[str, ...], ...]
    script: str = "suite.py"
    warm: tuple[str, ...] = ("pytest", "torch", "tileops_manifest", "tileops_workloads")


_ORACLES = SUITES["oracles"][0]
AREAS = {
    "comparator": Area(
        "matrix.tests", "packages/tileops-tests/src", tuple((path,) for path in SUITES["comparator"])
    ),
    "oracles": Area(
        "matrix.tests",
        "packages/tileops-tests/src",
        stages=(
            (f"{_ORACLES}/test_oracles.py::test_opinions_agree_on_the_ragged_row",),
            (_ORACLES,),
        ),
    ),
    "rooflines": Area(
        "matrix.manifest",
        "packages/tileops-manifest/src",
        stages=((SUITES["rooflines"][0],),),
        warm=("pytest", "pydantic", "yaml"),
    ),
    "kernels": Area(
        "matrix.tests",
        "packages/tileops-kernels/src",
        script="judge.py",
        stages=((*("-k", "programs"), SUITES["kernels"][0]),),
        # All but the kernels, which ops import at their first call.
        warm=("pytest", "tileops_kernels.ops", "tileops_kernels.targets"),
    ),
}


def interpreter(root: Path, environment: str) -> str:
    """The Python of a hatch environment of this checkout, which is made if need be.

    Raises:
        JudgeError: the environment cannot be made.
    """
    words = [sys.executable, "-m", "hatch", "--quiet", "run", f"{environment}:python", "-c"]
    done = subprocess.run(
        [*words, "import sys; print(sys.executable)"], cwd=root, capture_output=True, text=True
    )
    if done.returncode:
        raise JudgeError(f"{environment}: {(done.stdout + done.stderr)[-1000:]}")
    return done.stdout.splitlines()[-1]


class Judge:
    """The process that judges an area's mutants, one after the other; one that is lost is started again."""

    def __init__(self, root: Path, area: str, scratch: Path) -> None:
        self.root, self.area, self.scratch = root, AREAS[area], scratch
        self._python = interpreter(root, self.area.environment)
        self._process: subprocess.Popen[str] | None = None
        self._users = users(root, load_table(root)) if area == "kernels" else None

    def judge(self, mutant: Mutant) -> Said:
        """What the area's suite says of a mutant."""
        source = (self.root / mutant.file).read_bytes()
        asked = {
            "file": str(Path(mutant.file).relative_to(self.area.sources)),
            "text": mutant.apply(source).decode(),
            "line": mutant.line,
            "end": mutant.last_line,
        }
        if mutant.area == "kernels":
            asked["ops"] = ops_for(mutant.file, source.decode(), mutant.line, self._users.ops)
            asked["modules"] = self._users.modules[mutant.file]
        answer = self._ask(asked)
        return Said(answer["outcome"], answer["detail"], tuple(answer.get("by", ())))

    def _ask(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._process = self._start()
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        status, self._process = self._process.wait(), None
        return {"outcome": "unjudged", "detail": f"the judge ended with {status}"}

    def _start(self) -> subprocess.Popen[str]:
        self.scratch.mkdir(parents=True, exist_ok=True)
        config = {
            "sources": str(self.root / self.area.sources),
            "scratch": str(self.scratch),
            "stages": self.area.stages,
            "warm": self.area.warm,
            "oracles": _ORACLES in self.area.stages[-1],
        }
        process = subprocess.Popen(
            [self._python, str(HERE / self.area.script), json.dumps(config)],
            cwd=self.root, env=os.environ | QUIET, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        if not process.stdout.readline():
            raise JudgeError(f"{self.area.script} of {self.area.sources} ended with {process.wait()}")
        return process

    def close(self) -> None:
        """End the process; one that is at a mutant still is interrupted."""
        if self._process is None:
            return
        self._process.stdin.close()
        try:
            self._process.wait(timeout=IDLE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
