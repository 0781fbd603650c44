"""Typed errors: what is wrong in a manifest file, and what is wrong in a call."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


def suggest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest known name, or the empty string."""
    matches = difflib.get_close_matches(str(name), [str(item) for item in known], n=1, cutoff=0.6)
    return f"; did you mean '{matches[0]}'?" if matches else ""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a manifest file, with its position (1-based line and column)."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class ManifestError(ValueError):
    """A manifest that cannot be used. ``problems`` holds every mistake found, in file order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnknownOpError(LookupError):
    """A name that no entry has; the message suggests the nearest one."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        super().__init__(f"no entry named {name!r}{suggest(name, known)}")


class UnknownRowError(LookupError):
    """A workload label that an entry does not have; the message lists the labels."""

    def __init__(self, op: str, label: str, known: Iterable[str]) -> None:
        self.op = op
        self.label = label
        known = tuple(known)
        super().__init__(f"{op}: no workload row {label!r}{suggest(label, known)} (rows: {', '.join(known)})")


class ExpressionError(ValueError):
    """An expression that is outside the language or cannot be evaluated; ``offset`` counts from its start."""

    def __init__(self, message: str, offset: int = 0) -> None:
        self.offset = offset
        super().__init__(message)


class SpecError(ValueError):
    """A call that its entry does not allow.

    Attributes: ``op``, ``argument`` (input, param or rule text), ``got``, ``expected`` and ``rule``
    (the declaration that was broken, as written in the entry).
    """

    def __init__(
        self,
        op: str,
        message: str,
        *,
        argument: str | None = None,
        got: Any = None,
        expected: Any = None,
        rule: str | None = None,
    ) -> None:
        self.op = op
        self.argument = argument
        self.got = got
        self.expected = expected
        self.rule = rule
        super().__init__(f"{op}: {message}")


class ShapeError(SpecError):
    """An input's shape does not fit the entry or another input."""


class DtypeError(SpecError):
    """An input's dtype is not one the entry allows, or disagrees with another input's."""


class ParamError(SpecError):
    """A param is missing, unknown, of the wrong type or not one of its choices."""


class RuleError(SpecError):
    """A rule of the entry does not hold for this call."""


class MissingInputError(SpecError):
    """A required input was not given."""


class UnknownInputError(SpecError):
    """An input was given that the entry does not have."""


class DimError(SpecError):
    """Free dims (``bind_dims``, a workload row) are missing, unknown or out of their domain."""
