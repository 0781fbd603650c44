"""The guide to adding an op, followed to the letter in a copy of the repository.

`-m slow` types every command. The default run leaves out those of the stages that need torch: it makes all
edits, and runs the manifest's commands, git and the gate.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from boundary.model import StageTable
from guide import Command, Edit, GuideError, read_guide

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/adding-an-op.md"
IN_STAGE = re.compile(r"hatch run matrix\.(?P<stage>\w+):(?P<command>.*)", re.DOTALL)
TEST_SCRIPT = "pytest -p xdist -n auto --maxprocesses 8 --dist worksteal packages/tileops-{stage}/tests"


@cache
def environment_of(stage: str) -> Path:
    """Where the stage's hatch environment is; hatch makes it if it has to."""
    ask = [sys.executable, "-m", "hatch", "--quiet", "run", f"matrix.{stage}:python", "-c"]
    found = subprocess.run(
        [*ask, "import sys; print(sys.prefix)"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return Path(found.stdout.splitlines()[-1])


def shell(text: str, root: Path, bin_folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Type a line in the copy: a clean git, a terminal of 120 columns, and `bin_folder` first on the path."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = {f"GIT_{role}_{what}": "reader" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    path = {"PATH": f"{bin_folder}{os.pathsep}{inherited['PATH']}", "COLUMNS": "120"}
    return subprocess.run(
        ["bash", "-c", text],
        cwd=root,
        env=inherited | who | path | variables,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def run(command: Command, root: Path, table: StageTable) -> subprocess.CompletedProcess[str]:
    """Type a command in the copy; a stage's in its environment, on the copy's sources of what it may see."""
    in_stage = IN_STAGE.fullmatch(command.text)
    if not in_stage:
        return shell(command.text, root, Path(sys.executable).parent)
    stage = in_stage["stage"]
    sources = [root / table.stages[name].folder / "src" for name in table.closure(stage)]
    return shell(
        re.sub(r"^test\b", TEST_SCRIPT.format(stage=stage), in_stage["command"]),
        root,
        environment_of(stage) / "bin",
        PYTHONPATH=os.pathsep.join(map(str, sources)),
        PYTHONSAFEPATH="1",
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
    )


def follow(root: Path, table: StageTable, stages: frozenset[str]) -> int:
    """Do what the guide says, leaving out commands of other stages; returns how many were typed."""
    typed = 0
    for step in read_guide(GUIDE.read_text(encoding="utf-8")):
        if isinstance(step, Edit):
            step.apply(root)
            continue
        in_stage = IN_STAGE.fullmatch(step.text)
        if in_stage and in_stage["stage"] not in stages:
            continue
        done = run(step, root, table)
        step.check(done.returncode, done.stdout)
        typed += 1
    return typed


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The working tree as a fresh clone has it, with some evidence of other ops."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    root = tmp_path / "tileops"
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
    (root / "evidence").mkdir(exist_ok=True)
    (root / "evidence/README.md").write_text("Verification records.\n")
    begun = shell(
        "git init -b main && git add --all && git commit -m main", root, Path(sys.executable).parent
    )
    assert begun.returncode == 0, begun.stdout
    return root


def test_edits_fit_the_sources_and_every_change_passes_the_gate(copy: Path, table: StageTable) -> None:
    assert follow(copy, table, frozenset({"manifest"})) > 0
    log = subprocess.run(
        ["git", "log", "--format=%s"], cwd=copy, check=True, capture_output=True, text=True
    ).stdout.split("\n")
    assert [subject.partition(":")[0] for subject in log[:5]] == [
        "manifest",
        "bench",
        "kernels",
        "tests",
        "manifest",
    ]


@pytest.mark.slow
def test_every_command_prints_what_the_guide_says(copy: Path, table: StageTable) -> None:
    commands = [step for step in read_guide(GUIDE.read_text(encoding="utf-8")) if isinstance(step, Command)]
    assert follow(copy, table, frozenset(table.stages)) == len(commands)


def test_the_stages_test_script_is_what_the_test_runs() -> None:
    script = TEST_SCRIPT.replace("{stage}", "{matrix:stage}")
    assert f'"{script} {{args}}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


# A guide that is wrong in some way must not pass for one that is followed.


def test_block_without_a_place_is_refused() -> None:
    with pytest.raises(GuideError, match="line 3: nothing says where this block goes"):
        read_guide("Some text.\n\n```python\nx = 1\n```\n")


def test_place_without_a_block_is_refused() -> None:
    with pytest.raises(GuideError, match="line 1: no block follows"):
        read_guide("New file `a.py`:\n\nAnd so on.\n")


def test_block_that_does_not_end_is_refused() -> None:
    with pytest.raises(GuideError, match="line 1: this block does not end"):
        read_guide("```console\n$ true\n")


def test_output_before_a_command_is_refused() -> None:
    with pytest.raises(GuideError, match="line 2: output before any command"):
        read_guide("```console\nheld\n```\n")


@pytest.mark.parametrize(("content", "times"), [("a\nc\n", 0), ("  b\nb\n", 2)])
def test_line_that_is_not_there_once_is_refused(tmp_path: Path, content: str, times: int) -> None:
    (tmp_path / "f.py").write_text(content)
    (edit,) = read_guide("In `f.py`, above the line `b`:\n\n```python\nx\n```\n")
    with pytest.raises(GuideError, match=f"'b' stands {times} times in f.py"):
        edit.apply(tmp_path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    (edit,) = read_guide("In `f.py`, below the line `b`:\n\n```python\nx\n```\n")
    with pytest.raises(GuideError, match=r"there is no f\.py"):
        edit.apply(tmp_path)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("In `f`, above the line `b`:", "a\nx\n  b\nc\nb2\nc\n"),
        ("In `f`, below the line `b`:", "a\n  b\nx\nc\nb2\nc\n"),
        ("In `f`, after the line `b2`, replace the next line `c`:", "a\n  b\nc\nb2\nx\n"),
        ("New file `f`:", "x\n"),
    ],
)
def test_edits_do_what_their_words_say(tmp_path: Path, place: str, expected: str) -> None:
    (tmp_path / "f").write_text("a\n  b\nc\nb2\nc\n")
    (edit,) = read_guide(f"{place}\n\n```text\nx\n```\n")
    edit.apply(tmp_path)
    assert (tmp_path / "f").read_text() == expected


def test_line_to_replace_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("c\nb\n")
    (edit,) = read_guide("In `f`, after the line `b`, replace the next line `c`:\n\n```text\nx\n```\n")
    with pytest.raises(GuideError, match="no 'c' after 'b'"):
        edit.apply(tmp_path)


@pytest.mark.parametrize(
    ("status", "output", "message"),
    [
        (0, "one two", "ended with 0, expected 1"),
        (1, "two one", "does not print 'two'"),
        (1, "one", "does not print 'two'"),
    ],
)
def test_another_output_or_status_is_found(status: int, output: str, message: str) -> None:
    (command,) = read_guide("```console\n$ x\none … two\n$ echo $?\n1\n```\n")
    with pytest.raises(GuideError, match=re.escape(message)):
        command.check(status, output)


def test_expected_output_and_status_pass() -> None:
    (command,) = read_guide("```console\n$ x\none … two\n$ echo $?\n1\n```\n")
    command.check(1, "start one\n  and\n two end")
