"""Certify the benchmark's baselines: which compute what their op means, and which something else.

    python tools/certify.py [OP ...] --target cpu|cuda --jobs N --out certificates.json

Needs all five packages; `hatch run certify:baselines` has them. `tileops-bench run --certificates FILE` reads
what is written here. The file is replaced after every op, so an interrupt keeps what is done. Exit status 1
where a baseline was rejected or broke, 2 for a wrong call, 3 where the file cannot be written, 130 after an
interrupt.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # PYTHONSAFEPATH keeps the script's own folder off the path

from certification import Opinion, OpJudge  # noqa: E402
from tileops_bench.baselines import Baseline, baseline, baselines_for, ops_with_baselines  # noqa: E402
from tileops_bench.certificate import Certificate  # noqa: E402
from tileops_bench.errors import StorageError  # noqa: E402
from tileops_bench.files import replace_file  # noqa: E402
from tileops_manifest import load_manifest  # noqa: E402
from tileops_tests.host import ending  # noqa: E402
from tileops_tests.oracles import get_oracle  # noqa: E402

POLL_S = 0.1
Told = Callable[[Baseline, Opinion], None]


class Server:
    """A process that judges the baselines of one op; a new one after one of them broke.

    Args:
        op: manifest key.
        target: cpu or cuda.
        threads: for torch, on the CPU.
        timeout_s: for all cases of one baseline, compiling and the process's start included.
        cancel: set, it ends the process.
    """

    def __init__(self, op: str, target: str, threads: int, timeout_s: float, cancel: Event) -> None:
        self._arguments = (op, target, threads)
        self._timeout_s, self._cancel = timeout_s, cancel
        self._process: Any = None
        self._pipe: Connection | None = None

    def ask(self, entry: Baseline) -> Opinion:
        """What the process says of a baseline. One that it dies or hangs of has failed."""
        if self._process is None:
            self._start()
        deadline = time.monotonic() + self._timeout_s
        try:
            self._pipe.send(entry.name)
            while not self._pipe.poll(POLL_S):
                if self._cancel.is_set() or time.monotonic() > deadline:
                    return self._gave_up(entry, f"no answer in {self._timeout_s:g} s")
            opinion = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            return self._gave_up(entry, f"the process ended with {ending(self._process.exitcode)}")
        if opinion.status == "failed":  # what it left behind, a lost CUDA context say, is not the next one's
            self.close()
        return opinion

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA and OpenMP do not survive a fork
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()

    def _gave_up(self, entry: Baseline, why: str) -> Opinion:
        self.close()
        return Opinion(entry.op, entry.name, "failed", detail=why)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
            self._process = None


def serve(pipe: Connection, op: str, target: str, threads: int) -> None:
    """Answer names of baselines with opinions until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # There are as many of these processes as the machine is to bear: compilers start none of their own.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(threads)
    try:
        judge = OpJudge(load_manifest()[op], get_oracle(op), target)
        trouble = "" if judge.expected else "no case"
    except Exception as error:  # noqa: BLE001  whatever it is, it is not the baselines' fault
        trouble = f"{type(error).__name__}: {error}"[:500]
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            return
        unjudged = Opinion(op, name, "unjudged", detail=trouble)
        pipe.send(unjudged if trouble else judge.judge(baseline(op, name)))


def certify(entries: Sequence[Baseline], target: str, jobs: int, timeout_s: float, told: Told) -> None:
    """Judge baselines, `jobs` ops at a time; `told` hears of each in this thread."""
    groups: dict[str, list[Baseline]] = {}
    for entry in entries:
        groups.setdefault(entry.op, []).append(entry)
    cancel, threads = Event(), max(1, (os.cpu_count() or 1) // jobs)

    def judge_op(op: str) -> list[tuple[Baseline, Opinion]]:
        server = Server(op, target, threads, timeout_s, cancel)
        try:
            return [(entry, server.ask(entry)) for entry in groups[op] if not cancel.is_set()]
        finally:
            server.close()

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in as_completed([pool.submit(judge_op, op) for op in groups]):
                for entry, opinion in future.result():
                    told(entry, opinion)
        except BaseException:
            cancel.set()
            pool.shutdown(cancel_futures=True)
            raise


class Book:
    """The certificates so far, in memory and in the file."""

    def __init__(self, path: Path, target: str) -> None:
        self._path, self._target = path, target
        self._certificates: dict[str, dict] = {}
        self.counts: Counter[str] = Counter()
        self.write()  # a path that cannot be written should be known now, not after an hour

    def add(self, entry: Baseline, opinion: Opinion) -> None:
        """Print an opinion, and keep it if it is a certificate."""
        self.counts[opinion.status] += 1
        line = f"{opinion.status:<11} {entry.op} {entry.name}: {opinion.cases} cases"
        if opinion.max_error is not None:
            line += f", largest error {opinion.max_error:.3g} of the op's bound"
        print(f"{line}; {opinion.detail}" if opinion.detail else line, flush=True)
        if opinion.status in ("certified", "rejected"):
            certificate = Certificate(
                op=entry.op,
                name=entry.name,
                target=self._target,
                status=opinion.status,
                max_error=opinion.max_error,
            )
            self._certificates[entry.digest] = certificate.model_dump()
            self.write()

    def write(self) -> None:
        """Replace the file."""
        replace_file(self._path, json.dumps(self._certificates, indent=1) + "\n")


def choose(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Baseline]:
    """Installed baselines of the named ops, or of all ops, that run on the target."""
    known = ops_with_baselines()
    for op in args.ops:
        if op not in known:
            parser.error(f"no baselines for {op!r}; known: {', '.join(known)}")
    entries = [entry for op in dict.fromkeys(args.ops or known) for entry in baselines_for(op)]
    names = {entry.name for entry in entries}
    for name in args.baselines:
        if name not in names:
            parser.error(f"no baseline {name!r} for these ops; known: {', '.join(sorted(names))}")
    wanted = set(args.baselines) or names
    return [e for e in entries if e.name in wanted and e.installed and args.target in e.targets]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="certify.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "ops", nargs="*", metavar="OP", help="manifest keys; default: every op with baselines"
    )
    parser.add_argument("--target", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the certificates, as JSON")
    parser.add_argument("--jobs", type=positive(int), default=1, metavar="N", help="ops judged at a time (1)")
    parser.add_argument("--baselines", nargs="+", default=[], metavar="NAME", help="only these")
    parser.add_argument(
        "--timeout", type=positive(float), default=900.0, metavar="SECONDS", help="for one baseline (900)"
    )
    args = parser.parse_args(argv)
    if args.target == "cuda" and not torch.cuda.is_available():
        parser.error("--target cuda: this machine has no CUDA device that torch can use")
    entries = choose(parser, args)
    try:
        book = Book(args.out, args.target)
        certify(entries, args.target, args.jobs, args.timeout, book.add)
    except StorageError as error:
        print(f"certify.py: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print(f"certify.py: interrupted; what was done is in {args.out}", file=sys.stderr)
        return 130
    counted = ", ".join(f"{count} {status}" for status, count in sorted(book.counts.items()))
    print(f"{counted or 'no baseline is installed for this target'}; written to {args.out}")
    return int(bool(book.counts["rejected"] or book.counts["failed"]))


def positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    """A positive number of a kind, as argparse reads one."""

    def read(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be positive, got {text}")
        return value

    read.__name__ = kind.__name__
    return read


if __name__ == "__main__":
    raise SystemExit(main())
