"""Every content rule finds what its clause forbids, planted where it counts, and nothing in this tree."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest
import yaml

from boundary import content
from boundary.content import Match
from boundary.model import Allowed, StageTable

ROOT = Path(__file__).resolve().parents[2]


def documents(folder: Path) -> list[dict]:
    return [d for path in sorted(folder.glob("*.yml")) for d in yaml.safe_load_all(path.read_text()) if d]


RULES = {rule["id"]: rule for rule in documents(ROOT / "tools/rules")}
PLANTED = {case["id"]: case for case in documents(ROOT / "tools/planted")}


def where(rule: dict, kind: str, number: int, pattern: str) -> str:
    """A file that a glob of the rule covers: below the package's sources, or in its tests."""
    dist = re.match(r"packages/(tileops-\w+|\*)/", pattern)
    dist = "tileops-bench" if dist is None or dist[1] == "*" else dist[1]
    inner = re.search(r"/src/tileops_\w+/(\w+)/\*\*", pattern)
    below = f"{inner[1]}/" if inner else ""
    suffix = "py" if rule["language"] == "python" else "yaml"
    return f"packages/{dist}/src/{dist.replace('-', '_')}/{below}{rule['id']}_{kind}_{number}.{suffix}"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> list[Match]:
    """One tree that holds every planted text of every rule, scanned once."""
    root = tmp_path_factory.mktemp("planted")
    shutil.copy(ROOT / "sgconfig.yml", root)
    for folder in ("rules", "matchers"):
        shutil.copytree(ROOT / "tools" / folder, root / "tools" / folder)
    for name, case in PLANTED.items():
        for kind in ("valid", "invalid"):
            for number, text in enumerate(case[kind]):
                for pattern in RULES[name]["files"]:
                    path = root / where(RULES[name], kind, number, pattern)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text + "\n", encoding="utf-8")
    return content.scan(root)


def test_every_rule_has_planted_violations_and_clean_text() -> None:
    assert PLANTED.keys() == RULES.keys()
    assert all(len(case["invalid"]) >= 2 and case["valid"] for case in PLANTED.values())


@pytest.mark.parametrize("name", RULES)
def test_planted_violation_is_found(name: str, planted: list[Match]) -> None:
    found = {match.path for match in planted if match.rule == name}
    for number, text in enumerate(PLANTED[name]["invalid"]):
        for pattern in RULES[name]["files"]:
            place = where(RULES[name], "invalid", number, pattern)
            assert place in found, f"{name} does not see {text!r} in {place}"


@pytest.mark.parametrize("name", RULES)
def test_clean_text_is_left_alone(name: str, planted: list[Match]) -> None:
    found = [m for m in planted if m.rule == name and f"/{name}_valid_" in m.path]
    assert found == []


def test_this_tree_holds_its_content_rules(table: StageTable) -> None:
    findings = content.check_content(ROOT, table)
    assert [str(f) for found in findings.values() for f in found] == []


def test_a_local_baseline_may_compute_an_op(tmp_path: Path) -> None:
    shutil.copy(ROOT / "sgconfig.yml", tmp_path)
    for folder in ("rules", "matchers"):
        shutil.copytree(ROOT / "tools" / folder, tmp_path / "tools" / folder)
    place = tmp_path / "packages/tileops-bench/src/tileops_bench/baselines/softmax.py"
    place.parent.mkdir(parents=True)
    place.write_text("import torch\n\n\ndef compose(x):\n    return torch.softmax(x, -1)\n")
    assert content.scan(tmp_path) == []


def test_an_exception_covers_its_rule_path_and_text_only(table: StageTable) -> None:
    allowed = Allowed("owner-profiling", "packages/a/", "shown, not kept", "tick()")
    table = dataclasses.replace(table, allowed=(allowed,))

    def found(rule: str, path: str, text: str) -> bool:
        return bool(content.check_content(ROOT, table, [Match(rule, path, 1, text, "")]).get(rule))

    assert not found("owner-profiling", "packages/a/x.py", "tick() - begin")
    assert found("owner-profiling", "packages/b/x.py", "tick() - begin")
    assert found("owner-profiling", "packages/a/x.py", "tock() - begin")
    assert found("owner-assertion", "packages/a/x.py", "tick() - begin")


def test_an_exception_that_nothing_needs_is_found(table: StageTable) -> None:
    unused = Allowed("owner-profiling", "packages/gone/", "was needed once")
    findings = content.check_content(ROOT, dataclasses.replace(table, allowed=(unused,)), [])
    assert "nothing needs" in str(findings["owner-profiling"][0])


def test_every_exception_names_a_rule_and_a_reason(table: StageTable) -> None:
    for exception in table.allowed:
        assert exception.rule in RULES
        assert len(exception.reason.split()) >= 3


def test_a_broken_rule_is_an_error_not_a_pass(tmp_path: Path) -> None:
    (tmp_path / "tools/rules").mkdir(parents=True)
    (tmp_path / "tools/matchers").mkdir()
    shutil.copy(ROOT / "sgconfig.yml", tmp_path)
    (tmp_path / "tools/rules/x.yml").write_text(
        "id: x\nlanguage: python\nrule: {matches: nothing-of-that-name}\n"
    )
    with pytest.raises(content.MatcherError):
        content.scan(tmp_path)
