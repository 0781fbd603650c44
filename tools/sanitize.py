"""Race and bounds checks of the kernels on a GPU, by NVIDIA's compute-sanitizer.

    python tools/sanitize.py [OP ...] --checks memcheck racecheck synccheck --jobs N --out FILE

Runs small rows of ops that together use every kernel, and larger ones where only those take a kernel, several
ops to a process. Needs all five packages, which
`hatch run certify:sanitize` has, and compute-sanitizer of the CUDA toolkit. Exit status 1 where a check found
something, an op failed, or a kernel was never run; 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
SCHEMA: Final = "tileops-sanitizer/1"
CHECKS: Final = ("memcheck", "racecheck", "synccheck")
# Operations and elements of a case: a check slows a kernel down a hundredfold.
SMALL: Final = (1 << 31, 1 << 23)
ROWS: Final = 6
LARGEST: Final = (1 << 38, 1 << 27)
_MARK: Final = "@@ "
_SAID: Final = re.compile(r"^=========\s(.*)")
# What it says of itself, and of its end.
_IDLE: Final = re.compile(r"COMPUTE-SANITIZER|ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards|^\s*$")


def run_cases(ops: Sequence[str], target: str) -> None:
    """In the checked process: run cases of each op; print what began, what ended and how.

    Rows come in order of their work. A few small ones run once; a larger one, or one in another dtype, only
    while kernels of the op are missing, and where it takes one of them: it is prepared, which compiles, then
    run or left.
    """
    import torch

    from tileops_kernels.kernels import get_kernel, list_kernels
    from tileops_kernels.ops.registry import FLOWS
    from tileops_manifest import load_manifest
    from tileops_tests.cases import plan

    def compiled() -> set[str]:
        return {name for name in list_kernels() if get_kernel(name).programs()}

    manifest = load_manifest()
    launched: set[str] = set()
    for name in ops:
        _print("begin", name)
        run, trouble, seen = 0, "", set()
        kernels = {kernel.__name__ for kernel in FLOWS[name].kernels}
        cases = [case for case in plan(manifest[name], target=target, tier="full") if _is_candidate(case)]
        for case in sorted(cases, key=lambda case: case.binding.flops):
            row = (case.spec.row.label, case.spec.scale)
            again = row in seen or len(seen) >= ROWS or not _is_within(case, SMALL)
            if again and kernels <= launched:
                continue
            inputs = tuple(case.spec.workload(0, target).gen_inputs().values())
            try:
                call = FLOWS[name].prepare(case.binding, inputs)
                fresh = compiled() - launched
                if again and not fresh:
                    continue
                seen.add(row)
                call(*inputs)
                if target == "cuda":
                    torch.cuda.synchronize()
                launched |= fresh
                run += 1
            except Exception as error:  # noqa: BLE001 - whatever a kernel raises is the answer
                trouble = trouble or f"{case.id}: {type(error).__name__}: {error}"[:500]
        _print("end", name, str(run), trouble)
    _print("kernels", ",".join(sorted(launched)))


def _is_candidate(case: Any) -> bool:
    return case.numeric and case.spec.distribution == "normal" and _is_within(case, LARGEST)


def _is_within(case: Any, limits: tuple[int, int]) -> bool:
    return case.binding.flops <= limits[0] and _elements(case.binding) <= limits[1]


def _print(*words: str) -> None:
    print(_MARK + "\t".join(words), flush=True)


def _elements(binding: Any) -> int:
    import math

    metas = [*binding.inputs.values(), *binding.outputs.values()]
    return sum(math.prod(meta.shape) for meta in metas if meta is not None)


def read_output(text: str, ops: Iterable[str], status: int) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """What one process said, by op, and the kernel classes that it ran.

    An op that did not end has failed, and so has every op after it. What the check says outside of all ops is
    held against the last one.
    """
    found: dict[str, dict[str, Any]] = {op: {"cases": 0, "messages": []} for op in ops}
    current, ended, kernels = "", set(), set()
    for line in text.splitlines():
        if line.startswith(_MARK):
            word, *rest = line.removeprefix(_MARK).split("\t")
            if word == "begin":
                current = rest[0]
            elif word == "end":
                ended.add(rest[0])
                found[rest[0]]["cases"] = int(rest[1])
                found[rest[0]]["messages"] += [rest[2]] if rest[2] else []
            else:
                kernels = set(filter(None, rest[0].split(",")))
        elif (said := _SAID.match(line)) and not _IDLE.search(said[1]):
            found[current or next(iter(found))]["messages"].append(said[1].strip())
    for op, what in found.items():
        if op not in ended:
            what["messages"].append(f"did not end: the process ended with exit status {status}")
        elif not what["cases"]:
            what["messages"].append("no case was run")
    return found, kernels


def check_group(
    sanitizer: str, target: str, timeout_s: float, check: str, ops: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Run the cases of some ops under one check."""
    command = [
        sanitizer,
        "--tool",
        check,
        "--print-limit",
        "20",
        sys.executable,
        str(Path(__file__).resolve()),
        "--child",
        "--target",
        target,
        *ops,
    ]
    # torch's allocator hands out parts of large blocks, whose borders the check does not know.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command,
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s,
        )  # fmt: skip
        text, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as error:
        text, status = (error.stdout or b"").decode(errors="replace"), 124
    return read_output(text, ops, status)


def cover(kernels_of: Mapping[str, Iterable[str]]) -> list[str]:
    """Ops, in their order, each of which has a kernel that none before it has.

    >>> cover({"A": ["k"], "B": ["k"], "C": ["l", "k"]})
    ['A', 'C']
    """
    seen: set[str] = set()
    found = []
    for op, kernels in kernels_of.items():
        if set(kernels) - seen:
            found.append(op)
            seen |= set(kernels)
    return found


def summarise(
    results: dict[str, dict[str, dict[str, Any]]], kernels: set[str], known: set[str]
) -> dict[str, Any]:
    """Counts over all checks, and the kernels that no case reached."""
    dirty = sorted({op for found in results.values() for op, what in found.items() if what["messages"]})
    ops = {op for found in results.values() for op in found}
    return {
        "ops": len(ops),
        "clean": len(ops) - len(dirty),
        "dirty": dirty,
        "kernels": len(kernels),
        "kernels_not_run": sorted(known - kernels),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "ops", nargs="*", metavar="OP", help="default: some that use every kernel between them"
    )
    parser.add_argument("--checks", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--group", type=int, default=4, metavar="N", help="ops to a process (4)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (1)")
    parser.add_argument("--timeout", type=float, default=600, metavar="SECONDS", help="per process (600)")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the program, if it is not on PATH")
    parser.add_argument("--out", type=Path, help="JSON file for what was found")
    parser.add_argument(
        "--target", choices=("cpu", "cuda"), default="cuda", help="cpu: to try a checker of CPU programs"
    )
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        run_cases(args.ops, args.target)
        return 0
    if min(args.jobs, args.group) < 1:
        parser.error(f"--jobs and --group must be at least 1, got {args.jobs} and {args.group}")
    if shutil.which(args.sanitizer) is None:
        parser.error(f"{args.sanitizer} was not found; it is part of the CUDA toolkit")

    from tileops_kernels.kernels import get_kernel, list_kernels
    from tileops_kernels.ops.registry import FLOWS
    from tileops_manifest import load_manifest

    manifest = load_manifest()
    unknown = [op for op in args.ops if op not in manifest]
    if unknown:
        parser.error(f"no op is named {', '.join(unknown)}")
    implemented = [op for op in manifest if manifest[op].status.cuda == "implemented"]
    # Operands decide which program of a family an op takes: one of many reaches more of them.
    implemented.sort(key=lambda op: -len(manifest[op].inputs))
    ops = args.ops or cover({op: [k.__name__ for k in FLOWS[op].kernels] for op in implemented})
    groups = [ops[i :: -(-len(ops) // args.group)] for i in range(-(-len(ops) // args.group))]
    results: dict[str, dict[str, dict[str, Any]]] = {check: {} for check in args.checks}
    kernels: set[str] = set()
    known = {name for name in list_kernels() if not args.ops and _serves(get_kernel(name))}
    work = [(check, group) for check in args.checks for group in groups]
    with ThreadPoolExecutor(args.jobs) as pool:
        answers = pool.map(lambda w: check_group(args.sanitizer, args.target, args.timeout, *w), work)
        for (check, _), (found, ran) in zip(work, answers, strict=True):
            results[check] |= found
            kernels |= ran
            for op, what in found.items():
                said = "; ".join(what["messages"][:3])
                print(f"{check:9} {op:50} {what['cases']} cases {said or 'clean'}", flush=True)
            summary = summarise(results, kernels, known)
            if args.out:
                _write(args.out, summary, results)
    print(
        f"{summary['clean']} of {summary['ops']} ops clean under {', '.join(args.checks)}; "
        f"{summary['kernels']} kernels run, not run: {', '.join(summary['kernels_not_run']) or 'none'}"
    )
    return 1 if summary["dirty"] or summary["kernels_not_run"] else 0


def _serves(kernel: type) -> bool:
    import torch

    return not torch.cuda.is_available() or kernel.serves_device(torch.device("cuda"))


def _write(path: Path, summary: dict[str, Any], results: dict[str, Any]) -> None:
    import torch

    from tileops_bench.files import replace_file

    record = {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "summary": summary,
        "checks": results,
    }
    replace_file(path, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
