"""The command over all clauses: what counts as held, and that its table is whole."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import trust
from boundary.model import Clause, Finding, StageTable

ROOT = Path(__file__).resolve().parents[2]
CLAUSE = Clause(1, "Test", "OWNS", "tests/", ("always",), "refused", ("test_x.py::test_y",))


@pytest.fixture
def one(table: StageTable) -> StageTable:
    return dataclasses.replace(table, clauses=(CLAUSE,), allowed=())


def row(monkeypatch: pytest.MonkeyPatch, one: StageTable, findings: list[Finding], passed: dict) -> trust.Row:
    monkeypatch.setattr(trust, "CHECKS", {"always": ("x", lambda root, table: findings)})
    monkeypatch.setattr(trust.content, "check_content", lambda root, table: {})
    (found,) = trust.judge(ROOT, one, passed)
    return found


def test_a_clause_is_held_when_nothing_is_found_and_its_break_is_seen(
    monkeypatch: pytest.MonkeyPatch, one: StageTable
) -> None:
    assert row(monkeypatch, one, [], {"test_x.py::test_y": True}).held


def test_a_finding_breaks_a_clause(monkeypatch: pytest.MonkeyPatch, one: StageTable) -> None:
    found = row(monkeypatch, one, [Finding("a.py:1", "planted")], {"test_x.py::test_y": True})
    assert not found.held
    assert found.findings == ("always: a.py:1: planted",)


@pytest.mark.parametrize("passed", [{}, {"test_x.py::test_y": False}, {"test_x.py::test_yes": True}])
def test_a_break_that_nothing_sees_breaks_a_clause(
    monkeypatch: pytest.MonkeyPatch, one: StageTable, passed: dict
) -> None:
    assert not row(monkeypatch, one, [], passed).held


def test_a_name_stands_for_all_of_its_cases() -> None:
    passed = {"t.py::test_a[1]": True, "t.py::test_a[2]": False, "t.py::test_b[x]": True}
    assert not trust.caught("t.py::test_a", passed)
    assert trust.caught("t.py::test_a[1]", passed)
    assert trust.caught("t.py::test_b", passed)


def rule_ids() -> set[str]:
    files = sorted((ROOT / "tools/rules").glob("*.yml"))
    lines = (line for path in files for line in path.read_text(encoding="utf-8").splitlines())
    return {line.removeprefix("id: ").strip() for line in lines if line.startswith("id: ")}


def test_the_table_names_checks_rules_and_strengths_that_exist(table: StageTable) -> None:
    known = set(trust.CHECKS) | {f"content:{rule}" for rule in rule_ids()}
    assert len(table.clauses) > 50
    for clause in table.clauses:
        assert clause.strength in ("impossible", "refused", "reviewed")
        assert bool(clause.why) == (clause.strength == "reviewed")
        assert clause.held_by
        assert clause.breaks
        assert set(clause.held_by) <= known


def test_every_content_rule_serves_a_clause(table: StageTable) -> None:
    served = {name.removeprefix("content:") for clause in table.clauses for name in clause.held_by}
    assert rule_ids() <= served


def test_the_data_of_a_row_is_json() -> None:
    data = json.loads(json.dumps(trust.Row(CLAUSE, (), ()).data()))
    assert (data["number"], data["held"]) == (1, True)
