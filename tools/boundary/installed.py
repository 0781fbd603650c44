"""The running environment holds a stage and what it declares, and nothing else of ours."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

from .model import Finding, StageTable, normalise


def check_installed(
    root: Path, table: StageTable, name: str, distributions=metadata.distributions
) -> list[Finding]:
    """Compare the installed distributions with the stage's declared closure.

    `distributions` yields `importlib.metadata.Distribution` objects; tests pass planted ones.
    """
    stage = table.stages[name]
    installed = {normalise(d.metadata["Name"]): d for d in distributions()}
    ours = {normalise(other.dist): key for key, other in table.stages.items()}
    expected = {normalise(table.stages[key].dist) for key in table.closure(name)}
    findings = []
    found = {dist for dist in installed if dist.startswith("tileops")}
    for dist in sorted(found - expected):
        hint = (
            "left over from an earlier environment? run `hatch env prune`"
            if dist in ours
            else "not one of ours"
        )
        findings.append(Finding(dist, f"is installed but {name} may not see it ({hint})"))
    for dist in sorted(expected - found):
        findings.append(Finding(dist, f"is not installed, but {name} needs it"))
    for dist in sorted(stage.absent & set(installed)):
        findings.append(Finding(dist, f"is installed but must be absent from the {name} environment"))
    modules = tuple(f"{other.module}/" for other in table.stages.values())
    for dist, distribution in sorted(installed.items()):
        shipped = [str(f) for f in distribution.files or () if str(f).startswith(modules)]
        if dist not in ours and shipped:
            findings.append(Finding(dist, f"is not one of ours and ships {shipped[0]}"))
    for dist in sorted(expected & found):
        findings += _check_origin(root, dist, installed[dist])
    return findings


def _check_origin(root: Path, dist: str, distribution: metadata.Distribution) -> list[Finding]:
    findings = []
    direct_url = distribution.read_text("direct_url.json")
    location = Path(url2pathname(urlparse(json.loads(direct_url)["url"]).path)) if direct_url else None
    if location is None or not location.resolve().is_relative_to(root.resolve()):
        findings.append(
            Finding(dist, f"comes from {location or 'an index'}, expected a folder of this checkout")
        )
    groups = {entry.group for entry in distribution.entry_points} - {"console_scripts"}
    if groups:
        findings.append(
            Finding(dist, f"registers entry points {sorted(groups)}; only console_scripts is allowed")
        )
    return findings
