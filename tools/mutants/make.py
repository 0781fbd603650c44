"""Which mutants there are: every rewrite of `mutators.yml` (ast-grep) in the sources of each area."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

MUTATORS = Path(__file__).with_name("mutators.yml")
KERNELS = "packages/tileops-kernels/src/tileops_kernels/kernels"
TESTS = "packages/tileops-tests/src/tileops_tests"
ENTRIES = "packages/tileops-manifest/src/tileops_manifest/ops"
# Files whose functions are parts of tile programs without being one.
WHOLE = frozenset({"elementwise_expressions.py", "reduce_table.py", "rowwise_tile.py"})
NOT_PROGRAMS = frozenset({"__init__.py", "base.py"})
COMPARATOR = ("comparator.py", "tolerance.py", "sensitivity.py", "second.py")
_FLOPS = re.compile(r'roofline: \{flops: "(?P<expression>[^"]+)"')


@dataclass(frozen=True)
class Mutant:
    """One change of one file: bytes `start` to `end` become `after`.

    `text` is the line where it begins, `number` how many mutants before it are like it in all but the line.
    """

    area: str
    file: str
    operator: str
    note: str
    line: int
    column: int
    start: int
    end: int
    before: str
    after: str
    text: str = ""
    number: int = 0

    @property
    def last_line(self) -> int:
        return self.line + self.before.count("\n")

    @property
    def id(self) -> str:
        """Stands for the change and its place; lines that come or go elsewhere do not change it."""
        material = json.dumps([*self.likeness, self.number])
        return hashlib.sha256(material.encode()).hexdigest()[:12]

    @property
    def likeness(self) -> tuple[str | int, ...]:
        column = self.column - (len(self.text) - len(self.text.lstrip()))
        return self.file, self.operator, self.before, self.after, self.text.strip(), column

    def apply(self, source: bytes) -> bytes:
        """The mutated source.

        Raises:
            ValueError: the source is not the one that the mutant was made of.
        """
        if source[self.start : self.end] != self.before.encode():
            raise ValueError(f"{self.file} has changed: expected {self.before!r} in line {self.line}")
        return source[: self.start] + self.after.encode() + source[self.end :]

    def __str__(self) -> str:
        def flat(text: str) -> str:
            return " ".join(text.split())[:70]

        place = f"{self.file.rpartition('/')[2]}:{self.line}"
        return f"{place} {self.operator}: `{flat(self.before)}` → `{flat(self.after)}`"


def make_mutants(root: Path, areas: Iterable[str]) -> list[Mutant]:
    """Every mutant of the areas, in a fixed order."""
    seen: Counter[tuple[str | int, ...]] = Counter()
    found = []
    for area in areas:
        for mutant in AREAS[area](root):
            found.append(replace(mutant, number=seen[mutant.likeness]))
            seen[mutant.likeness] += 1
    return found


def kernels(root: Path) -> Iterator[Mutant]:
    files = [p for p in sorted((root / KERNELS).glob("*.py")) if p.name not in NOT_PROGRAMS]
    regions = {p: None if p.name in WHOLE else program_lines(p.read_text(encoding="utf-8")) for p in files}
    for path, found in _done(files):
        line = found["range"]["start"]["line"] + 1
        if regions[path] is None or line in regions[path]:
            yield _mutant("kernels", root, path, found)


def program_lines(source: str) -> frozenset[int]:
    """Lines of the bodies of tile programs and macros.

    >>> sorted(program_lines("import x\\n@T.macro\\ndef f(a=1):\\n    b = 2\\n    c = 3\\n"))
    [4, 5]
    """
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and any(
            ast.unparse(d).endswith(("prim_func", "macro")) for d in node.decorator_list
        ):
            lines.update(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(lines)


def comparator(root: Path) -> Iterator[Mutant]:
    for path, found in _done([root / TESTS / name for name in COMPARATOR]):
        yield _mutant("comparator", root, path, found)


def oracles(root: Path) -> Iterator[Mutant]:
    for path, found in _done(sorted((root / TESTS / "oracles").glob("*.py"))):
        yield _mutant("oracles", root, path, found)


def rooflines(root: Path) -> Iterator[Mutant]:
    """Formulas stand in strings: each is taken out, mutated as an expression, and put back."""
    formulas = [
        (path.relative_to(root).as_posix(), text, match)
        for path in sorted((root / ENTRIES).glob("*.yaml"))
        for text in [path.read_text(encoding="utf-8")]
        for match in _FLOPS.finditer(text)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for number, (_, _, match) in enumerate(formulas):
            Path(folder, f"{number:05}.py").write_text(match["expression"], encoding="utf-8")
        found = list(_scan([Path(folder)]))
    for path, rewrite in found:
        file, text, match = formulas[int(path.stem)]
        begin = len(text[: match.start("expression")].encode())
        start, end = (rewrite["replacementOffsets"][side] for side in ("start", "end"))
        yield Mutant(
            "rooflines", file, rewrite["ruleId"], rewrite["note"], text.count("\n", 0, match.start()) + 1,
            start, begin + start, begin + end, rewrite["text"], rewrite["replacement"],
            match.group(),
        )  # fmt: skip


AREAS = {"kernels": kernels, "comparator": comparator, "oracles": oracles, "rooflines": rooflines}


def says_only(source: str) -> list[tuple[int, int]]:
    """Bytes of a source that are words to a reader: texts with values in them, errors, annotations.

    >>> says_only("def f(x: int = 1):\\n    raise ValueError(1 + 2)\\n")
    [(9, 12), (23, 46)]
    """
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.AST) -> tuple[int, int]:
        begin = starts[node.lineno - 1] + node.col_offset
        return begin, starts[node.end_lineno - 1] + node.end_col_offset

    spoken = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr | ast.Raise):
            spoken.append(node)
        elif isinstance(node, ast.arg | ast.AnnAssign):
            spoken.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            spoken.append(node.returns)
    return sorted(place(node) for node in spoken if node is not None)


def _mutant(area: str, root: Path, path: Path, found: dict) -> Mutant:
    place, offsets = found["range"]["start"], found["replacementOffsets"]
    return Mutant(
        area, path.relative_to(root).as_posix(), found["ruleId"], found["note"], place["line"] + 1,
        place["column"], offsets["start"], offsets["end"], found["text"], found["replacement"],
        found["lines"].partition("\n")[0],
    )  # fmt: skip


def _done(files: Iterable[Path]) -> Iterator[tuple[Path, dict]]:
    """Rewrites of what a file does, not of what it says."""
    files = list(files)
    spoken = {path: says_only(path.read_text(encoding="utf-8")) for path in files}
    for path, found in _scan(files):
        start, end = (found["replacementOffsets"][side] for side in ("start", "end"))
        if not any(begin <= start and end <= stop for begin, stop in spoken[path]):
            yield path, found


def _scan(files: Iterable[Path]) -> Iterator[tuple[Path, dict]]:
    words = ["ast-grep", "scan", "--rule", str(MUTATORS), "--json=compact", "--no-ignore=vcs"]
    done = subprocess.run([*words, *map(str, files)], capture_output=True, text=True, check=True)
    matches = json.loads(done.stdout)
    order = ("file", "line", "ruleId", "start")
    for match in sorted(matches, key=lambda m: tuple(str(_key(m)[name]).zfill(8) for name in order)):
        yield Path(match["file"]), match


def _key(match: dict) -> dict:
    return match | {"line": match["range"]["start"]["line"], "start": match["replacementOffsets"]["start"]}
