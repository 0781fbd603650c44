"""Rulesets and workflows: each thing that would open a way around the gate is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from boundary import rulesets
from boundary.model import StageTable

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in ("rulesets", "workflows"):
        shutil.copytree(ROOT / ".github" / folder, tmp_path / ".github" / folder)
    return tmp_path


def edit(tree: Path, name: str, old: str, new: str) -> None:
    path = tree / ".github" / name
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{name} lacks {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture
def found(tree: Path, table: StageTable) -> Callable[[], str]:
    return lambda: "\n".join(
        map(str, [*rulesets.check_rulesets(tree), *rulesets.check_workflows(tree, table)])
    )


def test_this_trees_rulesets_and_workflows_hold(found: Callable[[], str]) -> None:
    assert found() == ""


@pytest.mark.parametrize(
    ("name", "old", "new", "named"),
    [
        ("main", 'code_owner_review": true', 'code_owner_review": false', "require_code_owner_review"),
        ("main", 'last_push_approval": true', 'last_push_approval": false', "last_push"),
        ("main", 'review_count": 1', 'review_count": 0', "nobody's approval"),
        ("main", '"enforcement": "active"', '"enforcement": "evaluate"', "evaluate"),
        ("main", '"bypass_actors": []', '"bypass_actors": [{"actor_id": 1}]', "bypass"),
        ("main", '{"context": "gate"}', '{"context": "lint"}', "'gate'"),
        ("main", '{"type": "non_fast_forward"},', "", "non_fast_forward"),
        ("main", "~DEFAULT_BRANCH", "refs/heads/other", "default branch"),
        ("tags", '{"type": "update"}, ', "", "update"),
        ("tags", "tileops-*-v*", "v*", "release tags"),
    ],
)
def test_a_ruleset_without_review_is_found(
    tree: Path, found: Callable[[], str], name: str, old: str, new: str, named: str
) -> None:
    edit(tree, f"rulesets/{name}.json", old, new)
    assert named in found()


def test_a_pull_request_without_a_stages_tests_is_found(tree: Path, found: Callable[[], str]) -> None:
    edit(tree, "workflows/pr.yml", "hatch run matrix.kernels:test", "hatch run matrix.kernels:show")
    assert "no job kernels" in found()


def test_a_stage_that_is_shown_another_one_is_found(tree: Path, found: Callable[[], str]) -> None:
    edit(tree, "workflows/pr.yml", "            packages/tileops-bench\n",
         "            packages/tileops-bench\n            packages/tileops-tests\n")  # fmt: skip
    assert "the job bench checks out" in found()


def test_a_workflow_beside_the_known_ones_is_found(tree: Path, found: Callable[[], str]) -> None:
    (tree / ".github/workflows/extra.yml").write_text("on: pull_request_target\njobs: {}\n")
    assert "extra.yml" in found()


def test_a_path_filter_is_found(tree: Path, found: Callable[[], str]) -> None:
    edit(tree, "workflows/pr.yml", "  pull_request:\n", "  pull_request:\n    paths: [packages/**]\n")
    assert "path filter" in found()


def test_the_trigger_that_gives_secrets_to_a_change_is_found(tree: Path, found: Callable[[], str]) -> None:
    edit(tree, "workflows/pr.yml", "  pull_request:\n", "  pull_request:\n  pull_request_target:\n")
    assert "never pull_request_target" in found()


def test_a_scope_job_that_judges_with_the_changes_own_tools_is_found(
    tree: Path, found: Callable[[], str]
) -> None:
    edit(tree, "workflows/pr.yml", '          cd "$RUNNER_TEMP/base"\n', "")
    assert "tools of the base revision" in found()


@pytest.mark.parametrize(("old", "new"), [("if: always()", "if: success()"), ("needs: [scope, ", "needs: [")])
def test_a_gate_that_leaves_a_job_out_is_found(
    tree: Path, found: Callable[[], str], old: str, new: str
) -> None:
    edit(tree, "workflows/pr.yml", old, new)
    assert "must always run and look at every job" in found()


@pytest.mark.parametrize("trigger", ["pull_request", "push"])
def test_a_nightly_run_that_a_change_could_start_is_found(
    tree: Path, found: Callable[[], str], trigger: str
) -> None:
    edit(
        tree, "workflows/nightly-bench.yml", "  workflow_dispatch:\n", f"  workflow_dispatch:\n  {trigger}:\n"
    )
    assert "no trigger that a change could pull" in found()


def test_a_nightly_run_that_has_the_oracles_is_found(tree: Path, found: Callable[[], str]) -> None:
    edit(tree, "workflows/nightly-bench.yml", "            packages/tileops-bench\n",
         "            packages/tileops-bench\n            packages/tileops-tests\n")  # fmt: skip
    assert "bench checks out" in found()


def test_a_nightly_job_that_has_the_oracles_and_runs_the_benchmark_is_found(
    tree: Path, found: Callable[[], str]
) -> None:
    edit(tree, "workflows/nightly-bench.yml", "hatch run certify:baselines", "hatch run bench:nightly")
    assert "certify sees the oracles and runs the benchmark" in found()


def test_a_build_that_may_publish_is_found(tree: Path, found: Callable[[], str]) -> None:
    edit(tree, "workflows/release.yml", "  build:\n", "  build:\n    permissions:\n      id-token: write\n")
    assert "expected `publish` alone" in found()
