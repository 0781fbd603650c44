"""`implemented` is only true with evidence: hold the manifest's status against the verification records.

Run in an environment that has tileops-tests (`hatch run matrix.tests:python tools/evidence.py check`), which
knows what a record's digests stand for. An implemented op needs a record in which it passed. A record whose
digests are those of an earlier state is stale: that is a warning here and an error with `--release`. A record
could have been written by hand: `renew` judges stale ops again, and some that it draws, on the CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ("evidence/*.json", "docs/results/verify-*.json")
TARGETS = ("cpu", "cuda")
STATUSES = ("passed", "failed", "refused", "error")


@dataclass(frozen=True)
class Gap:
    """What is missing for one op on one target; a stale record is a gap that only a release minds."""

    op: str
    target: str
    message: str
    stale: bool = False

    def __str__(self) -> str:
        return f"{self.op} on {self.target}: {self.message}"


def find_gaps(
    statuses: Mapping[str, Mapping[str, str]],
    digests: Mapping[str, Mapping[str, Mapping[str, str]]],
    records: Mapping[str, Mapping[str, Any]],
) -> list[Gap]:
    """Compare statuses with records.

    Args:
        statuses: op -> target -> status, as in the manifest.
        digests: target -> op -> name -> digest of the state at hand.
        records: target -> op -> that op's part of the verification record.
    """
    gaps = []
    for op, status in statuses.items():
        for target, state in status.items():
            found = records[target].get(op)
            if state == "implemented" and found is None:
                gaps.append(Gap(op, target, "implemented, but no record speaks for it"))
            elif state == "implemented" and found["status"] != "passed":
                gaps.append(Gap(op, target, f"implemented, but its record says {found['status']}"))
            elif state == "implemented":
                if old := outdated(found, digests[target][op]):
                    gaps.append(
                        Gap(op, target, f"its record is of another state of: {', '.join(old)}", stale=True)
                    )
            elif found is not None and found["status"] == "passed":
                gaps.append(
                    Gap(op, target, f"a record says it passed, but its status is {state}", stale=True)
                )
    return gaps


def digests_now(op: str, target: str) -> dict[str, str]:
    """What an op's verdict on a target rests on, as it stands. Needs tileops-tests."""
    from tileops_manifest import load_manifest
    from tileops_tests.digests import digests_of
    from tileops_tests.oracles import get_oracle

    return digests_of(load_manifest()[op], get_oracle(op), None, target)


def outdated(record: Mapping[str, Any], digests: Mapping[str, str]) -> list[str]:
    """Names of what has changed since an op's record was made."""
    return sorted(name for name, value in digests.items() if record["digests"].get(name) != value)


def record_digest(record: Mapping[str, Any]) -> str:
    """Identity of one op's part of a record, whatever file it stands in."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_records(root: Path = ROOT) -> dict[str, dict[str, Any]]:
    """The kept records, by target and op. Where several files speak of an op, the latest does."""
    found: dict[str, dict[str, Any]] = {target: {} for target in TARGETS}
    for _, record in read_files(root):
        found[record["target"]] |= {op["op"]: op for op in record["ops"]}
    return found


def read_files(root: Path = ROOT) -> list[tuple[Path, dict[str, Any]]]:
    """The files of records and what they hold, oldest first."""
    files = [path for pattern in RECORDS for path in root.glob(pattern)]
    kept = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in files]
    return sorted(kept, key=lambda item: item[1]["created"])


def due(
    statuses: Mapping[str, Mapping[str, str]],
    digests: Mapping[str, Mapping[str, Mapping[str, str]]],
    records: Mapping[str, Mapping[str, Any]],
    sample: int,
    seed: int,
) -> tuple[list[str], list[str]]:
    """Ops to judge again on the CPU: those without a current record that passed, and `sample` of the others,
    whose records were made elsewhere and are not taken on trust.
    """
    claimed = [op for op, status in statuses.items() if status.get("cpu") == "implemented"]
    stale = [
        op
        for op in claimed
        if (found := records["cpu"].get(op)) is None
        or found["status"] != "passed"
        or outdated(found, digests["cpu"][op])
    ]
    rest = [op for op in claimed if op not in stale]
    return stale, random.Random(seed).sample(rest, min(sample, len(rest)))


def renew(stale: list[str], sample: list[str], jobs: int, out: Path) -> int:
    """Judge ops again. The records of stale ones go to `out`; a drawn one must pass again.

    Returns:
        The number of ops that did not pass.
    """
    ops = [*stale, *sample]
    if not ops:
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "record.json"
        verify = [sys.executable, "-m", "tileops_tests", "verify", *ops, "--target", "cpu"]
        command = [*verify, "--jobs", str(jobs), "--json", str(made)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        found = json.loads(made.read_text(encoding="utf-8")) if made.exists() else {"ops": []}
    passed = {part["op"] for part in found["ops"] if part["status"] == "passed"}
    failed = [op for op in ops if op not in passed]
    for op in failed:
        where = "was stale" if op in stale else "its record says passed"
        print(f"error: {op} on cpu: does not pass ({where})", file=sys.stderr)
    if failed:
        print(done.stdout.decode(errors="replace")[-4000:], file=sys.stderr)
    kept = [part for part in found["ops"] if part["op"] in stale]
    if kept:
        counts = {name: sum(part["status"] == name for part in kept) for name in STATUSES}
        whole = {"ops": len(kept), **counts, "complete": len(kept) == len(stale)}
        text = json.dumps(found | {"ops": kept, "summary": whole}, indent=1)
        out.write_text(text + "\n", encoding="utf-8")
    print(f"evidence: {len(stale)} renewed, {len(sample)} drawn, {len(failed)} did not pass")
    return len(failed)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    actions = parser.add_subparsers(dest="action", required=True)
    check = actions.add_parser("check", help="every implemented op has a record in which it passed")
    check.add_argument("--release", action="store_true", help="a stale record is an error too")
    again = actions.add_parser("renew", help="judge stale ops and some others again on the CPU")
    again.add_argument("--sample", type=int, default=0, metavar="N", help="current ops to judge again (0)")
    again.add_argument("--seed", type=int, help="of the sample; default: drawn and printed")
    again.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="ops at a time")
    again.add_argument(
        "--out", type=Path, default=ROOT / "evidence/renewed-cpu.json", metavar="FILE", help="the new records"
    )
    args = parser.parse_args(argv)
    if args.action == "renew" and (args.sample < 0 or args.jobs < 1):
        parser.error(f"--sample must be at least 0 and --jobs 1, got {args.sample} and {args.jobs}")

    from tileops_manifest import load_manifest

    manifest = load_manifest()
    statuses = {name: dict(manifest[name].status) for name in manifest}
    claimed = [name for name, status in statuses.items() if "implemented" in status.values()]
    digests = {target: {name: digests_now(name, target) for name in claimed} for target in TARGETS}
    records = read_records()
    if args.action == "renew":
        seed = secrets.randbits(32) if args.seed is None else args.seed
        stale, sample = due(statuses, digests, records, args.sample, seed)
        named = [", ".join(ops) or "none" for ops in (stale, sample)]
        print(f"evidence: seed {seed}; stale: {named[0]}; drawn: {named[1]}")
        return 1 if renew(stale, sample, args.jobs, args.out) else 0
    gaps = find_gaps(statuses, digests, records)
    errors = [gap for gap in gaps if args.release or not gap.stale]
    for gap in gaps:
        print(f"{'error' if gap in errors else 'stale'}: {gap}", file=sys.stderr)
    print(f"evidence: {len(claimed)} ops claim to be implemented, {len(errors)} without evidence")
    return 1 if errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
