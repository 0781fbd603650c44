"""Results on disk: one JSON line per record, appended and flushed as soon as it is finished.

A run that dies leaves at most one partial last line; a reader says so and keeps everything before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from tileops_bench.errors import ResultsError, StorageError
from tileops_bench.records import LINE, SCHEMA, Header, Row, dump_line


@dataclass(frozen=True)
class Results:
    """The content of one results file. `rows` holds the latest record of each row id, in first-seen order."""

    path: Path
    headers: tuple[Header, ...]
    rows: tuple[Row, ...]
    notices: tuple[str, ...] = ()
    complete_bytes: int = field(default=0, compare=False)

    @property
    def header(self) -> Header:
        """The latest header."""
        return self.headers[-1]

    @property
    def missing(self) -> tuple[str, ...]:
        """Rows that a run of this file declared and none measured."""
        seen = {row.id for row in self.rows}
        declared = dict.fromkeys(name for header in self.headers for name in header.declared)
        return tuple(name for name in declared if name not in seen)


def read_results(path: str | Path) -> Results:
    """Read a results file.

    A truncated last line is tolerated and named in `notices`; anything else that does not fit is an error.

    Raises:
        ResultsError: the file is missing, empty, not of schema tileops-bench/1, or damaged before its last
            line.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error
    whole, _, tail = data.rpartition(b"\n")
    notices: list[str] = []
    records = [
        _parse(path, number, line) for number, line in enumerate(whole.split(b"\n"), 1) if line.strip()
    ]
    if tail.strip():
        number = data.count(b"\n") + 1
        notices.append(f"{path}:{number}: the last line is truncated ({len(tail)} bytes) and was left out")
    headers = tuple(r for r in records if isinstance(r, Header))
    if not headers or not isinstance(records[0], Header):
        raise ResultsError(f"{path}: no header line of schema {SCHEMA!r}; this is not a results file")
    rows = {r.id: r for r in records if isinstance(r, Row)}
    kept = len(whole) + 1 if whole else 0
    return Results(path, headers, tuple(rows.values()), tuple(notices), kept)


def merged_text(parts: Sequence[Results]) -> str:
    """The content of one results file that holds several runs, the earliest first.

    Each run keeps its header, and of a row in several of them the latest counts.

    Raises:
        ResultsError: the device, the target or the timer differs: such times do not compare.
    """
    first = parts[0].header.conditions
    for part in parts:
        for header in part.headers:
            for name in ("device", "target", "timer"):
                ours, theirs = getattr(first, name), getattr(header.conditions, name)
                if ours != theirs:
                    raise ResultsError(f"{part.path}: {name} is {theirs!r}, expected {ours!r}")
    ordered = sorted(parts, key=lambda part: part.headers[0].created)
    return "".join(part.path.read_bytes()[: part.complete_bytes].decode() for part in ordered)


def _parse(path: Path, number: int, line: bytes) -> Header | Row:
    try:
        return LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ResultsError(
            f"{path}:{number}: not a {SCHEMA} line: {where or 'line'}: {first['msg']} "
            f"({error.error_count()} problems)"
        ) from error


class ResultsWriter:
    """Appends records to a results file; every append is on disk before it returns.

    Raises:
        StorageError: the file cannot be written. A line that did not fit is taken back, so finished rows stay
            readable.
    """

    def __init__(self, path: str | Path, keep_bytes: int = 0) -> None:
        self.path = Path(path)
        self.written = 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
            if self.path.is_file():
                os.ftruncate(self._fd, keep_bytes)
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written: {error.strerror}") from error
        self._good = keep_bytes
        os.lseek(self._fd, 0, os.SEEK_END)

    def append(self, record: Header | Row) -> None:
        """Write one record and flush it to the device."""
        data = (dump_line(record) + "\n").encode()
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            if self.path.is_file():
                os.fsync(self._fd)
        except OSError as error:
            self._take_back()
            raise StorageError(
                f"{self.path}: cannot be written: {error.strerror}; "
                f"{self.written} finished rows of this run are kept"
            ) from error
        self._good += len(data)
        self.written += isinstance(record, Row)

    def _take_back(self) -> None:
        if self.path.is_file():
            os.ftruncate(self._fd, self._good)
            os.lseek(self._fd, self._good, os.SEEK_SET)

    def close(self) -> None:
        """Close the file; appending afterwards is an error of the caller."""
        os.close(self._fd)

    def __enter__(self) -> ResultsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def finished_keys(rows: Iterable[Row]) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Keys of rows that a resumed run need not measure again."""
    return {row.key for row in rows}
