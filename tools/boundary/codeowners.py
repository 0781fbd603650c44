"""Every tracked file has an owner beyond the catch-all, and the file uses only syntax that GitHub honours."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .model import Finding

PLACE = ".github/CODEOWNERS"


def check_codeowners(root: Path, files: list[str] | None = None) -> list[Finding]:
    """Patterns are rooted folders or files (`/packages/x/`, `/LICENSE`), the last match wins."""
    findings, patterns = [], []
    for number, line in enumerate((root / PLACE).read_text(encoding="utf-8").splitlines(), 1):
        pattern, *owners = line.split("#", 1)[0].split() or [""]
        if not pattern:
            continue
        if not owners:
            findings.append(Finding(f"{PLACE}:{number}", f"{pattern} has no owner"))
        if not pattern.startswith("/") or any(c in pattern for c in "!*[]?"):
            findings.append(Finding(f"{PLACE}:{number}", f"{pattern} is not a rooted path without wildcards"))
        patterns.append(pattern)
    for path in files if files is not None else _tracked(root):
        if not any(_matches(pattern, path) for pattern in patterns):
            findings.append(Finding(path, "has no owner in CODEOWNERS"))
    return findings


def check_apart(root: Path, folder: str, files: list[str] | None = None) -> list[Finding]:
    """The owners of `folder` own nothing else, and nobody else owns any of it; the last match decides."""
    rules = _rules(root)
    own = next((o for pattern, o in rules if pattern == f"/{folder}/"), frozenset())
    if not own:
        return [Finding(PLACE, f"/{folder}/ has no owners of its own")]
    findings = []
    for path in files if files is not None else _tracked(root):
        found = _owners(rules, path)
        if path.startswith(f"{folder}/") and found != own:
            findings.append(Finding(path, f"is owned by {sorted(found)}, expected {sorted(own)} alone"))
        if not path.startswith(f"{folder}/") and found & own:
            findings.append(Finding(path, f"is owned by {sorted(found & own)}, who own {folder} apart"))
    return findings


def owners_of(root: Path, path: str) -> frozenset[str]:
    """Who must approve a change of a file; the last match decides."""
    return _owners(_rules(root), path)


def _rules(root: Path) -> list[tuple[str, frozenset[str]]]:
    return [
        (pattern, frozenset(owners))
        for line in (root / PLACE).read_text(encoding="utf-8").splitlines()
        for pattern, *owners in [line.split("#", 1)[0].split() or [""]]
        if pattern
    ]


def _owners(rules: list[tuple[str, frozenset[str]]], path: str) -> frozenset[str]:
    return next((owners for pattern, owners in reversed(rules) if _matches(pattern, path)), frozenset())


def _matches(pattern: str, path: str) -> bool:
    rooted = f"/{path}"
    return rooted == pattern or (pattern.endswith("/") and rooted.startswith(pattern))


def _tracked(root: Path) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True)
    return [path for path in listed.stdout.split("\0") if path]
