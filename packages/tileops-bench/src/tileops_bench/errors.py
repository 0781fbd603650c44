"""Typed errors of the benchmark stage. Only the CLI turns them into messages and exit codes."""

from __future__ import annotations


class BenchError(Exception):
    """Base of every error this package raises on purpose. `exit_code` is what the CLI returns for it."""

    exit_code = 2


class UsageError(BenchError):
    """The caller asked for something that does not exist or does not fit together."""


class ResultsError(BenchError):
    """A results file cannot be read as `tileops-bench/1`."""


class StorageError(BenchError):
    """A results file cannot be written (full disk, no permission). Finished rows are kept."""

    exit_code = 3


class TimerUnavailableError(BenchError):
    """The requested timer cannot work here. There is never a silent fallback to another one."""


class ProtocolError(BenchError):
    """The measuring child process sent something that the protocol does not allow."""

    exit_code = 3


class CandidateError(BenchError):
    """A candidate or baseline reference cannot be resolved to a callable."""


class CalibrationError(BenchError):
    """A calibration file is malformed or belongs to another device."""


class CertificateError(BenchError):
    """A baseline certificate file is malformed."""


class VerificationError(BenchError):
    """A file of verified ops is malformed, or speaks of another candidate."""
