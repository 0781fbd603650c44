"""What a pull request must carry: a version, a line in the changelog, and its losses by name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from boundary import change, scope
from boundary.model import StageTable

ROOT = Path(__file__).resolve().parents[2]
GIT = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
ENTRY = """grammar: 1
family: normalization
ops:
  ScaleFwdOp:
    summary: "x times two."
    ref_api: none
    dtypes: {T: float16 | float32}
    inputs: {x: {dtype: T, shape: "[M]"}}
    outputs: {output: {dtype: T, shape: "[M]"}}
    dims: {M: elements}
    numerics: {accumulate: none, nan: propagate}
    roofline: {flops: M}
    workloads:
      - {label: small, dims: {M: 64}, dtypes: [float16]}
"""
CONSTANTS = {
    "constants": [{"op": "*", "target": "*", "k": 2.0, "c": 1.0, "c2": 1.0}],
    "records": [{"date": "2026-11-30"}],
}


def commit(root: Path, message: str) -> str:
    subprocess.run([*GIT, "add", "-A"], cwd=root, check=True)
    subprocess.run([*GIT, "commit", "-qm", message, "--allow-empty"], cwd=root, check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def edit(path: Path, *pairs: tuple[str, str]) -> None:
    text = path.read_text(encoding="utf-8")
    for old, new in pairs:
        assert old in text, (path, old)
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def root(repository: Path, table: StageTable) -> Path:
    """A miniature repository with one op, two public names, constants and a first commit."""
    source = {name: repository / s.folder / "src" / s.module for name, s in table.stages.items()}
    (source["manifest"] / "ops").mkdir()
    (source["manifest"] / "ops/normalization.yaml").write_text(ENTRY)
    (source["kernels"] / "__init__.py").write_text("__all__ = ['run']\n\n\ndef run(x): ...\n")
    (source["tests"] / "calibration.json").write_text(json.dumps(CONSTANTS))
    (source["tests"] / "known_failures.toml").write_text("")
    (source["tests"] / "comparator.py").write_text("strict = True\n")
    for stage in table.stages.values():
        (repository / stage.folder / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0\n\n* First.\n")
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    commit(repository, "base")
    return repository


Judge = Callable[[], change.Judgement]


@pytest.fixture
def judge(root: Path, table: StageTable) -> Judge:
    base = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True
    ).stdout.strip()

    def run() -> change.Judgement:
        head = commit(root, "change")
        paths = [path for _, path in scope.changed_paths(root, base, head)]
        return change.judge_change(root, table, base, head, paths)

    return run


def bump(root: Path, stage: str, version: str, line: str = "* Changed.") -> None:
    folder = root / f"packages/tileops-{stage}"
    edit(folder / "pyproject.toml", ('version = "0.1.0"', f'version = "{version}"'))
    edit(folder / "CHANGELOG.md", ("# Changelog\n", f"# Changelog\n\n## {version}\n\n{line}\n"))


def kernels(root: Path) -> Path:
    return root / "packages/tileops-kernels/src/tileops_kernels/__init__.py"


def entry(root: Path) -> Path:
    return root / "packages/tileops-manifest/src/tileops_manifest/ops/normalization.yaml"


def messages(judgement: change.Judgement) -> str:
    return "\n".join(map(str, judgement.findings))


def test_content_without_a_version_is_refused(root: Path, judge: Judge) -> None:
    edit(kernels(root), ("...", "return x"))
    found = messages(judge())
    assert "demands at least 0.1.1" in found
    assert "no line about this change" in found


def test_content_with_a_version_and_a_line_is_allowed(root: Path, judge: Judge) -> None:
    edit(kernels(root), ("...", "return x"))
    bump(root, "kernels", "0.1.1")
    assert messages(judge()) == ""


def test_a_heading_without_a_line_is_refused(root: Path, judge: Judge) -> None:
    edit(kernels(root), ("...", "return x"))
    bump(root, "kernels", "0.1.1", line="")
    assert "no line about this change" in messages(judge())


@pytest.mark.parametrize(
    ("after", "named"),
    [
        ("__all__ = []\n", "tileops_kernels.run is gone"),
        ("__all__ = ['run']\n\n\ndef run(x, y): ...\n", "run(y)"),
        ("__all__ = ['run']\n\n\ndef run(z): ...\n", "run(x): parameter was removed"),
    ],
)
def test_a_broken_public_name_demands_more_than_a_patch(
    root: Path, judge: Judge, after: str, named: str
) -> None:
    kernels(root).write_text(after)
    bump(root, "kernels", "0.1.1")
    judgement = judge()
    assert "a breaking change of 0.1.0 demands at least 0.2.0" in messages(judgement)
    assert named in "\n".join(judgement.notes)


def test_a_new_public_name_is_a_patch_below_one(root: Path, judge: Judge) -> None:
    kernels(root).write_text(
        kernels(root).read_text().replace("'run'", "'run', 'stop'") + "\n\ndef stop(): ...\n"
    )
    bump(root, "kernels", "0.1.1")
    assert messages(judge()) == ""


def test_documents_and_tests_of_a_package_need_no_version(root: Path, judge: Judge) -> None:
    (root / "packages/tileops-kernels/README.md").write_text("more")
    (root / "packages/tileops-kernels/tests").mkdir()
    (root / "packages/tileops-kernels/tests/test_x.py").write_text("")
    assert messages(judge()) == ""


@pytest.mark.parametrize(
    ("pairs", "named"),
    [
        (
            [("float16 | float32", "float32"), ("[float16]", "[float32]")],
            "spec narrowed: ScaleFwdOp: inputs.x.dtype",
        ),
        (
            [("    numerics:", '    rules: [{expr: "M > 8", message: too short}]\n    numerics:')],
            "narrowed: ScaleFwdOp: rules",
        ),
        (
            [("{label: small, dims: {M: 64}", "{label: tiny, dims: {M: 9}")],
            "narrowed: ScaleFwdOp: workloads.small",
        ),
        ([("M: elements", "M: {doc: elements, min: 32}")], "narrowed: ScaleFwdOp: dims.M"),
        ([("nan: propagate", "nan: undefined")], "narrowed: ScaleFwdOp: numerics"),
    ],
)
def test_a_narrowed_spec_is_named_and_breaking(
    root: Path, judge: Judge, pairs: list[tuple[str, str]], named: str
) -> None:
    edit(entry(root), *pairs)
    bump(root, "manifest", "0.1.1")
    judgement = judge()
    assert named in "\n".join(judgement.notes)
    assert "demands at least 0.2.0" in messages(judgement)


def test_entries_that_the_base_cannot_read_are_breaking(root: Path, judge: Judge) -> None:
    edit(entry(root), ("grammar: 1", "grammar: 2"))
    bump(root, "manifest", "0.1.1")
    judgement = judge()
    assert "the base revision cannot read" in "\n".join(judgement.notes)
    assert "demands at least 0.2.0" in messages(judgement)


def loosen(root: Path, **constants: float) -> Path:
    path = root / "packages/tileops-tests/src/tileops_tests/calibration.json"
    data = json.loads(path.read_text())
    data["constants"].append(data["constants"][0] | {"op": "GemmFwdOp"} | constants)
    path.write_text(json.dumps(data))
    return path


def test_a_loosened_tolerance_is_named_and_needs_a_record_and_a_minor_version(
    root: Path, judge: Judge
) -> None:
    loosen(root, k=4.0)
    bump(root, "tests", "0.1.1")
    judgement = judge()
    assert "tolerance loosened: k of op 'GemmFwdOp', target '*': 2.0 became 4.0" in "\n".join(judgement.notes)
    assert "without a new calibration record" in messages(judgement)
    assert "demands a minor version" in messages(judgement)


def test_a_loosened_tolerance_with_its_record_and_version_is_named_still(root: Path, judge: Judge) -> None:
    path = loosen(root, c=1.5)
    data = json.loads(path.read_text())
    data["records"].append({"date": "2026-12-01"})
    path.write_text(json.dumps(data))
    bump(root, "tests", "0.2.0")
    judgement = judge()
    assert messages(judgement) == ""
    assert "tolerance loosened: c" in "\n".join(judgement.notes)


def test_what_a_change_hides_from_archives_is_judged_all_the_same(root: Path, judge: Judge) -> None:
    path = loosen(root, k=4.0)
    (path.parent / ".gitattributes").write_text("calibration.json export-ignore\n")
    bump(root, "tests", "0.1.1")
    assert "tolerance loosened: k" in "\n".join(judge().notes)


def test_a_tightened_tolerance_is_nothing_to_name(root: Path, judge: Judge) -> None:
    loosen(root, k=1.0)
    bump(root, "tests", "0.1.1")
    judgement = judge()
    assert (judgement.notes, messages(judgement)) == ([], "")


def test_taking_a_tight_row_away_is_loosening() -> None:
    wide = {"op": "*", "target": "*", "k": 2.0, "c": 1.0, "c2": 1.0}
    tight = wide | {"op": "GemmFwdOp", "k": 1.0}
    assert "is gone" in " ".join(change.looser([wide, tight], [wide]))


def test_a_change_of_what_decides_is_named(root: Path, judge: Judge) -> None:
    edit(root / "packages/tileops-tests/src/tileops_tests/comparator.py", ("True", "False"))
    (root / "packages/tileops-tests/src/tileops_tests/known_failures.toml").write_text(
        '[[failure]]\nop = "GemmFwdOp"\ntarget = "cpu"\ncase = "*"\ncode = "wrong_value"\nreason = "x"\n'
    )
    bump(root, "tests", "0.1.1")
    notes = "\n".join(judge().notes)
    assert "the judge changed: comparator.py" in notes
    assert "known failure added: GemmFwdOp *" in notes


def test_a_siblings_bound_may_travel_and_nothing_else_of_its_file(root: Path, table: StageTable) -> None:
    base = commit(root, "before")
    edit(entry(root), ("x times two.", "Twice x."))
    bump(root, "manifest", "0.1.1")
    place = root / "packages/tileops-kernels/pyproject.toml"
    edit(place, ("tileops-manifest>=0.1,<0.2", "tileops-manifest>=0.1.1,<0.2"))
    head = commit(root, "bound")

    def found(head: str) -> str:
        changes = scope.changed_paths(root, base, head)
        bounds = scope.moved_bounds(root, table, base, head, [path for _, path in changes])
        return "\n".join(map(str, scope.check_scope(table, changes, bounds)))

    assert found(head) == ""
    edit(place, ("torch>=2.11", "torch>=2.0"))
    assert "must change alone" in found(commit(root, "more"))


def test_the_base_is_where_the_change_began(root: Path, table: StageTable) -> None:
    """What others landed on the base branch meanwhile is not this change's to answer for."""
    begun = commit(root, "begun")
    edit(entry(root), ("float16 | float32", "float32"), ("[float16]", "[float32]"))
    base = commit(root, "landed meanwhile")
    subprocess.run([*GIT, "checkout", "-q", "-b", "mine", begun], cwd=root, check=True)
    edit(kernels(root), ("...", "return x"))
    bump(root, "kernels", "0.1.1")
    head = commit(root, "mine")
    paths = [path for _, path in scope.changed_paths(root, base, head)]
    judgement = change.judge_change(root, table, base, head, paths)
    assert (judgement.notes, messages(judgement)) == ([], "")
