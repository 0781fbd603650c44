"""Errors of this package. Each names what was given and what would have been accepted."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class WorkloadError(ValueError):
    """Base class: a workload cannot be made as asked."""


class UnknownNameError(WorkloadError):
    """A distribution, layout, scale or row label that does not exist.

    Attributes:
        kind: what sort of name it is ("distribution").
        got: the name that was given.
        expected: the names that exist.
    """

    def __init__(self, kind: str, got: object, expected: Iterable[str]):
        self.kind, self.got, self.expected = kind, got, tuple(expected)
        close = get_close_matches(str(got), self.expected, n=1, cutoff=0.5)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        super().__init__(f"unknown {kind} {got!r}, expected one of {', '.join(self.expected)}{hint}")


class UnsupportedDtypeError(WorkloadError):
    """A dtype name that this version of torch, or the generator, does not have."""


class LayoutError(WorkloadError):
    """A layout that no input of the workload can take (transposing a vector)."""


class DomainError(WorkloadError):
    """A `values:` domain that cannot be met (five distinct pages out of four)."""


class ScaleError(WorkloadError):
    """A scale asked for without a row to scale."""


def require_name(kind: str, got: object, expected: Iterable[str]) -> str:
    """Return `got` if it is one of `expected`, else raise `UnknownNameError`."""
    expected = tuple(expected)
    if got not in expected:
        raise UnknownNameError(kind, got, expected)
    return str(got)
