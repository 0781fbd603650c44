"""The main job, end to end: a few operators through manifest, verification, kernels and benchmark, into one report.

`hatch run tour` runs each stage in its own environment, as separate processes that hand over data and nothing else: the
verdicts come from the tests environment, the timings from the bench environment, and no process sees both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
OPS = ("RMSNormFwdOp", "SoftmaxFwdOp", "GemmFwdOp", "GroupedQueryAttentionFwdOp")


@dataclass(frozen=True)
class Stage:
    """A hatch environment and the command that the tour runs in it."""

    title: str
    environment: str
    command: tuple[str, ...]


class StageFailedError(RuntimeError):
    """A stage of the tour ended with a non-zero status."""


def run_stage(stage: Stage, *, capture: bool = False) -> str:
    """Run one stage's command; its output streams to the terminal unless it is captured.

    Raises:
        StageFailedError: the command's exit status was not zero.
    """
    command = [
        sys.executable,
        "-m",
        "hatch",
        "run",
        f"{stage.environment}:{stage.command[0]}",
        *stage.command[1:],
    ]
    environment = os.environ | {"HATCH_QUIET": "1"} if capture else None
    done = subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE if capture else None, env=environment
    )
    if done.returncode:
        raise StageFailedError(
            f"{stage.title}: `{' '.join(stage.command)}` ended with status {done.returncode}"
        )
    return done.stdout or ""


def manifest_entries(ops: tuple[str, ...]) -> list[dict]:
    """The manifest entries as the manifest stage prints them."""
    shown = [
        run_stage(Stage("manifest", "matrix.tests", ("tileops-manifest", "show", op, "--json")), capture=True)
        for op in ops
    ]
    return [json.loads(text) for text in shown]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ops", nargs="*", default=list(OPS), metavar="OP", help=f"default: {', '.join(OPS)}")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "tour", help="folder for the records and the report"
    )
    args = parser.parse_args(argv)
    console = Console()
    ops, out = tuple(args.ops), args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        console.rule("manifest: what is promised")
        entries = manifest_entries(ops)
        console.print(entry_table(entries))
        console.rule("tests: is it true")
        verification = out / "verification.json"
        run_stage(
            Stage(
                "tests",
                "matrix.tests",
                ("tileops-tests", "verify", *ops, "--tier", "smoke", "--json", str(verification)),
            )
        )
        console.rule("bench: is it fast")
        results = out / "bench.jsonl"
        results.unlink(missing_ok=True)
        run_stage(
            Stage(
                "bench",
                "matrix.bench",
                ("tileops-bench", "run", *ops, "--scale", "cpu", "--out", str(results)),
            )
        )
        sections, report = out / "sections.json", out / "report.html"
        sections.write_text(
            json.dumps(report_sections(entries, json.loads(verification.read_text()))), encoding="utf-8"
        )
        run_stage(
            Stage(
                "report",
                "matrix.bench",
                ("tileops-bench", "report", str(results), "--sections", str(sections), "--out", str(report)),
            )
        )
    except StageFailedError as error:
        console.print(f"[bold red]{error}[/]; what had finished lies in {out}")
        return 1
    except KeyboardInterrupt:
        console.print(f"[bold red]interrupted[/]; what had finished lies in {out}")
        return 130
    console.rule()
    console.print(f"{time.monotonic() - started:.0f} s. The report: [bold]{report}[/]", soft_wrap=True)
    return 0
