"""The chain of an op from its spec to its times: who owns what, what was proven, when, and on which device.

    python tools/chain.py show OP              one screen
    python tools/chain.py verified --out FILE  the ops whose record is of the state at hand

Needs all five packages: `hatch run certify:chain show OP` has them.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # PYTHONSAFEPATH keeps the script's own folder off the path

import evidence  # noqa: E402
from boundary.codeowners import owners_of  # noqa: E402

BENCH = ROOT / "docs/results/bench-h200.json"
SHORT = 12  # of a digest's 64 digits


def show(op: str) -> Iterator[str]:
    """Lines of the chain of one op."""
    from tileops_bench.baselines import baselines_for
    from tileops_kernels.kernels import get_kernel
    from tileops_manifest import load_manifest
    from tileops_tests.oracles import get_oracle, module_of

    entry, oracle = load_manifest()[op], get_oracle(op)
    digests = {target: evidence.digests_now(op, target) for target in evidence.TARGETS}
    both = digests["cpu"]
    kernels = sorted({get_kernel(name).__module__ for name in entry.kernel_map.values()})
    baselines = baselines_for(op)
    code = ", ".join(f"{target} {d['implementation'][:SHORT]}" for target, d in digests.items())
    links = [
        ("manifest", "signature, rules, rows", [entry.file], both["manifest"][:SHORT]),
        ("workloads", "inputs", [_file("tileops_workloads")], both["workload"][:SHORT]),
        (
            "kernels",
            f"programs {', '.join(sorted(set(entry.kernel_map.values())))}",
            map(_file, kernels),
            code,
        ),
        ("tests", "oracle", [_file(module_of(oracle))], both["oracle"][:SHORT]),
        ("tests", "tolerance", [_file("tileops_tests.tolerance")], both["tolerance"][:SHORT]),
        ("tests", "checker", [_file("tileops_tests.verify")], both["checker"][:SHORT]),
        (
            "bench",
            f"baselines {', '.join(b.name for b in baselines) or 'none'}",
            sorted({_file(b.make.__module__) for b in baselines}),
            "",
        ),
    ]
    yield f"{op}: {entry.summary}"
    for stage, what, files, digest in links:
        files = [str(Path(file).relative_to(ROOT)) for file in files]
        owners = sorted(set().union(*(owners_of(ROOT, file) for file in files)))
        yield f"  {stage} {_version(stage)}, {' '.join(owners)}: {what}" + (f" [{digest}]" if digest else "")
        yield from (f"      {file}" for file in files)
    yield "records"
    for target in evidence.TARGETS:
        yield from (f"  {line}" for line in _record_lines(op, target, digests[target]))
    yield "times"
    yield from (f"  {line}" for line in _row_lines(op))


def _record_lines(op: str, target: str, digests: dict[str, str]) -> Iterator[str]:
    from tileops_manifest import load_manifest

    yield f"{target}: {getattr(load_manifest()[op].status, target)}"
    spoken = [
        (path, record, part)
        for path, record in evidence.read_files()
        for part in record["ops"]
        if record["target"] == target and part["op"] == op
    ]
    if not spoken:
        yield "    no record"
        return
    path, record, part = spoken[-1]
    cases, worst, versions = part["cases"], part.get("worst"), record["versions"]
    old = evidence.outdated(part, digests)
    yield f"    {part['status']}: {cases['passed']} of {cases['declared']} cases, {record['tier']} tier" + (
        f", worst error {worst['ratio']:.2f} of its bound ({worst['case']})" if worst else ""
    )
    yield f"    {record['created']} on {record['device']}, " + ", ".join(
        f"{name} {versions[name]}" for name in ("torch", "tilelang") if name in versions
    )
    yield f"    {path.relative_to(ROOT)}, record {evidence.record_digest(part)[:SHORT]}, " + (
        f"stale: other {', '.join(old)}" if old else "of the state at hand"
    )


def _row_lines(op: str) -> Iterator[str]:
    kept = json.loads(BENCH.read_text(encoding="utf-8"))
    rows = [row for row in kept["rows"] if row["id"].partition("/")[0] == op]
    if not rows:
        yield f"no row in {BENCH.relative_to(ROOT)}"
    for row in rows:
        ratio = "{:.2f}x ({:.2f} to {:.2f})".format(*row["speedup"]) if "speedup" in row else "not comparable"
        record = row.get("verification", "unverified")
        stands = record if record == "unverified" else f"on record {record[:SHORT]}"
        against = f" of {row['against']}" if row.get("against") else ""
        label = row["id"].partition("/")[2]
        yield f"{row['verdict']:9} {ratio}{against}  {label}, {row.get('created', 'undated')}, {stands}"


def _version(stage: str) -> str:
    text = (ROOT / f"packages/tileops-{stage}/pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]["version"]


def _file(module: str) -> str:
    return importlib.import_module(module).__file__


def verified(targets: Iterable[str] = evidence.TARGETS, root: Path = ROOT) -> list[dict[str, Any]]:
    """Per target the ops whose record says passed and is of the state at hand, by the record's digest."""
    from tileops_bench.digests import candidate_digest
    from tileops_bench.resolve import OWN
    from tileops_manifest import load_manifest

    records, manifest = evidence.read_records(root), load_manifest()
    return [
        {
            "target": target,
            "candidate": candidate_digest(OWN),
            "records": {
                op: evidence.record_digest(record)
                for op, record in records[target].items()
                if op in manifest
                and record["status"] == "passed"
                and not evidence.outdated(record, evidence.digests_now(op, target))
            },
        }
        for target in targets
    ]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    showing = commands.add_parser("show", help="the chain of one op")
    showing.add_argument("op", metavar="OP", help="manifest key")
    hand_over = commands.add_parser("verified", help="what a benchmark may stand on")
    hand_over.add_argument("--out", type=Path, required=True, metavar="FILE", help="for run --verified")
    args = parser.parse_args(argv)
    if args.command == "verified":
        books = verified()
        try:
            args.out.write_text(json.dumps(books, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"error: {args.out}: cannot be written ({error.strerror})", file=sys.stderr)
            return 3
        print(", ".join(f"{book['target']}: {len(book['records'])} ops" for book in books))
        return 0

    from tileops_manifest import load_manifest

    known = load_manifest()
    if args.op not in known:
        near = ", ".join(difflib.get_close_matches(args.op, list(known), n=3))
        parser.error(f"no op is named {args.op!r}" + (f"; did you mean {near}?" if near else ""))
    for line in show(args.op):
        print(line)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
