"""Indirect imports: import-linter walks the whole import graph of the sources, without installing them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from .model import Finding, StageTable


def contracts(table: StageTable) -> str:
    """An import-linter configuration that forbids each stage what it may not see, however indirectly."""
    lines = ["[importlinter]", "include_external_packages = True", "root_packages ="]
    lines += [f"    {stage.module}" for stage in table.stages.values()]
    for name, stage in table.stages.items():
        hidden = [s.module for key, s in table.stages.items() if key not in table.closure(name)]
        forbidden = hidden + sorted(stage.absent)
        if forbidden:
            lines += [
                f"[importlinter:contract:{name}]",
                f"name = {name} sees only what it declares",
                "type = forbidden",
                "source_modules =",
                f"    {stage.module}",
                "forbidden_modules =",
                *(f"    {module}" for module in forbidden),
            ]
    return "\n".join(lines) + "\n"


def check_layers(root: Path, table: StageTable) -> list[Finding]:
    """Run `lint-imports` over the source folders."""
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / "importlinter.ini"
        config.write_text(contracts(table), encoding="utf-8")
        path = os.pathsep.join(str(root / stage.folder / "src") for stage in table.stages.values())
        # lint-imports reads the sources from PYTHONPATH, which PYTHONSAFEPATH does not touch.
        command = ["lint-imports", "--config", str(config), "--no-cache"]
        done = subprocess.run(
            command, cwd=scratch, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
        )
    if done.returncode == 0:
        return []
    lines = [
        line.strip()
        for line in done.stdout.splitlines()
        if line.startswith(("-", "    ")) or "not allowed" in line
    ]
    return [Finding("imports", line) for line in lines] or [
        Finding("lint-imports", done.stdout + done.stderr)
    ]
