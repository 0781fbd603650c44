"""Bounds of a worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Seconds for the start and for a request of each phase, bytes of memory and of a file, number of
    processes.
    """

    start_seconds: float = 120.0
    compile_seconds: float = 120.0
    run_seconds: float = 60.0
    memory_bytes: int = 8 << 30
    file_bytes: int = 1 << 30
    processes: int = 4096
