"""The `tileops-bench` command: the only place that prints and chooses exit codes.

0: done. 1: done, and a row is INVALID, was not measured, or (with `--fail-on slow`) is SLOW. 2: bad usage or
input. 3: results cannot be written, or the measuring process broke. 130: interrupted (Ctrl-C or SIGTERM);
finished rows are kept.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from tileops_bench.cli.parser import build_parser
from tileops_bench.errors import BenchError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = build_parser().parse_args(given)
    options.command_line = ["tileops-bench", *given]
    previous = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        code = options.handler(options)
        sys.stdout.flush()
        return code
    except BenchError as error:
        print(f"tileops-bench: {error}", file=sys.stderr)
        return error.exit_code
    except _foreign_errors() as error:
        print(f"tileops-bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("tileops-bench: interrupted", file=sys.stderr)
        return 130
    except OSError as error:  # of results files there are typed errors: this is the terminal, pipe or log
        print(f"tileops-bench: cannot write: {error.strerror or error}", file=sys.stderr)
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 3
    finally:
        signal.signal(signal.SIGTERM, previous)


def _as_interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _foreign_errors() -> tuple[type[Exception], ...]:
    """Typed errors of the stages that this one reads. Evaluated only when something was raised."""
    from tileops_manifest import ManifestError, SpecError, UnknownOpError, UnknownRowError
    from tileops_workloads import WorkloadError

    return (ManifestError, SpecError, UnknownOpError, UnknownRowError, WorkloadError)
