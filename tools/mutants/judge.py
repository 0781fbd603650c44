"""Judge mutants of kernels by tileops-tests' own verdict on CPU: `python tools/mutants/judge.py CONFIG`.

CONFIG is a JSON object, that of `suite.py`: the implementation's `sources`, a `scratch` folder where a copy
of them is mutated, and more.
Reads one JSON object a line from standard input (`file` below the sources, `text` of the mutated file, `ops`
that use it, `modules` of kernel classes that it is part of), answers each with one (`outcome`, `detail`).

First the code of the programs that the ops' cases compile is generated again, which takes a fraction of what
compiling takes. Cases whose code is the same cannot tell; the others are judged in confined workers, which
are forked from one warm process. A case that fails without a mutant judges none. What has not been killed is
shown to the tests of programs in a GPU's block shapes (`stages`), which the CPU's own schedules do not have.
"""

from __future__ import annotations

import contextlib
import gc
import glob
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants import programs
from mutants.forked import in_fork
from mutants.suite import Suite, serve, spread

SECONDS = 600.0  # for what a fork does without compiling anything
# How many ops are asked at first, how many changed programs of theirs are looked for, and how many ops judge
# in the end.
SOME_OPS, FIRST_PROGRAMS, MOST_OPS = 6, 3, 3

ODD = "ragged"
Use = tuple[str, str]  # an op and a case of it


class Kernels:
    """Judges mutants over a copy of the implementation."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.scratch = Path(config["scratch"]) / "sources"
        # Its copy of the package comes ahead of the installed one, for workers too.
        self.suite = Suite(config | {"scratch": str(self.scratch)})
        import torch

        from tileops_tests.limits import Limits
        from tileops_tests.sandbox import build_sandbox
        from tileops_tests.zygote import Zygote

        torch.set_num_threads(1)
        self.limits = Limits(run_seconds=30.0, compile_seconds=120.0, start_seconds=120.0)
        self._stack = contextlib.ExitStack()
        cache = Path(config["scratch"]) / "cache"
        os.environ["TILEOPS_CACHE_DIR"] = str(cache / "tests")
        sandbox = self._stack.enter_context(build_sandbox("cpu", cache=cache))
        self.zygote = self._stack.enter_context(Zygote(sandbox, self.limits, preload=config["warm"]))
        gc.freeze()  # what is collected in a fork is first copied to it
        self._programs: dict[str, list[dict[str, Any]]] = {}
        self._samples: dict[str, list[dict[str, Any]]] = {}
        self._digests: dict[tuple[str, bool], str] = {}
        self._sound: dict[tuple[str, str], bool] = {}

    def close(self) -> None:
        self._stack.close()

    def judge(self, asked: dict[str, Any]) -> dict[str, Any]:
        answer = self._by_cases(asked)
        if answer["outcome"] == "killed":
            return answer
        tested = self.suite.judge(asked)
        return tested if tested["outcome"] == "killed" else answer

    def _by_cases(self, asked: dict[str, Any]) -> dict[str, str]:
        some = spread(asked["ops"], SOME_OPS)
        for ops in (some, [op for op in asked["ops"] if op not in some]):
            uses = self._uses(ops, asked["modules"])
            found = self._changed(asked, list(uses), cuda=False, most=FIRST_PROGRAMS)
            if found["broken"] is not None:
                op, case = uses[found["changed"][-1]][0] if found["changed"] else ("*", "*")
                return {"outcome": "killed", "detail": f"{op} {case}: {found['broken']}"}
            if found["changed"]:
                break
        else:
            return self._on_a_gpu(asked)
        for op, cases in _by_op(uses[program] for program in found["changed"]).items():
            if failure := self._failure(asked, op, cases[:1]):
                return {"outcome": "killed", "detail": failure}
        found = self._changed(asked, list(uses), cuda=False, most=len(uses))
        every = _by_op(uses[program] for program in found["changed"])
        judges = list(every)[:: -(-len(every) // MOST_OPS)]
        for op in judges:
            for cases in _growing(every[op]):
                if failure := self._failure(asked, op, cases):
                    return {"outcome": "killed", "detail": failure}
        count = sum(len(every[op]) for op in judges)
        return {"outcome": "survived", "detail": f"passes {count} cases of {', '.join(judges)}"}

    def _uses(self, ops: Sequence[str], modules: Sequence[str]) -> dict[str, list[Use]]:
        """Programs of kernels that the mutant may be part of -> (op, case) that compile them."""
        found: dict[str, list[Use]] = {}
        for op in ops:
            if op not in self._programs:
                self._programs[op] = self._ask(lambda op=op: programs.recorded(op))
            for row in self._programs[op]:
                if row["module"] in modules:
                    found.setdefault(row["program"], []).extend((op, case) for case in row["cases"])
        return dict(sorted(found.items(), key=lambda item: not _has_ragged(item[1])))

    def _on_a_gpu(self, asked: dict[str, Any]) -> dict[str, str]:
        """No program on CPU is another: whether one on a GPU is, and can still be generated."""
        archs = {
            row["program"]: row["arch"] for module in asked["modules"] for row in self._samples_of(module)
        }
        found = self._changed(asked, list(archs), cuda=True, most=1)
        if found["broken"] is not None:
            return {"outcome": "killed", "detail": f"a sample does not build: {found['broken']}"}
        if not found["changed"]:
            return {
                "outcome": "unobservable",
                "detail": f"the same code of {len(archs)} samples and all cases",
            }
        program = found["changed"][0]
        with self._mutated(asked):
            result = in_fork(lambda: programs.lowered(program, archs[program]), SECONDS)
        if "ended" in result:
            return {"outcome": "killed", "detail": f"a sample does not lower: {result['ended'][:120]}"}
        return {"outcome": "device", "detail": f"changes the code for {archs[program]} alone"}

    def _samples_of(self, module: str) -> list[dict[str, Any]]:
        if module not in self._samples:
            self._samples[module] = self._ask(lambda: programs.samples([module]))
        return self._samples[module]

    def _changed(self, asked: dict[str, Any], found: list[str], *, cuda: bool, most: int) -> dict[str, Any]:
        """See `programs.changed`; the places are programs."""
        missing = [program for program in found if (program, cuda) not in self._digests]
        fresh = self._ask(lambda: programs.digests(missing, cuda=cuda)) if missing else []
        self._digests |= {(program, cuda): d for program, d in zip(missing, fresh, strict=True)}
        known = [self._digests[program, cuda] for program in found]
        with self._mutated(asked):
            result = in_fork(lambda: programs.changed(found, known, cuda=cuda, most=most), SECONDS)
        if "ended" in result:  # the file cannot be imported, or building a program crashes
            return {"changed": found[:1], "broken": result["ended"][:120]}
        places = result["value"]
        return places | {"changed": [found[place] for place in places["changed"]]}

    def _failure(self, asked: dict[str, Any], op: str, cases: Sequence[str]) -> str:
        """The first failure among some cases of an op, of those that pass without the mutant."""
        with self._mutated(asked):
            failures = self._failures(op, [case for case in cases if self._sound.get((op, case), True)])
        for case, code in failures.items():
            if case == "*" or self._passes_without(op, case):
                return f"{op} {case}: {code}"
        return ""

    def _passes_without(self, op: str, case: str) -> bool:
        if (op, case) not in self._sound:
            self._sound[op, case] = not self._failures(op, [case])
            if not self._sound[op, case]:
                print(f"mutation: fails without a mutant: {op} {case}", file=sys.stderr)
        return self._sound[op, case]

    def _failures(self, op: str, cases: Sequence[str]) -> dict[str, str]:
        from tileops_manifest import load_manifest
        from tileops_tests.oracles import get_oracle
        from tileops_tests.verify import Options, OpVerification

        if not cases:
            return {}
        options = Options(only=tuple(map(glob.escape, cases)), limits=self.limits)
        record = OpVerification(load_manifest()[op], get_oracle(op), self.zygote, options).run()
        return {failure.case: failure.code for failure in record.failures}

    def _ask(self, work: Any) -> Any:
        """What a fork finds out about the unmutated implementation."""
        result = in_fork(work, SECONDS)
        if "ended" in result:
            raise RuntimeError(f"without a mutant: {result['ended']}")
        return result["value"]

    @contextlib.contextmanager
    def _mutated(self, asked: dict[str, Any]) -> Iterator[None]:
        place = self.scratch / asked["file"]
        plain = place.read_bytes()
        place.write_bytes(asked["text"].encode())
        try:
            yield
        finally:
            place.write_bytes(plain)


def _by_op(uses: Iterable[Iterable[Use]]) -> dict[str, list[str]]:
    """(op, case) of several programs as op -> cases; those of odd sizes, which decide most, first."""
    found: dict[str, list[str]] = {}
    for op, case in (use for program in uses for use in program):
        if case not in found.setdefault(op, []):
            found[op].append(case)
    return {op: sorted(cases, key=lambda case: not case.startswith(ODD)) for op, cases in found.items()}


def _has_ragged(uses: Iterable[Use]) -> bool:
    return any(case.startswith(ODD) for _, case in uses)


def _growing(cases: Sequence[str]) -> Iterator[Sequence[str]]:
    """Cases in groups, each twice as large as the one before: most mutants fail early, and a group of many
    costs less than many groups.

    >>> list(_growing("abcdef"))
    ['a', 'bc', 'def']
    """
    start, size = 0, 1
    while start < len(cases):
        yield cases[start : start + size]
        start, size = start + size, 2 * size


if __name__ == "__main__":
    kernels = Kernels(json.loads(sys.argv[1]))
    try:
        serve(kernels.judge)
    finally:
        kernels.close()
