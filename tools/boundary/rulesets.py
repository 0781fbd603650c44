"""What the hosting service must enforce is kept as files; the workflows show each stage what it may see.

`.github/rulesets/*.json` are in the service's own import format: an administrator imports them, and what they
say is held here. That they are applied cannot be seen from a checkout.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import yaml

from .model import Finding, StageTable

FOLDER = ".github/rulesets"
PULL_REQUEST = ".github/workflows/pr.yml"
NIGHTLY = ".github/workflows/nightly-bench.yml"
RELEASE = ".github/workflows/release.yml"
GATE = "gate"
_REVIEW = {
    "require_code_owner_review": True,
    "require_last_push_approval": True,
    "dismiss_stale_reviews_on_push": True,
}


def check_rulesets(root: Path) -> list[Finding]:
    """What the default branch and the release tags are protected by."""
    return [*_main(root), *_tags(root)]


def check_workflows(root: Path, table: StageTable) -> list[Finding]:
    """What a change, a night and a release run, and what each of their jobs can see."""
    known = {PULL_REQUEST, NIGHTLY, RELEASE}
    found = sorted(p.relative_to(root).as_posix() for p in (root / ".github/workflows").iterdir())
    strangers = [
        Finding(place, "is a workflow that nothing here holds to anything")
        for place in found
        if place not in known
    ]
    return [*strangers, *_pull_request(root, table), *_nightly(root, table), *_release(root)]


def _ruleset(root: Path, name: str) -> tuple[dict, dict[str, dict], list[Finding]]:
    place = f"{FOLDER}/{name}.json"
    found = json.loads((root / place).read_text(encoding="utf-8"))
    findings = []
    if found["enforcement"] != "active":
        findings.append(Finding(place, f"enforcement is {found['enforcement']}, expected active"))
    if found["bypass_actors"]:
        findings.append(Finding(place, f"{len(found['bypass_actors'])} actors may bypass it, expected none"))
    return found, {rule["type"]: rule.get("parameters", {}) for rule in found["rules"]}, findings


def _main(root: Path) -> list[Finding]:
    place = f"{FOLDER}/main.json"
    found, rules, findings = _ruleset(root, "main")
    if "~DEFAULT_BRANCH" not in found["conditions"]["ref_name"]["include"]:
        findings.append(Finding(place, "does not cover the default branch"))
    for needed in ("deletion", "non_fast_forward", "pull_request", "required_status_checks"):
        if needed not in rules:
            findings.append(Finding(place, f"lacks the rule {needed}"))
    review = rules.get("pull_request", {})
    for name, value in _REVIEW.items():
        if review.get(name) != value:
            findings.append(Finding(place, f"{name} is {review.get(name)}, expected {value}"))
    if review.get("required_approving_review_count", 0) < 1:
        findings.append(Finding(place, "a change needs nobody's approval"))
    checks = rules.get("required_status_checks", {}).get("required_status_checks", [])
    if GATE not in {check["context"] for check in checks}:
        findings.append(Finding(place, f"does not require the check {GATE!r}"))
    return findings


def _tags(root: Path) -> list[Finding]:
    place = f"{FOLDER}/tags.json"
    found, rules, findings = _ruleset(root, "tags")
    if "refs/tags/tileops-*-v*" not in found["conditions"]["ref_name"]["include"]:
        findings.append(Finding(place, "does not cover the release tags"))
    findings += [
        Finding(place, f"lacks the rule {name}") for name in ("update", "deletion") if name not in rules
    ]
    return findings


def _workflow(root: Path, place: str) -> dict:
    # YAML 1.1 reads the key `on` as true.
    found = yaml.safe_load((root / place).read_text(encoding="utf-8"))
    return found | {"on": found.get("on", found.get(True, {}))}


def _commands(job: dict) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


def _sparse(job: dict) -> set[str]:
    return {
        line.strip()
        for step in job["steps"]
        for line in str(step.get("with", {}).get("sparse-checkout", "")).splitlines()
        if line.strip()
    }


def _pull_request(root: Path, table: StageTable) -> Iterator[Finding]:
    found = _workflow(root, PULL_REQUEST)
    jobs, triggers = found["jobs"], found["on"]
    if "pull_request" not in triggers or "pull_request_target" in triggers:
        yield Finding(PULL_REQUEST, "expected the trigger pull_request, and never pull_request_target")
    if any((triggers[name] or {}).keys() & {"paths", "paths-ignore"} for name in triggers):
        yield Finding(PULL_REQUEST, "a path filter leaves the required check pending for ever")
    for name in table.stages:
        needed = {"constraints", "tools"} | {table.stages[other].folder for other in table.closure(name)}
        job = jobs.get(name)
        if job is None or f"hatch run matrix.{name}:test" not in _commands(job):
            yield Finding(PULL_REQUEST, f"no job {name} that runs `hatch run matrix.{name}:test`")
        elif _sparse(job) != needed:
            yield Finding(
                PULL_REQUEST, f"the job {name} checks out {sorted(_sparse(job))}, expected {sorted(needed)}"
            )
    judge = _commands(jobs.get("scope", {"steps": []}))
    if "git worktree add" not in judge or 'cd "$RUNNER_TEMP/base"' not in judge or " change " not in judge:
        yield Finding(PULL_REQUEST, "the job scope does not judge with the tools of the base revision")
    gate = jobs.get(GATE, {})
    missing = jobs.keys() - {GATE} - set(gate.get("needs", ()))
    if gate.get("if") != "always()" or missing:
        yield Finding(
            PULL_REQUEST, f"{GATE} must always run and look at every job, it leaves out {sorted(missing)}"
        )


def _nightly(root: Path, table: StageTable) -> Iterator[Finding]:
    found = _workflow(root, NIGHTLY)
    if "schedule" not in found["on"] or found["on"].keys() & {"pull_request", "pull_request_target", "push"}:
        yield Finding(NIGHTLY, "expected a schedule, and no trigger that a change could pull")
    needed = {"constraints", "tools"} | {table.stages[name].folder for name in table.closure("bench")}
    for name, job in found["jobs"].items():
        if name == table.together:
            if "hatch run bench:" in _commands(job):
                yield Finding(NIGHTLY, f"{name} sees the oracles and runs the benchmark")
        elif _sparse(job) != needed:
            yield Finding(NIGHTLY, f"{name} checks out {sorted(_sparse(job))}, expected {sorted(needed)}")


def _release(root: Path) -> Iterator[Finding]:
    jobs = _workflow(root, RELEASE)["jobs"]
    trusted = [name for name, job in jobs.items() if job.get("permissions", {}).get("id-token") == "write"]
    if trusted != ["publish"] or "environment" not in jobs.get("publish", {}):
        yield Finding(
            RELEASE, f"{trusted} may publish, expected `publish` alone, in an environment of its own"
        )
    if any("password" in str(step.get("with", {})) for job in jobs.values() for step in job["steps"]):
        yield Finding(RELEASE, "publishes with a password, expected trusted publishing")
