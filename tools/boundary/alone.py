"""A wheel works alone: with the wheels of the stages that it declares, in the environment of its stage, every
module of it imports, and no other stage can be found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .model import Finding, Stage, StageTable

PROBE = Path(__file__).with_name("alone_probe.py")


def stage_python(stage: Stage) -> list[str]:
    """The interpreter of a stage's environment, which is made if it is not there."""
    return [sys.executable, "-m", "hatch", "run", f"matrix.{stage.name}:python"]


def check_alone(
    root: Path,
    table: StageTable,
    built: Mapping[str, Path],
    stage: Stage,
    python: Sequence[str] | None = None,
) -> list[Finding]:
    """Import all of one built wheel.

    Args:
        built: stage -> wheel.
        python: the interpreter that has the third-party packages of the stage; default: `stage_python`.
    """
    wheel = built[stage.name]
    with zipfile.ZipFile(wheel) as archive:
        modules = [module for name in archive.namelist() if (module := _module(name))]
    folders = []
    for name in (stage.name, *sorted(stage.depends)):
        folder = built[name].parent / "unpacked"
        with zipfile.ZipFile(built[name]) as archive:
            archive.extractall(folder)
        folders.append(str(folder))
    foreign = sorted(
        other.module for other in table.stages.values() if other.name not in {stage.name, *stage.depends}
    )
    command = [*(python or stage_python(stage)), "-I", "-S", str(PROBE), ",".join(modules), ",".join(foreign)]
    environment = {name: value for name, value in os.environ.items() if name != "HATCH_ENV_ACTIVE"}
    done = subprocess.run([*command, *folders], cwd=root, env=environment, capture_output=True, text=True)
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stdout + done.stderr).strip()[-2000:]
        return [Finding(wheel.name, f"could not be tried (exit status {done.returncode}): {said}")]
    return [
        *(
            Finding(wheel.name, f"{name} does not import: {error}")
            for name, error in answer["failed"].items()
        ),
        *(Finding(wheel.name, f"finds {name}, which it does not declare") for name in answer["visible"]),
    ]


def _module(name: str) -> str:
    """The module that a file of a wheel is; empty for one that is none, or runs when imported.

    >>> [_module(n) for n in ("a/b.py", "a/__init__.py", "a/__main__.py", "a/py.typed")]
    ['a.b', 'a', '', '']
    """
    path = Path(name)
    if path.suffix != ".py" or path.stem == "__main__":
        return ""
    return ".".join(path.parent.parts if path.stem == "__init__" else path.with_suffix("").parts)


def check_wheels_alone(root: Path, table: StageTable, built: Mapping[str, Path]) -> list[Finding]:
    """Every built wheel, alone."""
    return [finding for name in built for finding in check_alone(root, table, built, table.stages[name])]
