"""Judge mutants by a package's own tests: `python tools/mutants/suite.py CONFIG`, a warm process that forks.

CONFIG is a JSON object: `sources` (of the package), `scratch` (where a copy of them is mutated), `stages` (of
pytest arguments; what survives one is shown to the next), `warm` (modules imported once; none of the mutated
package's), `oracles` (whether tests are chosen by the ops whose oracles run the mutated lines).

Reads one JSON object a line from standard input (`file` below the sources, `text` of the mutated file, its
`line` and `end`), answers each with one (`outcome`, `detail`, `by`: the files that killed). A mutant has a
process of its own, which imports the mutated package anew, but neither torch nor pytest. Tests that fail
without a mutant judge none.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import py_compile
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants.forked import in_fork
from mutants.lines import ops_by_line, ops_of

# No end within this many times what the tests take without a mutant, and seconds more, is a kill.
PATIENCE, GRACE_SECONDS, BASE_SECONDS = 10, 30.0, 900.0
# How many ops judge at first, and how many of those that run the line what survives that.
SOME_OPS, MOST_OPS = 4, 24
FINE, BROKEN, EMPTY = 0, 1, 5  # exit codes of pytest

Ops = tuple[str, ...]


class Watch:
    """A pytest plugin: keeps the tests that are wanted, in the order given, and what came of them."""

    def __init__(self, wanted: Callable[[Any], bool], order: Callable[[str], Any]) -> None:
        self.wanted, self.order = wanted, order
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(filter(self.wanted, items), key=lambda item: self.order(item.nodeid))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)


class Suite:
    """Runs a package's tests in forked processes, over a copy of the package."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.stages: list[list[str]] = config["stages"]
        self.scratch = Path(config["scratch"])
        copy_compiled(Path(config["sources"]), self.scratch)
        sys.path.insert(0, str(self.scratch))
        for name in config["warm"]:
            importlib.import_module(name)
        gc.freeze()  # what is collected in a fork is first copied to it
        self.lines: dict[str, dict[int, list[str]]] | None = ops_by_line() if config["oracles"] else None
        self._known: set[tuple[int, str | None]] = set()
        self._seconds: dict[str, float] = {}
        self._unsound: set[str] = set()
        self._kills: Counter[str] = Counter()

    def judge(self, asked: dict[str, Any]) -> dict[str, Any]:
        place = self.scratch / asked["file"]
        plain, passed = place.read_bytes(), 0
        for stage, ops in self._rounds(asked):
            expected = self._seconds_without(stage, ops)
            place.write_bytes(asked["text"].encode())
            try:
                result = self._run(stage, ops, first=True, timeout=PATIENCE * expected + GRACE_SECONDS)
            finally:
                place.write_bytes(plain)
            found = result.get("value", {"code": None, "failed": [], "seconds": {}})
            if found["code"] not in (FINE, EMPTY):
                self._kills.update(found["failed"][:1])
                ended = result.get("ended", f"pytest ended with {found['code']}")
                detail = found["failed"][0].rpartition("/")[2] if found["failed"] else ended
                by = [test.partition("::")[0] for test in found["failed"][:1]]
                return {"outcome": "killed", "detail": detail[:160], "by": by}
            passed += len(found["seconds"])
        if not passed:
            return {"outcome": "unjudged", "detail": "no test is for it that passes without a mutant"}
        return {"outcome": "survived", "detail": f"passes {passed} tests"}

    def _rounds(self, asked: dict[str, Any]) -> Iterator[tuple[int, Ops | None]]:
        """What to run in turn: cheap stages first, and some ops before the others."""
        if self.lines is None:
            yield from ((stage, None) for stage in range(len(self.stages)))
            return
        ops = ops_of(self.lines, asked["file"], asked["line"], asked["end"])
        some = spread(ops, SOME_OPS)
        others = tuple(op for op in spread(ops, MOST_OPS) if op not in some)
        for group in (some, others) if others else (some,):
            yield from ((stage, group) for stage in range(len(self.stages)))

    def _seconds_without(self, stage: int, ops: Ops | None) -> float:
        """How long the tests take without a mutant; on the way, which of them fail without one."""
        missing = [op for op in ops or (None,) if (stage, op) not in self._known]
        if missing:
            wanted = None if ops is None else tuple(missing)
            result = self._run(stage, wanted, first=False, timeout=BASE_SECONDS)
            found = result.get("value")
            if found is None or found["code"] not in (FINE, BROKEN, EMPTY):
                raise RuntimeError(f"without a mutant the tests of {missing} end with {found or result}")
            self._warm(found["modules"])
            self._seconds |= found["seconds"]
            self._unsound.update(found["failed"])
            for test in found["failed"]:
                print(f"mutation: fails without a mutant: {test}", file=sys.stderr)
            self._known.update((stage, op) for op in missing)
        return sum(self._seconds.values())

    def _warm(self, names: Iterable[str]) -> None:
        """Import what tests import on their way (for one error message torch imports sympy): once for all."""
        for name in names:
            with contextlib.suppress(Exception):  # what cannot be had alone is imported where it is needed
                importlib.import_module(name)
        gc.freeze()

    def _foreign(self) -> list[str]:
        """Modules of this process that are neither the mutated package's nor the tests'."""
        own = (str(self.scratch), str(Path.cwd()))
        files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
        return sorted(name for name, file in files.items() if file and not file.startswith(own))

    def _run(self, stage: int, ops: Ops | None, *, first: bool, timeout: float) -> dict[str, Any]:
        """A stage, or what of it is about some ops, in a process of its own; `first`: to its first failure.

        Quick tests come first, and those that have killed often.
        """

        def order(test: str) -> float:
            return self._seconds.get(test, 0.0) / (1 + self._kills[test])

        def wanted(item: Any) -> bool:
            return item.nodeid not in self._unsound and (ops is None or about(item, ops))

        def work() -> dict[str, Any]:
            import pytest

            watch = Watch(wanted, order)
            words = ["-q", "--no-header", "-p", "no:cacheprovider", *(["-x"] if first else [])]
            code = int(pytest.main([*words, *self.stages[stage]], plugins=[watch]))
            found = {"code": code, "failed": watch.failed, "seconds": watch.seconds}
            return found if first else found | {"modules": self._foreign()}

        return in_fork(work, timeout)


def about(item: Any, ops: Ops) -> bool:
    """Whether a test is about one of the ops: a parameter names it; a test that names none is about all."""
    params = item.callspec.params.values() if hasattr(item, "callspec") else ()
    named = {value for value in params if isinstance(value, str) and value.endswith("Op")}
    return not named or not named.isdisjoint(ops)


def spread(ops: Iterable[str], most: int) -> Ops:
    """At most so many, evenly: neighbours in the alphabet are alike.

    >>> spread("abcdefg", 3)
    ('a', 'd', 'g')
    """
    found = tuple(ops)
    return found[:: -(-len(found) // most)] if len(found) > most else found


def copy_compiled(sources: Path, scratch: Path) -> None:
    """Copy a package; its compiled files are held to their sources' content, since mutants come within the
    resolution of a file's time.
    """
    shutil.copytree(sources, scratch, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for path in scratch.rglob("*.py"):
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        py_compile.compile(str(path), doraise=True, invalidation_mode=mode)


def serve(judge: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests until there are no more; what cannot be judged says why."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # forks are ended on the way out
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            answer = judge(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the next mutant may be judged
            answer = {"outcome": "unjudged", "detail": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve(Suite(json.loads(sys.argv[1])).judge)
