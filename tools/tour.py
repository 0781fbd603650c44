"""The main job, end to end: a few operators through all four stages, into one report.

`hatch run tour` runs each stage in its own environment, as separate processes that hand over data and nothing
else: verdicts come from the tests environment, timings from the bench environment, and no process sees both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
OPS = ("RMSNormFwdOp", "SoftmaxFwdOp", "GemmFwdOp", "GroupedQueryAttentionFwdOp")
TONES = {"passed": "good", "failed": "bad", "error": "bad", "refused": "void"}


class StageFailedError(RuntimeError):
    """A stage of the tour ended with a non-zero status."""


def run_stage(environment: str, *command: str, capture: bool = False) -> str:
    """Run a command in a stage's hatch environment; its output streams to the terminal unless captured.

    Raises:
        StageFailedError: the command's exit status was not zero.
    """
    hatch = [
        sys.executable,
        "-m",
        "hatch",
        *(["--quiet"] if capture else []),
        "run",
        f"{environment}:{command[0]}",
    ]
    pipe = subprocess.PIPE if capture else None
    done = subprocess.run([*hatch, *command[1:]], cwd=ROOT, text=True, stdout=pipe)
    if done.returncode:
        raise StageFailedError(f"`{' '.join(command)}` ended with status {done.returncode}")
    return done.stdout or ""


def entry_table(entries: list[dict]) -> Table:
    """What the manifest promises, one line an op."""
    table = Table("op", "signature", "dtypes", "rows")
    for entry in entries:
        table.add_row(entry["name"], entry["signature"], dtypes(entry), str(entry["rows"]))
    return table


def dtypes(entry: dict) -> str:
    return ", ".join(entry["entry"].get("dtypes", {}).values())


def entry_section(entries: list[dict]) -> dict:
    """The entries as the report shows them: a promise each, and its full text behind a fold."""
    rows = [[entry["name"], entry["signature"], dtypes(entry), str(entry["rows"])] for entry in entries]
    table = {"kind": "table", "columns": ["op", "signature", "dtypes", "workload rows"], "rows": rows}
    folds = [
        {
            "kind": "fold",
            "title": entry["name"],
            "tag": entry["digest"][:12],
            "blocks": [
                {"kind": "code", "text": json.dumps(entry["entry"], indent=2), "caption": entry["summary"]}
            ],
        }
        for entry in entries
    ]
    return {"title": "Manifest: what is promised", "blocks": [table, *folds]}


def verification_section(record: dict) -> dict:
    """The verdicts as the report shows them: cases, and the worst error against its bound."""
    rows, bars = [], []
    for op in record["ops"]:
        cases, worst = op["cases"], op["worst"]
        tone = TONES[op["status"]]
        error = f"{worst['error']:.3g} ≤ {worst['bound']:.3g}" if worst else "exact"
        counted = f"{cases['passed']} of {cases['declared']}"
        rows.append(
            [op["op"], {"text": op["status"], "tone": tone}, counted, error, f"{op['seconds']:.1f} s"]
        )
        if worst:
            bars.append(
                {"label": op["op"], "value": worst["ratio"], "text": f"{worst['ratio']:.2f}", "tone": tone}
            )
    facts = {
        "kind": "facts",
        "items": [[key, str(record[key])] for key in ("device", "target", "tier", "seed")],
    }
    columns = ["op", "verdict", "cases passed", "worst error and its bound", "time"]
    blocks = [facts, {"kind": "table", "columns": columns, "rows": rows}]
    if bars:
        note = "Worst error of any case, as a share of what the case allows; 1 is the limit."
        blocks.append({"kind": "bars", "title": "Error over bound", "bars": bars, "full": 1.0, "note": note})
    return {"title": "Tests: is it right", "blocks": blocks}


def tour(ops: tuple[str, ...], out: Path, console: Console) -> Path:
    """Run the stages in order and return the report's path. What each stage finished stays in `out`."""
    console.rule("[bold]1/4 manifest: what is promised")
    show = ("matrix.tests", "tileops-manifest", "show")
    entries = [json.loads(run_stage(*show, op, "--json", capture=True)) for op in ops]
    console.print(entry_table(entries))

    console.rule("[bold]2/4 tests: is it right (tile programs compile on the way)")
    verification = out / "verification.json"
    verify = ("tileops-tests", "verify", *ops, "--tier", "smoke", "--jobs", "2", "--json", str(verification))
    run_stage("matrix.tests", *verify)

    console.rule("[bold]3/4 bench: is it fast")
    results = out / "bench.jsonl"
    rows = sorted({entry["entry"]["workloads"][0]["label"] for entry in entries} | {"ragged"})
    # torch.compile takes longer to start on a CPU than all the rest here; the report says it was left out.
    baselines = ("--baselines", "torch-eager", "sdpa-flash", "sdpa-math", "sdpa-cudnn")
    chosen = (
        "--rows",
        *rows,
        "--dtypes",
        "bfloat16",
        "--row-budget",
        "0.5",
        *baselines,
        "--fail-on",
        "never",
    )
    run_stage("matrix.bench", "tileops-bench", "run", *ops, "--out", str(results), "--overwrite", *chosen)

    console.rule("[bold]4/4 report")
    sections = [
        entry_section(entries),
        verification_section(json.loads(verification.read_text(encoding="utf-8"))),
    ]
    (out / "sections.json").write_text(json.dumps(sections), encoding="utf-8")
    report = out / "report.html"
    extra = ("--sections", str(out / "sections.json"), "--title", "tileops tour")
    run_stage(
        "matrix.bench", "tileops-bench", "report", str(results), "--out", str(report), *extra, capture=True
    )
    return report


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="hatch run tour", description=__doc__.partition("\n")[0])
    parser.add_argument("ops", nargs="*", default=list(OPS), metavar="OP", help=f"default: {' '.join(OPS)}")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "tour", help="folder for the records and the report"
    )
    args = parser.parse_args(argv)
    console, started = Console(), time.monotonic()
    out = args.out.resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
        report = tour(tuple(args.ops), out, console)
    except (StageFailedError, OSError) as error:
        console.print(f"[bold red]{error}[/]\nWhat had finished lies in {out}", soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print(f"[bold red]interrupted[/]\nWhat had finished lies in {out}", soft_wrap=True)
        return 130
    console.print(f"{time.monotonic() - started:.0f} s. Report: [bold]{report}[/]", soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
