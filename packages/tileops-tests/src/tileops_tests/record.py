"""The verification record: what was checked, on what, with which outcome. Written after every finished op.

A record is replaced as a whole and atomically, so that what is on the disk is always complete, and an
interruption or a full disk loses nothing that was finished before.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tileops_tests.errors import RecordError

SCHEMA = "tileops-verification/1"
Status = Literal["passed", "failed", "refused", "error"]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CaseCounts(Model):
    """`declared` = all planned; `run` = judged; `passed` = evidence; `refused` = agreed, on inputs that prove
    nothing.
    """

    declared: int = Field(ge=0)
    run: int = Field(ge=0)
    passed: int = Field(ge=0)
    refused: int = Field(0, ge=0)
    known_failures: int = Field(0, ge=0)


class Worst(Model):
    """The element with the largest error/bound over all cases of an op."""

    case: str
    output: str
    error: float
    bound: float
    ratio: float


class Failure(Model):
    """One case that did not pass, or was refused, and why."""

    case: str
    code: str
    message: str


class OpRecord(Model):
    """Verdict on one op. `sensitivity`: on how many cases each kind of wrong result was rejected."""

    op: str
    status: Status
    cases: CaseCounts
    worst: Worst | None = None
    failures: tuple[Failure, ...] = ()
    refusals: tuple[Failure, ...] = ()
    sensitivity: dict[str, int] = {}
    confinement: dict[str, Any] = {}
    digests: dict[str, str] = {}
    seconds: float = Field(ge=0)


class Summary(Model):
    """Counts over the ops of a record."""

    ops: int
    passed: int
    failed: int
    refused: int
    error: int
    complete: bool = Field(description="every requested op was finished")


class Record(Model):
    """A verification run."""

    schema_: Literal["tileops-verification/1"] = Field(SCHEMA, alias="schema")
    created: str
    device: str
    target: str
    tier: str
    seed: int
    candidate: str | None = None
    versions: dict[str, str]
    ops: tuple[OpRecord, ...] = ()
    summary: Summary

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def summarise(ops: tuple[OpRecord, ...], *, requested: int) -> Summary:
    """The summary of finished ops."""
    counts = {
        status: sum(op.status == status for op in ops) for status in ("passed", "failed", "refused", "error")
    }
    return Summary(ops=len(ops), complete=len(ops) == requested, **counts)


def now() -> str:
    """Current time as a record states it: UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_record(record: Record, path: Path) -> None:
    """Replace `path` by `record` in one step. What is no regular file (a device, a pipe) is written to.

    Raises:
        RecordError: the file system refuses; what was at `path` before is still there.
    """
    text = record.model_dump_json(by_alias=True, indent=1) + "\n"
    temporary = None
    try:
        if path.exists() and not path.is_file():  # replacing /dev/null would take it from the whole machine
            path.write_text(text, encoding="utf-8")
            return
        path = path.resolve()  # a symbolic link stays one
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            temporary = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise RecordError(f"cannot write the record {path}: {error.strerror or error}") from error


def read_record(path: Path) -> Record:
    """Read a record back.

    Raises:
        RecordError: missing, truncated, of another schema, or malformed; the message says where.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"cannot read the record {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise RecordError(f"{path} is not a complete JSON document: {error}") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise RecordError(f"{path} has schema {schema!r}, expected {SCHEMA!r}")
    try:
        return Record.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordError(f"{path}: {where}: {first['msg']} ({error.error_count()} problem(s))") from error


def merge_records(records: Sequence[Record]) -> Record:
    """One record of several runs under the same conditions, such as runs that shared out the ops.

    Of an op in several of them the record created last speaks. The conditions are all but the ops; machines
    of one kind may run different builds of the operating system, which the record then names side by side.

    Raises:
        RecordError: none to merge, or two that differ in a condition; names it and both values.
    """
    if not records:
        raise RecordError("there is no record to merge")
    ordered = sorted(records, key=lambda record: record.created)
    first, ops = ordered[0], {}
    for record in ordered:
        for name, ours in _conditions(first).items():
            theirs = _conditions(record)[name]
            if ours != theirs:
                raise RecordError(
                    f"records of different runs: {name} is {ours!r} in one, {theirs!r} in another"
                )
        ops |= {op.op: op for op in record.ops}
    merged = tuple(ops[name] for name in sorted(ops))
    complete = all(record.summary.complete for record in ordered)
    summary = summarise(merged, requested=len(merged) if complete else -1)
    held = [record.versions["system"].split(", ") for record in ordered if "system" in record.versions]
    systems = dict.fromkeys(name for names in held for name in names)
    versions = first.versions | ({"system": ", ".join(systems)} if systems else {})
    return first.model_copy(
        update={
            "created": ordered[-1].created,
            "versions": versions,
            "ops": merged,
            "summary": summary,
        }
    )


def _conditions(record: Record) -> dict[str, Any]:
    names = ("device", "target", "tier", "seed", "candidate")
    versions = {name: version for name, version in record.versions.items() if name != "system"}
    return {name: getattr(record, name) for name in names} | {"versions": versions}


def json_schema() -> dict[str, Any]:
    """JSON Schema of a record."""
    return Record.model_json_schema(by_alias=True)
