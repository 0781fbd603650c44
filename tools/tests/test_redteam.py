"""The red team's table is whole; a cheat that gets through, or ends for another reason, is not caught."""

from __future__ import annotations

from pathlib import Path

import pytest

import redteam

ROOT = Path(__file__).resolve().parents[2]
CASE = {"id": "1-0", "number": 1, "kind": "k", "sample": "s", "judge": "verdict", "code": "wrong_value"}
FAILED = {"status": "failed", "codes": ["wrong_value"], "declared": 1, "message": "output is wrong"}


def test_a_candidate_that_fails_for_its_reason_is_caught() -> None:
    assert redteam.judged(CASE, FAILED).caught


@pytest.mark.parametrize(
    "answer",
    [
        FAILED | {"status": "passed", "codes": []},
        FAILED | {"codes": ["exception"]},
        FAILED | {"declared": 0},
        FAILED | {"status": "refused"},
    ],
)
def test_a_candidate_that_passes_or_fails_for_another_reason_is_missed(answer: dict) -> None:
    row = redteam.judged(CASE, answer)
    assert not row.caught
    assert "expected wrong_value" in row.detail


def test_a_candidate_must_say_what_stopped_it() -> None:
    case = CASE | {"code": "exception", "says": "not available"}
    answer = FAILED | {"codes": ["exception"], "message": "TypeError: unrelated"}
    assert not redteam.judged(case, answer).caught


REPORT = """<testsuites><testsuite>
<testcase classname="packages.x.tests.test_a" name="test_caught"/>
<testcase classname="packages.x.tests.test_a" name="test_missed"><failure message="no"/></testcase>
<testcase classname="packages.x.tests.test_a" name="test_skipped"><skipped message="no"/></testcase>
<testcase classname="packages.x.tests.test_a" name="test_both[1]"/>
<testcase classname="packages.x.tests.test_a" name="test_both[2]"><error message="no"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("test", "caught"),
    [
        ("test_a.py::test_caught", True),
        ("test_a.py::test_missed", False),
        ("test_a.py::test_skipped", False),
        ("test_a.py::test_both", False),
        ("test_a.py::test_both[1]", True),
        ("test_a.py::test_absent", False),
        ("test_b.py::test_caught", False),
    ],
)
def test_a_test_must_have_run_and_passed(tmp_path: Path, test: str, caught: bool) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    outcomes = redteam.read_report(tmp_path / "report.xml")
    assert redteam.tested({"test": test, "code": "x"}, outcomes).caught is caught


def test_every_sample_has_a_case_and_every_case_something_to_run() -> None:
    cases = redteam.load_cases()
    assert [case["number"] for case in cases] == sorted(case["number"] for case in cases)
    assert {case["number"] for case in cases} == set(range(1, 51))
    for case in cases:
        if case["judge"] == "verdict":
            file, _, name = case["candidate"].rpartition(":")
            assert (ROOT / file).is_file()
            assert name
            assert case["op"]
            assert case["cases"]
        else:
            folder, _ = redteam.TESTS[case["judge"]]
            file, _, name = case["test"].partition("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / folder / file).read_text(encoding="utf-8")


def test_a_judge_that_does_not_answer_is_an_error_not_a_catch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def silent(cases: list, scratch: Path) -> list:
        raise redteam.JudgeError("no answer")

    monkeypatch.setattr(redteam, "verdicts", silent)
    assert redteam.main(["--judge", "verdict"]) == 2
    assert "no answer" in capsys.readouterr().err
