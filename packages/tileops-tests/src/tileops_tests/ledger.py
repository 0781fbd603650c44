"""The ledger of known failures: each with a reason, each still run. A listed case that passes is a failure
too.
"""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path

from tileops_tests.codes import ReasonCode
from tileops_tests.errors import LedgerError


@dataclass(frozen=True)
class KnownFailure:
    """One entry: `case` is a pattern (`*` and `?`), `code` the reason code that is expected, `reason` is for
    people.
    """

    op: str
    target: str
    case: str
    code: ReasonCode
    reason: str
    since: str

    def covers(self, op: str, target: str, case: str) -> bool:
        """Whether this entry speaks of a case, whatever its outcome."""
        return self.op == op and self.target == target and fnmatch.fnmatchcase(case, self.case)


def load_ledger(path: Path | None = None) -> tuple[KnownFailure, ...]:
    """Read a ledger (default: the one shipped with this package).

    Raises:
        LedgerError: unreadable, an unknown or missing field, an unknown code, an empty reason.
    """
    source = str(path) if path is not None else "known_failures.toml"
    try:
        text = path.read_text() if path is not None else files("tileops_tests").joinpath(source).read_text()
        content = tomllib.loads(text)
    except OSError as error:
        raise LedgerError(f"cannot read the ledger {source}: {error.strerror or error}") from error
    except tomllib.TOMLDecodeError as error:
        raise LedgerError(f"{source}: {error}") from error
    unknown = set(content) - {"failure"}
    if unknown:
        raise LedgerError(f"{source}: unknown table {sorted(unknown)[0]!r}, expected [[failure]]")
    return tuple(_entry(source, index, item) for index, item in enumerate(content.get("failure", ())))


def _entry(source: str, index: int, item: dict[str, object]) -> KnownFailure:
    names = {field.name for field in fields(KnownFailure)}
    where = f"{source}: failure {index + 1}"
    for name in sorted(names):
        if not isinstance(item.get(name), str) or not str(item[name]).strip():
            raise LedgerError(f"{where} needs a non-empty string {name!r}")
    for name in sorted(set(item) - names):
        raise LedgerError(f"{where} has the unknown field {name!r}, expected {', '.join(sorted(names))}")
    try:
        code = ReasonCode(str(item["code"]))
    except ValueError:
        raise LedgerError(f"{where} has the unknown code {item['code']!r}") from None
    values = {name: str(item[name]) for name in names if name != "code"}
    return KnownFailure(code=code, **values)


def expected_failure(ledger: Sequence[KnownFailure], op: str, target: str, case: str) -> KnownFailure | None:
    """The entry that covers a case, if any."""
    return next((known for known in ledger if known.covers(op, target, case)), None)
