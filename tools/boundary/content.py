"""What a stage must not contain is found in its syntax trees: `ast-grep` and one rule file per clause."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .model import Finding, StageTable

RULES = "tools/rules"


class MatcherError(RuntimeError):
    """The matcher did not run, or a rule of it is not valid."""


@dataclass(frozen=True)
class Match:
    """A place where a rule applies."""

    rule: str
    path: str
    line: int
    text: str
    message: str


def scan(root: Path) -> list[Match]:
    """Apply every rule of `tools/rules` to the tree below `root`.

    Raises:
        MatcherError: ast-grep is missing, or rejects a rule.
    """
    # Without --no-ignore a file that git ignores, or a hidden one, would not be looked at.
    command = [
        "ast-grep",
        "scan",
        "--json=compact",
        "--no-ignore=vcs",
        "--no-ignore=hidden",
        "packages",
        "tools",
    ]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        found = json.loads(done.stdout)
    except (OSError, ValueError) as error:
        raise MatcherError(
            f"ast-grep: {error}; it is in the tools environment (`hatch run tools:…`)"
        ) from error
    if done.returncode not in (0, 1):
        raise MatcherError(f"ast-grep ended with {done.returncode}: {done.stderr.strip()}")
    return [
        Match(m["ruleId"], m["file"], m["range"]["start"]["line"] + 1, m["text"], m["message"]) for m in found
    ]


def check_content(
    root: Path, table: StageTable, matches: list[Match] | None = None
) -> dict[str, list[Finding]]:
    """Findings by rule, the allowed exceptions left out; an exception that nothing needs is a finding too."""
    unused = set(table.allowed)
    findings: dict[str, list[Finding]] = {}
    for match in scan(root) if matches is None else matches:
        excuses = [e for e in table.allowed if e.covers(match.rule, match.path, match.text)]
        unused.difference_update(excuses)
        if not excuses:
            shown = match.text.splitlines()[0][:80]
            finding = Finding(f"{match.path}:{match.line}", f"`{shown}`: {match.message} ({match.rule})")
            findings.setdefault(match.rule, []).append(finding)
    for exception in sorted(unused, key=lambda e: (e.rule, e.path)):
        message = f"an exception to {exception.rule} that nothing needs: {exception.reason}"
        findings.setdefault(exception.rule, []).append(Finding(exception.path, message))
    return findings
