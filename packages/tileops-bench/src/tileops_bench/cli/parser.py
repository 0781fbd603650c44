"""Options of every command."""

from __future__ import annotations

import argparse
from pathlib import Path

from tileops_bench.cli import commands, runcommand
from tileops_bench.resolve import OWN
from tileops_bench.timers import TARGETS


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="tileops-bench", description="Time tileops operators against independent baselines."
    )
    from tileops_bench import __version__

    parser.add_argument("--version", action="version", version=f"tileops-bench {__version__}")
    commands_ = parser.add_subparsers(dest="command", required=True)
    _run(commands_)
    _compare(commands_)
    _history(commands_)
    _report(commands_)
    _summary(commands_)
    _merge(commands_)
    _calibrate(commands_)
    _tune(commands_)
    _lists(commands_)
    return parser


def _run(commands_: argparse._SubParsersAction) -> None:
    run = commands_.add_parser("run", help="measure rows and stream them to a results file")
    run.add_argument("ops", nargs="*", metavar="OP", help="manifest keys; all implemented ones when left out")
    run.add_argument("--out", type=Path, required=True, metavar="FILE", help="results file (JSON lines)")
    run.add_argument(
        "--resume", action="store_true", help="continue FILE: skip rows finished with equal digests"
    )
    run.add_argument("--overwrite", action="store_true", help="replace FILE")
    run.add_argument(
        "--rows", nargs="+", default=[], metavar="LABEL", help="only workload rows with these labels"
    )
    run.add_argument(
        "--dtypes", nargs="+", default=[], metavar="DTYPE", help="only rows with one of these dtypes"
    )
    run.add_argument(
        "--candidate", default=OWN, help=f"{OWN} (default), FILE.py:OBJECT or package.module:OBJECT"
    )
    run.add_argument(
        "--baselines", nargs="+", metavar="NAME", help="only these baselines; rows say what was left out"
    )
    run.add_argument("--certificates", type=Path, metavar="FILE", help="baseline certificates")
    run.add_argument("--verified", type=Path, metavar="FILE", help="records that the rows stand on")
    run.add_argument("--calibration", type=Path, metavar="FILE", help="ceilings to report efficiency against")
    run.add_argument(
        "--manifest", type=Path, metavar="PATH", help="manifest entries other than the packaged ones"
    )
    run.add_argument(
        "--scale", choices=("auto", "cpu", "none"), default="auto",
        help="cpu: rows shrunk to what a CPU does in reasonable time; auto (default): cpu on the CPU only",
    )  # fmt: skip
    run.add_argument(
        "--budget", type=_positive, metavar="SECONDS", help="stop beginning new rows after this long"
    )
    run.add_argument(
        "--row-budget", type=_positive, default=1.0, metavar="SECONDS", help="timed calls per row (1.0)"
    )
    run.add_argument(
        "--prepare", type=_count, default=0, metavar="N",
        help="first let all contenders compile, N rows at a time; first calls then find full caches",
    )  # fmt: skip
    run.add_argument("--samples", type=_count, nargs=2, default=(7, 100), metavar=("MIN", "MAX"))
    run.add_argument(
        "--timeout", type=_positive, default=300.0, metavar="SECONDS", help="per row, compiling included"
    )
    run.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    run.add_argument("--no-alone", action="store_true", help="do not time the strongest baseline alone")
    run.add_argument("--no-confirm", action="store_true", help="do not confirm SLOW in a new process")
    run.add_argument(
        "--fail-on", choices=("never", "invalid", "slow"), default="invalid", help="what exits with 1"
    )
    run.add_argument("--quiet", action="store_true", help="no progress display")
    _device(run)
    run.set_defaults(handler=runcommand.run)


def _device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=("cpu", "cuda"), help="default: cuda where torch sees a device")
    parser.add_argument(
        "--timer", choices=sorted(TARGETS), help="default: perf_counter on the CPU, cupti on CUDA"
    )
    parser.add_argument(
        "--threads", type=_count, metavar="N", help="CPUs to pin to; default: all that are allowed"
    )


def _compare(commands_: argparse._SubParsersAction) -> None:
    compare = commands_.add_parser("compare", help="the candidate's times of two runs")
    compare.add_argument("old", type=Path)
    compare.add_argument("new", type=Path)
    compare.add_argument("--json", action="store_true")
    compare.set_defaults(handler=commands.compare)


def _history(commands_: argparse._SubParsersAction) -> None:
    history = commands_.add_parser("history", help="change points over all results files of a directory")
    history.add_argument("directory", type=Path)
    history.add_argument("--out", type=Path, metavar="HTML", help="also write charts")
    history.add_argument("--json", action="store_true")
    history.set_defaults(handler=commands.history)


def _report(commands_: argparse._SubParsersAction) -> None:
    report = commands_.add_parser("report", help="one self-contained HTML page")
    report.add_argument("results", type=Path)
    report.add_argument("--out", type=Path, required=True, metavar="HTML")
    report.add_argument(
        "--sections", type=Path, metavar="JSON", help="sections of your own, shown before the results"
    )
    report.add_argument("--title", default="tileops benchmark")
    report.set_defaults(handler=commands.report)


def _summary(commands_: argparse._SubParsersAction) -> None:
    summary = commands_.add_parser("summary", help="counts and geometric mean of one results file")
    summary.add_argument("results", type=Path)
    summary.add_argument("--json", action="store_true")
    summary.set_defaults(handler=commands.summary)


def _merge(commands_: argparse._SubParsersAction) -> None:
    merge = commands_.add_parser("merge", help="one results file of runs on one kind of device")
    merge.add_argument("results", nargs="+", type=Path, metavar="FILE")
    merge.add_argument("--out", type=Path, required=True, metavar="FILE")
    merge.add_argument(
        "--verified", type=Path, metavar="FILE", help="records that rows timed before them stand on"
    )
    merge.set_defaults(handler=commands.merge)


def _calibrate(commands_: argparse._SubParsersAction) -> None:
    calibrate = commands_.add_parser("calibrate", help="measure this device's copy, read and matmul rates")
    calibrate.add_argument(
        "--out", type=Path, metavar="FILE", help="default: the user's cache, where run finds it"
    )
    calibrate.add_argument("--json", action="store_true")
    _device(calibrate)
    calibrate.set_defaults(handler=commands.calibrate)


def _tune(commands_: argparse._SubParsersAction) -> None:
    tune = commands_.add_parser("tune", help="measure a kernel's configs on an op's rows")
    tune.add_argument("op", metavar="OP")
    tune.add_argument("--kernel", metavar="CLASS", help="default: the op's only kernel")
    tune.add_argument("--rows", nargs="+", default=[], metavar="LABEL")
    tune.add_argument("--dtypes", nargs="+", default=[], metavar="DTYPE")
    tune.add_argument("--limit", type=_count, default=16, metavar="N", help="most configs to try (16)")
    tune.add_argument("--row-budget", type=_positive, default=1.0, metavar="SECONDS")
    tune.add_argument("--out", type=Path, required=True, metavar="FILE")
    _device(tune)
    tune.set_defaults(handler=commands.tune)


def _lists(commands_: argparse._SubParsersAction) -> None:
    baselines = commands_.add_parser(
        "baselines", help="known baselines, their digests and whether they are there"
    )
    baselines.add_argument("ops", nargs="*", metavar="OP")
    baselines.add_argument("--json", action="store_true")
    baselines.set_defaults(handler=commands.baselines)
    schema = commands_.add_parser("schema", help="JSON Schema of a line of a results file")
    schema.set_defaults(handler=commands.schema)


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value
