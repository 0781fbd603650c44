"""Typed errors of the test stage and the exit codes of its command line."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What `tileops-tests` exits with."""

    PASSED = 0
    FAILED = 1
    USAGE = 2
    ENVIRONMENT = 3
    INTERRUPTED = 130


class VerificationError(Exception):
    """Base of every error that this package raises on purpose; `exit_code` is what a CLI exits with."""

    exit_code = ExitCode.ENVIRONMENT


class UsageError(VerificationError):
    """The request itself is wrong: an unknown op, a label that does not exist, a malformed `FILE:OBJECT`."""

    exit_code = ExitCode.USAGE


class WorkerStartError(VerificationError):
    """The worker process could not be started or did not answer before any candidate code ran."""


class RecordError(VerificationError):
    """A verification record could not be read (truncated, another schema) or written (disk full, no
    permission).
    """


class LedgerError(VerificationError):
    """The ledger of known failures is malformed: the message names the file, the entry and what it lacks."""

    exit_code = ExitCode.USAGE
