"""Loading and validating manifests: every file read, every problem reported at once."""

from __future__ import annotations

import threading
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Union

from pydantic import BaseModel, ValidationError

from tileops_manifest.build import build_entry
from tileops_manifest.entry import Entry
from tileops_manifest.errors import ManifestError, Problem, UnknownOpError, suggest
from tileops_manifest.model import FileModel
from tileops_manifest.source import Source, read_yaml
from tileops_manifest.validate import RowStats, check_rows

PACKAGED = Path(__file__).parent / "ops"


@dataclass(frozen=True)
class Report:
    """What a validation covered: counts, and every problem found."""

    entries: int
    rows: int
    rules: int
    evaluated: int
    problems: tuple[Problem, ...]


class Manifest(Mapping[str, Entry]):
    """Entries by name, in file order. An unknown name raises UnknownOpError with the nearest one."""

    def __init__(self, entries: Mapping[str, Entry], report: Report) -> None:
        self.entries: Mapping[str, Entry] = MappingProxyType(dict(entries))
        self.report = report

    def __getitem__(self, name: str) -> Entry:
        try:
            return self.entries[name]
        except KeyError:
            raise UnknownOpError(name, self.entries) from None

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"<Manifest of {len(self)} entries>"


def load_manifest(path: str | Path | None = None) -> Manifest:
    """Load and fully validate a manifest: the packaged one, one file, or every ``*.yaml`` in a folder.

    Raises ManifestError whose ``problems`` name each mistake with file, line and column. The packaged
    manifest is loaded once per process.

    >>> manifest = load_manifest()
    >>> manifest["RMSNormFwdOp"].function_name
    'rms_norm'
    """
    return _load_packaged() if path is None else _load(Path(path))


_packaged_lock = threading.Lock()


def _load_packaged() -> Manifest:
    with _packaged_lock:  # threads that come first together share one manifest
        return _load_packaged_once()


@lru_cache(maxsize=1)
def _load_packaged_once() -> Manifest:
    return _load(PACKAGED)


def _load(path: Path) -> Manifest:
    entries, report = validate_path(path)
    if report.problems:
        raise ManifestError(report.problems)
    return Manifest(entries, report)


def validate_path(path: Path) -> tuple[dict[str, Entry], Report]:
    """Read and validate without raising: the entries that are sound, and the report."""
    entries: dict[str, Entry] = {}
    sources: dict[str, Source] = {}
    problems: list[Problem] = []
    stats = RowStats()
    for file in _files(path, problems):
        source = _read(file, problems)
        if source is not None:
            _load_file(source, entries, sources, problems, stats)
    return entries, Report(
        entries=stats.entries,
        rows=stats.rows,
        rules=stats.rules,
        evaluated=stats.evaluated,
        problems=tuple(problems),
    )


def _files(path: Path, problems: list[Problem]) -> list[Path]:
    if path.is_dir():
        files = sorted(path.glob("*.yaml"))
        if not files:
            problems.append(Problem(str(path), 1, 1, "the folder holds no *.yaml file"))
        return files
    if not path.exists():
        problems.append(Problem(str(path), 1, 1, "no such file or folder"))
        return []
    return [path]


def _read(file: Path, problems: list[Problem]) -> Source | None:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(Problem(str(file), 1, 1, f"cannot be read: {error}"))
        return None
    source, found = read_yaml(text, str(file))
    problems.extend(found)
    return source if source.root is not None else None


def _load_file(
    source: Source,
    entries: dict[str, Entry],
    sources: dict[str, Source],
    problems: list[Problem],
    stats: RowStats,
) -> None:
    if not isinstance(source.data, dict):
        problems.append(
            Problem(source.file, 1, 1, "a manifest file is a mapping with grammar, family and ops")
        )
        return
    found: list[Problem] = []
    model = _validate_model(source, found)
    if model is not None:
        for name, op in model.ops.items():
            _load_entry(name, op, model.family, source, entries, sources, found, stats)
    problems.extend(sorted(found, key=lambda problem: (problem.line, problem.column)))


def _load_entry(
    name: str,
    op: Any,
    family: str,
    source: Source,
    entries: dict[str, Entry],
    sources: dict[str, Source],
    problems: list[Problem],
    stats: RowStats,
) -> None:
    def report(path: tuple[str | int, ...], offset: int | None, message: str) -> None:
        line, column = source.locate(("ops", name, *path), offset)
        problems.append(Problem(source.file, line, column, f"{name}: {message}"))

    stats.entries += 1
    if name in entries:
        other = sources[name]
        line, _ = other.key_position(("ops", name))
        line_here, column = source.key_position(("ops", name))
        message = f"{name} is already an entry in {other.file}:{line}"
        problems.append(Problem(source.file, line_here, column, message))
        return
    entry = build_entry(name, family, op, source.file, report)
    if entry is None:
        return
    if check_rows(entry, report, stats):
        entries[name] = entry
        sources[name] = source


def _validate_model(source: Source, problems: list[Problem]) -> FileModel | None:
    """The file's record; on errors that of the sound entries alone, so that their problems show too."""
    try:
        return FileModel.model_validate(source.data)
    except ValidationError as error:
        details = _causes(error)
    broken = {
        detail["loc"][1] for detail in details if detail["loc"][:1] == ("ops",) and len(detail["loc"]) > 1
    }
    problems.extend(_model_problem(source, detail) for detail in details)
    if any(detail["loc"][:1] != ("ops",) or len(detail["loc"]) == 1 for detail in details):
        return None
    sound = {name: op for name, op in source.data["ops"].items() if name not in broken}
    return FileModel.model_validate({**source.data, "ops": sound})


def _causes(error: ValidationError) -> list[Any]:
    """The error's details without those that only follow from others.

    A list is `too short` when its items failed.
    """
    details = error.errors()
    return [
        detail
        for detail in details
        if detail["type"] != "too_short"
        or not any(
            len(other["loc"]) > len(detail["loc"]) and other["loc"][: len(detail["loc"])] == detail["loc"]
            for other in details
        )
    ]


def _model_problem(source: Source, detail: Any) -> Problem:
    loc = tuple(part for part in detail["loc"] if part != "[key]")
    owner = f"{loc[1]}: " if loc[:1] == ("ops",) and len(loc) > 1 else ""
    where = ".".join(str(part) for part in (loc[2:] if owner else loc))
    kind = detail["type"]
    if kind == "extra_forbidden":
        line, column = source.key_position(loc)
        message = f"unknown field {loc[-1]!r}{suggest(str(loc[-1]), _fields(loc[:-1]))}"
    elif kind == "missing":
        line, column = source.key_position(loc[:-1])
        message = f"field {where!r} is missing"
    else:
        line, column = source.locate(loc)
        got = detail.get("input")
        shown = f", got {got!r}" if isinstance(got, str | int | float | bool | None) else ""
        message = f"{where}: {detail['msg'].removeprefix('Value error, ')}{shown}"
    return Problem(source.file, line, column, owner + message)


def _fields(path: tuple[str | int, ...]) -> tuple[str, ...]:
    """Field names of the record at ``path``; empty where there is none."""
    annotation: Any = FileModel
    for part in path:
        annotation = _step(annotation, part)
    record = _record(annotation)
    if record is None:
        return ()
    return tuple(field.alias or name for name, field in record.model_fields.items())


def _step(annotation: Any, part: str | int) -> Any:
    record = _record(annotation)
    if record is not None and str(part) in record.model_fields:
        return record.model_fields[str(part)].annotation
    arguments = [arg for arg in typing.get_args(annotation) if arg is not ...]
    return arguments[-1] if arguments else None


def _record(annotation: Any) -> type[BaseModel] | None:
    """The record that an annotation is, looking through unions and Annotated but not into containers."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    if typing.get_origin(annotation) not in (Annotated, Union, UnionType):
        return None
    return next(filter(None, map(_record, typing.get_args(annotation))), None)
