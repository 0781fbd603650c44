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
from tileops_bench.records import Record


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
