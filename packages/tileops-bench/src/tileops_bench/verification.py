"""Which verification record a row stands on: digests of records that say an op passed, made elsewhere, by
somebody who may see verdicts, and read as data.

Format: a JSON list of `{"target": "cpu" | "cuda", "candidate": digest, "records": {op: digest}}`. A book
speaks for the candidate of that digest alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from tileops_bench.errors import VerificationError
from tileops_bench.records import LINE, UNVERIFIED, Record, Row, dump_line


class Verified(Record):
    """The ops of one candidate that passed on one target.

    Attributes:
        target: where they were judged.
        candidate: digest of the candidate, as this package takes it.
        records: manifest key -> digest of the op's verification record.
    """

    target: Literal["cpu", "cuda"]
    candidate: str
    records: dict[str, str]


_FILE = TypeAdapter(tuple[Verified, ...])


def read_verified(path: str | Path | None, target: str, candidate: str) -> Mapping[str, str]:
    """Digests of records by op, for one candidate on one target; none for no path.

    Raises:
        VerificationError: the file is missing, not of that format, or speaks of other candidates alone.
    """
    if path is None:
        return {}
    try:
        found = _FILE.validate_python(json.loads(Path(path).read_text()))
    except OSError as error:
        raise VerificationError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, not JSON, not of the model
        raise VerificationError(
            f"{path}: not a file of verified ops: {str(error).splitlines()[0]}"
        ) from error
    there = [book for book in found if book.target == target]
    own = [book for book in there if book.candidate == candidate]
    if there and not own:
        others = ", ".join(sorted({book.candidate[:12] for book in there}))
        raise VerificationError(f"{path}: speaks of the candidates {others}, this one is {candidate[:12]}")
    return {op: digest for book in own for op, digest in book.records.items()}


def stand_on_records(text: str, path: str | Path, target: str) -> str:
    """The lines of a results file with the record that each row stands on, for runs made before it was.

    A row that names a record keeps it; an op without a record stays unverified.

    Raises:
        VerificationError: as `read_verified` says, for every candidate of the rows.
    """
    lines = [LINE.validate_json(line) for line in text.splitlines()]
    candidates = {line.digests["candidate"] for line in lines if isinstance(line, Row)}
    books = {candidate: read_verified(path, target, candidate) for candidate in candidates}
    found = []
    for line in lines:
        if isinstance(line, Row) and line.verification == UNVERIFIED:
            record = books[line.digests["candidate"]].get(line.op, UNVERIFIED)
            digests = {**line.digests, "verification": record}
            line = line.model_copy(update={"verification": record, "digests": digests})
        found.append(dump_line(line) + "\n")
    return "".join(found)
