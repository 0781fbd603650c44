"""Judges of mutants: a process per area, a fork per mutant, and no outcome that a crash decides."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from mutants import judges, suite
from mutants.forked import in_fork
from mutants.judge import Kernels, _by_op, _growing
from mutants.judges import Area, JudgeError, Said
from mutants.lines import ops_of
from mutants.make import Mutant

HALVES = "def half(x):\n    return x / 2\n"
TESTS = """
import os, time
import pytest
import halves


def test_a_half():
    assert halves.half(4) == 2


def test_that_fails_anyway():
    assert halves.half(3) == 1


@pytest.mark.parametrize("op", ["AFwdOp", "BFwdOp"])
def test_of_an_op(op):
    assert halves.half(0) == 0
"""


def test_a_fork_answers_and_leaves_nothing_behind() -> None:
    assert in_fork(lambda: {"a": [1]}, 10.0) == {"value": {"a": [1]}}
    assert in_fork(lambda: [][0], 10.0)["ended"].startswith("IndexError: list index out of range")
    assert in_fork(lambda: os._exit(3), 10.0) == {"ended": "exit status 3"}
    assert in_fork(lambda: os.kill(os.getpid(), signal.SIGKILL), 10.0) == {"ended": "signal 9"}
    assert in_fork(lambda: time.sleep(60), 0.1) == {"ended": "no end within 0 s"}
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/halves.py").write_text(HALVES, encoding="utf-8")
    (tmp_path / "test_halves.py").write_text(TESTS, encoding="utf-8")
    area = Area("any", "src", stages=(("test_halves.py",),), warm=("pytest",))
    monkeypatch.setitem(judges.AREAS, "halves", area)
    monkeypatch.setattr(judges, "interpreter", lambda root, environment: sys.executable)
    return tmp_path


def mutant(before: str, after: str) -> Mutant:
    start = HALVES.index(before)
    end = start + len(before)
    return Mutant("halves", "src/halves.py", "x", "operator", 2, 0, start, end, before, after)


def test_mutants_are_judged_by_tests_that_pass_without_them(root: Path) -> None:
    judge = judges.Judge(root, "halves", root / "scratch")
    try:
        outcomes = [
            judge.judge(mutant(*change))
            for change in (
                ("/ 2", "* 2"),
                ("/ 2", "/ 2.0"),
                ("/ 2", "/"),
                ("return x", "__import__('os').abort() or x"),
                ("def half", "import nothing_like_it\n\ndef half"),
            )
        ]
    finally:
        judge.close()
    assert outcomes[0] == Said("killed", "test_halves.py::test_a_half", ("test_halves.py",))
    assert outcomes[1] == Said("survived", "passes 3 tests")
    assert [said.outcome for said in outcomes[2:]] == ["killed"] * 3
    assert outcomes[3] == Said("killed", "signal 6")
    assert (root / "src/halves.py").read_text(encoding="utf-8") == HALVES


def test_a_suite_that_fails_without_a_mutant_judges_none(root: Path) -> None:
    (root / "test_halves.py").write_text("def test_wrong():\n    assert False\n", encoding="utf-8")
    judge = judges.Judge(root, "halves", root / "scratch")
    try:
        assert judge.judge(mutant("/ 2", "* 2")).outcome == "unjudged"
    finally:
        judge.close()


def test_a_judge_that_is_lost_is_started_again_and_its_mutant_is_not_killed(root: Path) -> None:
    judge = judges.Judge(root, "halves", root / "scratch")
    try:
        judge.judge(mutant("/ 2", "* 2"))
        judge._process.kill()
        judge._process.wait()
        assert judge.judge(mutant("/ 2", "* 2")) == Said("unjudged", "the judge ended with -9")
        assert judge.judge(mutant("/ 2", "* 2")).outcome == "killed"
    finally:
        judge.close()


def test_a_judge_that_is_at_a_mutant_is_interrupted(root: Path) -> None:
    marker = root / "begun"
    judge = judges.Judge(root, "halves", root / "scratch")
    judge.judge(mutant("/ 2", "* 2"))
    endless = mutant(
        "return x", f"open({str(marker)!r}, 'w').close(); __import__('time').sleep(600)\n    return x"
    )
    waiting = threading.Thread(target=judge.judge, args=[endless])
    waiting.start()
    deadline = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert marker.exists()
    judge.close()
    waiting.join(timeout=10)
    assert not waiting.is_alive()


def test_a_judge_that_does_not_start_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(judges.AREAS, "halves", Area("any", "src", ((),), warm=("nothing_like_it",)))
    with pytest.raises(JudgeError, match=r"suite\.py of src ended with 1"):
        judges.Judge(root, "halves", root / "scratch").judge(mutant("/ 2", "* 2"))


class Item:
    def __init__(self, **params: object) -> None:
        if params:
            self.callspec = self
        self.params = params


def test_a_test_is_about_the_ops_that_its_parameters_name() -> None:
    assert suite.about(Item(op="AFwdOp", dtype="float16"), ("AFwdOp", "BFwdOp"))
    assert not suite.about(Item(op="CFwdOp"), ("AFwdOp", "BFwdOp"))
    assert suite.about(Item(), ("AFwdOp",))
    assert suite.about(Item(dtype="float16"), ("AFwdOp",))


def test_ops_are_those_that_run_the_lines() -> None:
    lines = {"a.py": {1: ["AFwdOp"], 2: ["AFwdOp", "BFwdOp"], 9: ["CFwdOp"]}, "b.py": {1: ["DFwdOp"]}}
    assert ops_of(lines, "a.py", 1, 2) == ("AFwdOp", "BFwdOp")
    assert ops_of(lines, "a.py", 4, 5) == ("AFwdOp", "BFwdOp")  # run by none: those of the nearest line above
    assert ops_of(lines, "c.py", 1, 1) == ("AFwdOp", "BFwdOp", "CFwdOp", "DFwdOp")


class Programs:
    """The tests of programs in a GPU's block shapes."""

    def __init__(self, outcome: str) -> None:
        self.outcome = outcome

    def judge(self, asked: dict) -> dict:
        return {"outcome": self.outcome, "detail": "by the programs' tests"}


class Fake(Kernels):
    """A judge of kernels that is told what a mutant changes and which cases fail."""

    def __init__(self, changed: dict, failing: dict, unsound: set) -> None:
        self.changes, self.failing, self.unsound, self._sound, self._in = changed, failing, unsound, {}, False
        self.tried: list[str] = []
        self.suite = Programs("survived")

    def _uses(self, ops, modules):
        return {f"{op} program": [(op, "head"), (op, "ragged")] for op in ops}

    def _changed(self, asked, found, *, cuda, most):
        made = [program for program in found if program in self.changes]
        broken = next((self.changes[program] for program in made if self.changes[program]), None)
        return {"changed": made[:most], "broken": broken}

    def _samples_of(self, module):
        return [{"program": "sample", "arch": "sm_80"}]

    def _mutated(self, asked):
        judge = self

        class Mutated:
            def __enter__(self):
                judge._in = True

            def __exit__(self, *exc_info):
                judge._in = False

        return Mutated()

    def _failures(self, op, cases):
        self.tried += cases
        wrong = self.failing if self._in else self.unsound
        return {case: "wrong_value" for case in cases if (op, case) in wrong}


ASKED = {"ops": ["AFwdOp", "BFwdOp"], "modules": ["m"], "file": "f.py", "text": ""}


def test_odd_sizes_come_first_and_every_changed_case_is_tried_before_a_mutant_survives() -> None:
    judge = Fake({"AFwdOp program": None}, set(), set())
    assert judge.judge(ASKED) == {"outcome": "survived", "detail": "passes 2 cases of AFwdOp"}
    assert judge.tried == ["ragged", "ragged", "head"]


def test_a_failing_case_kills_unless_it_fails_without_the_mutant() -> None:
    failing = {("BFwdOp", "ragged"), ("BFwdOp", "head")}
    changed = {"BFwdOp program": None}
    killed = Fake(changed, failing, set()).judge(ASKED)
    assert killed == {"outcome": "killed", "detail": "BFwdOp ragged: wrong_value"}
    one_unsound = Fake(changed, failing, {("BFwdOp", "ragged")}).judge(ASKED)
    assert one_unsound == {"outcome": "killed", "detail": "BFwdOp head: wrong_value"}
    assert Fake(changed, failing, failing).judge(ASKED)["outcome"] == "survived"


def test_a_program_that_cannot_be_built_any_more_kills() -> None:
    found = Fake({"AFwdOp program": "TypeError: no"}, set(), set()).judge(ASKED)
    assert found == {"outcome": "killed", "detail": "AFwdOp head: TypeError: no"}


def test_what_changes_no_code_is_not_observable_and_what_changes_a_gpus_alone_needs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Fake({}, set(), set()).judge(ASKED)["outcome"] == "unobservable"
    lowered = {"value": "digest"}
    monkeypatch.setattr("mutants.judge.in_fork", lambda work, timeout: lowered)
    assert Fake({"sample": None}, set(), set()).judge(ASKED)["outcome"] == "device"
    lowered = {"ended": "LoweringError: no"}
    found = Fake({"sample": None}, set(), set()).judge(ASKED)
    assert found == {"outcome": "killed", "detail": "a sample does not lower: LoweringError: no"}
    assert Fake({"sample": "TypeError: no"}, set(), set()).judge(ASKED)["outcome"] == "killed"


@pytest.mark.parametrize("changed", [{"AFwdOp program": None}, {}])
def test_what_no_case_kills_is_shown_to_the_tests_of_programs(changed: dict) -> None:
    judge = Fake(changed, set(), set())
    judge.suite = Programs("killed")
    assert judge.judge(ASKED) == {"outcome": "killed", "detail": "by the programs' tests"}


def test_groups_of_cases_grow() -> None:
    assert [len(group) for group in _growing(list(range(12)))] == [1, 2, 4, 5]
    assert list(_growing([])) == []


def test_cases_are_sorted_by_op_once_each() -> None:
    uses = [[("A", "head"), ("A", "ragged")], [("A", "head"), ("B", "head")]]
    assert _by_op(uses) == {"A": ["ragged", "head"], "B": ["head"]}
