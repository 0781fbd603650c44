"""Turn a benchmark run into the small dated file that is kept.

    python tools/results.py RUN.jsonl SUMMARY.json OUT.json

`SUMMARY.json` is what `tileops-bench summary RUN.jsonl --json` printed: all statistics are that package's.
Here rows are only shortened (raw samples left out) and grouped by op.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

KEPT_CONDITIONS = ("target", "threads", "cache_scrub_bytes", "driver", "clocks", "python", "versions")


def short_row(row: dict[str, Any]) -> dict[str, Any]:
    """One row in brief: times in microseconds, the ratio with its interval, and reason codes."""
    comparison = row.get("comparison")
    found = {
        "id": row["id"],
        "verdict": row["verdict"],
        "created": row["created"],
        "verification": row.get("verification", "unverified"),
        "codes": sorted({problem["code"] for problem in row["problems"]}),
        "us": microseconds(row["candidate"]),
        "baselines": {b["name"]: microseconds(b) for b in row["baselines"] if b["status"] == "ok"},
    }
    if comparison:
        interval = [round(comparison[key], 3) for key in ("speedup", "low", "high")]
        found |= {"against": row["against"], "speedup": interval}
    return found


def microseconds(contender: dict[str, Any]) -> float | None:
    """Median time of a contender, if it was timed."""
    summary = contender.get("summary")
    return round(summary["median"] / 1000, 3) if summary else None


def parts(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs that the file holds: when, under which conditions and with how many rows."""
    found: list[dict[str, Any]] = []
    for line in lines:
        if line["type"] == "header":
            held = line["conditions"]
            conditions = {key: held[key] for key in KEPT_CONDITIONS if key in held}
            found.append({"created": line["created"], "rows": 0, "options": line["options"], **conditions})
        else:
            found[-1]["rows"] += 1
    return found


def by_op(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Per op: rows, valid rows, geometric mean, best and worst ratio."""
    found = {}
    for op in dict.fromkeys(row["id"].partition("/")[0] for row in rows):
        own = [row for row in rows if row["id"].partition("/")[0] == op]
        ratios = [row["speedup"][0] for row in own if row["verdict"] != "INVALID" and "speedup" in row]
        found[op] = {
            "rows": len(own),
            "valid": len(ratios),
            "geomean": round(geometric_mean(ratios), 3) if ratios else None,
            "best": max(ratios, default=None),
            "worst": min(ratios, default=None),
        }
    return found


def main(argv: list[str]) -> int:
    if len(argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    run, summary, out = map(Path, argv)
    lines = [json.loads(line) for line in run.read_text(encoding="utf-8").splitlines()]
    header = [line for line in lines if line["type"] == "header"][-1]
    rows = [short_row(row) for row in {line["id"]: line for line in lines if line["type"] == "row"}.values()]
    document = {
        "schema": "tileops-results/1",
        "created": header["created"],
        "device": header["conditions"]["device"],
        "timer": header["conditions"]["timer"],
        "parts": parts(lines),
        "summary": json.loads(summary.read_text(encoding="utf-8")),
        "ops": by_op(rows),
        "rows": rows,
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
