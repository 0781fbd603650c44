"""`tileops-kernels`: doctor, cache, prewarm, resources."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tileops_kernels import __version__

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 something does not work, 2 wrong usage, 130 Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        code = options.command(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("tileops-kernels: interrupted; programs that were compiled are kept", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        print(f"tileops-kernels: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tileops-kernels", description="Kernels of tileops: what runs here, and the cache."
    )
    parser.add_argument("--version", action="version", version=f"tileops-kernels {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="what this machine can run, and what to install")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(command=_doctor)

    cache = commands.add_parser("cache", help="compiled programs on disk").add_subparsers(
        required=True, metavar="ACTION"
    )
    listing = cache.add_parser("list", help="list the compiled programs")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(command=_cache_list)
    cache.add_parser("clear", help="remove them").set_defaults(command=_cache_clear)

    prewarm = commands.add_parser("prewarm", help="compile the kernels' samples into the cache")
    prewarm.add_argument("kernels", nargs="*", metavar="KERNEL", help="class names; all by default")
    prewarm.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    prewarm.set_defaults(command=_prewarm)

    resources = commands.add_parser(
        "resources", help="registers, shared memory and spills (needs nvcc, no GPU)"
    )
    resources.add_argument("kernels", nargs="*", metavar="KERNEL", help="class names; all by default")
    resources.add_argument("--arch", nargs="+", type=_arch, default=["sm_80", "sm_90a"], metavar="SM")
    resources.add_argument("--jobs", type=_positive, default=1, metavar="N", help="compilations at a time")
    resources.add_argument("--json", metavar="PATH", help="write the records here")
    resources.set_defaults(command=_resources)
    return parser


def _arch(text: str) -> str:
    if not re.fullmatch(r"sm_\d{2,3}[af]?", text):
        raise argparse.ArgumentTypeError(f"{text!r}, expected an architecture such as sm_80 or sm_90a")
    return text


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a positive integer")
    return int(text)


def _doctor(options: argparse.Namespace) -> int:
    from tileops_kernels.targets import doctor

    report = doctor()
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _print_report(report)
    return EXIT_OK if report["cpu"]["works"] or report["cuda"]["works"] else EXIT_FAILED


def _print_report(report: Mapping[str, object]) -> None:
    for part in ("versions", "cpu", "cuda", "cache"):
        print(part)
        for name, value in report[part].items():
            if value not in (None, []):
                print(f"  {name:18} {value}")
    for advice in report["advice"]:
        print(f"* {advice}")


def _cache_list(options: argparse.Namespace) -> int:
    from tileops_kernels.targets import cache

    entries = cache.entries()
    if options.json:
        print(
            json.dumps(
                [
                    {"target": e.target, "key": e.key, "program": e.meta.get("program"), "bytes": e.bytes}
                    for e in entries
                ]
            )
        )
        return EXIT_OK
    for entry in entries:
        print(f"{entry.target:5} {entry.key} {entry.bytes:>9} {entry.meta.get('program', '')}")
    print(f"{len(entries)} programs, {cache.total_bytes()} bytes in {cache.root()}")
    return EXIT_OK


def _cache_clear(_options: argparse.Namespace) -> int:
    from tileops_kernels.targets import CacheError, cache

    try:
        print(f"{cache.clear()} bytes removed from {cache.root()}")
    except CacheError as error:
        print(f"tileops-kernels: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


def _prewarm(options: argparse.Namespace) -> int:
    import torch

    from tileops_kernels.kernels import get_kernel, list_kernels

    if _names_unknown_kernels(options.kernels):
        return EXIT_USAGE
    if options.target == "cuda" and not torch.cuda.is_available():
        print("tileops-kernels: no CUDA device; see `tileops-kernels doctor`", file=sys.stderr)
        return EXIT_FAILED
    return _compile_samples((get_kernel(name) for name in options.kernels or list_kernels()), options.target)


def _names_unknown_kernels(names: Sequence[str]) -> bool:
    from tileops_kernels.kernels import list_kernels

    unknown = sorted(set(names) - set(list_kernels()))
    if unknown:
        known = ", ".join(list_kernels())
        print(f"tileops-kernels: unknown kernel {', '.join(unknown)}; known: {known}", file=sys.stderr)
    return bool(unknown)


def _resources(options: argparse.Namespace) -> int:
    from tileops_kernels.resources import measure
    from tileops_kernels.targets import CompilerNotFoundError

    if _names_unknown_kernels(options.kernels):
        return EXIT_USAGE
    records = []
    try:
        for record in measure(options.kernels, options.arch, jobs=options.jobs):
            records.append(record)
            described = f"{record.kernel}({', '.join(f'{k}={v}' for k, v in record.sample.items())})"
            if record.error:
                print(f"{record.arch:7} FAILED {described}: {record.error}")
            else:
                used = f"{record.registers:4} registers {record.shared_bytes:7} B shared"
                spilled = f"{record.spill_bytes:4} B spilled"
                print(f"{record.arch:7} {used} {spilled}  {described}  {' '.join(record.instructions)}")
        if options.json:
            Path(options.json).write_text(json.dumps([r.as_json() for r in records], indent=1) + "\n")
    except CompilerNotFoundError as error:
        print(f"tileops-kernels: {error}", file=sys.stderr)
        return EXIT_FAILED
    bad = [r for r in records if r.error or r.spill_bytes]
    print(f"{len(records)} compiled, {len(bad)} failed or with spills")
    return EXIT_FAILED if bad else EXIT_OK


def _compile_samples(kernels: Iterable[type], target: str) -> int:
    """Compile every sample; one that fails does not keep the others from being compiled."""
    import torch

    from tileops_kernels.errors import OpError
    from tileops_kernels.targets import TargetError

    device = torch.device(target)
    failed = compiled = 0
    for kernel in kernels:
        for sample in kernel.samples() if kernel.serves_device(device) else ():
            described = f"{kernel.__name__}({', '.join(f'{k}={v}' for k, v in sample.items())})"
            start = time.perf_counter()
            try:
                kernel.compiled(device, **sample)
            except (TargetError, OpError) as error:
                failed += 1
                print(f"FAILED  {described}: {error}", file=sys.stderr)
                continue
            compiled += 1
            print(f"{time.perf_counter() - start:6.2f} s {described}")
    print(f"{compiled} compiled, {failed} failed")
    return EXIT_FAILED if failed else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
