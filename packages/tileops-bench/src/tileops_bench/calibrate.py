"""Calibration: the ceilings measured on the device at hand, stored with the date."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from tileops_bench.conditions import cpu_scrub_bytes
from tileops_bench.errors import CalibrationError, ProtocolError
from tileops_bench.files import replace_file
from tileops_bench.protocol import Rates, RatesJob
from tileops_bench.records import Record
from tileops_bench.session import ChildDied, ChildSession
from tileops_bench.timers import DEFAULT_TIMER

# target → (bytes to copy, matrix size, dtypes to multiply)
SIZES: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "cpu": (128 << 20, 1024, ("float32", "bfloat16", "float16")),
    "cuda": (4 << 30, 8192, ("float32", "bfloat16", "float16", "float8_e4m3fn")),
}
TIMEOUT_S = 300.0


class Calibration(Record):
    """Measured rates of one device: bytes per second (a copy counts reads and writes) and operations per
    second."""

    schema_: Literal["tileops-calibration/1"] = Field(default="tileops-calibration/1", alias="schema")
    device: str
    target: Literal["cpu", "cuda"]
    threads: int
    timer: str
    created: str
    copy_rate: float
    read_rate: float
    matmul: dict[str, float]

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def measure_calibration(target: str, timer: str | None = None, cpus: tuple[int, ...] = ()) -> Calibration:
    """Measure the ceilings of this machine's device in a process of its own.

    Raises:
        ProtocolError: the measuring process died.
        TimerUnavailableError: the timer cannot work here.
    """
    chosen = timer or DEFAULT_TIMER[target]
    size, n, dtypes = SIZES[target]
    scrub = cpu_scrub_bytes() if target == "cpu" else 0
    job = RatesJob(
        target=target, timer=chosen, dtypes=dtypes, copy_bytes=size, matmul_size=n, scrub_bytes=scrub
    )
    try:
        with ChildSession(target, cpus) as child:
            answer = child.ask(job, TIMEOUT_S).reply
            ready = child.ready
    except ChildDied as error:
        raise ProtocolError(f"calibration failed {error}") from error
    if not isinstance(answer, Rates):
        raise ProtocolError(f"calibration was answered with {type(answer).__name__}")
    return Calibration(
        device=ready.device,
        target=target,
        threads=ready.threads,
        timer=chosen,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        copy_rate=answer.copy_rate,
        read_rate=answer.read_rate,
        matmul=answer.matmul,
    )


def default_path(device: str, threads: int) -> Path:
    """Where the calibration of a device is kept: `$XDG_CACHE_HOME/tileops-bench/` or
    `~/.cache/tileops-bench/`.

    Raises:
        CalibrationError: neither is known, as in a container whose user has no home.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or _home() / ".cache")
    slug = re.sub(r"[^a-z0-9]+", "-", f"{device}-{threads}t".lower()).strip("-")
    return root / "tileops-bench" / f"calibration-{slug}.json"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise CalibrationError(
            "no place for calibrations: set XDG_CACHE_HOME, or name the file; this user has no home directory"
        ) from error


def write_calibration(calibration: Calibration, path: str | Path) -> None:
    """Write a calibration file, replacing an older one in one step.

    Raises:
        StorageError: see `replace_file`.
    """
    replace_file(path, calibration.model_dump_json(by_alias=True, indent=2) + "\n")


def read_calibration(path: str | Path) -> Calibration:
    """Read a calibration file.

    Raises:
        CalibrationError: it is missing or malformed.
    """
    try:
        return Calibration.model_validate(json.loads(Path(path).read_text()))
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, not JSON, not of the model
        raise CalibrationError(f"{path}: not a calibration file: {str(error).splitlines()[0]}") from error


def find_calibration(path: str | Path | None, device: str, threads: int) -> Calibration | None:
    """The calibration to judge efficiency by: the given file, else the device's stored one, else none.

    Raises:
        CalibrationError: the given file is for another device.
    """
    if path is None:
        try:
            stored = default_path(device, threads)
        except CalibrationError:  # nowhere to look is nothing found
            return None
        return read_calibration(stored) if stored.is_file() else None
    found = read_calibration(path)
    if found.device != device:
        raise CalibrationError(f"{path}: calibrates {found.device!r}, this run measures {device!r}")
    return found
