"""The conditions of a run: machine, clocks, driver, versions. Read in the parent, without importing torch."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import threading
from pathlib import Path

from tileops_bench.protocol import Ready
from tileops_bench.records import Conditions

DISTRIBUTIONS = (
    "torch", "triton", "tilelang", "cupti-python", "liger-kernel", "flashinfer-python", "nvidia-cudnn-cu13",
    "tileops-manifest", "tileops-workloads", "tileops-kernels", "tileops-bench",
)  # fmt: skip
ENVIRONMENT_PREFIXES = (
    "OMP_",
    "KMP_",
    "MKL_",
    "CUDA_",
    "TORCH",
    "TRITON_",
    "TILELANG_",
    "PYTORCH_",
    "CUBLAS_",
)
MAX_CPU_SCRUB = 64 << 20
# Bits of the driver's clock-event mask that mean "slower than it should be"; the power cap is normal.
THROTTLE_BITS = {
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
_CLOCK_FIELDS = (
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "temperature.gpu",
    "power.draw",
)


def cpu_scrub_bytes(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Twice the last-level cache, at most 64 MiB; 64 MiB where the system does not say."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = []
    for file in root.glob("index*/size"):
        text = file.read_text().strip()
        if text[:-1].isdigit() and text[-1:] in units:
            sizes.append(int(text[:-1]) * units[text[-1]])
    return min(MAX_CPU_SCRUB, 2 * max(sizes)) if sizes else MAX_CPU_SCRUB


def read_conditions(ready: Ready, target: str, timer: str, scrub_bytes: int) -> Conditions:
    """Collect the conditions of a run."""
    driver, clocks = _driver_and_clocks() if target == "cuda" else ("", {})
    return Conditions(
        device=ready.device,
        target=target,
        timer=timer,
        threads=ready.threads,
        affinity=ready.affinity,
        cache_scrub_bytes=scrub_bytes,
        driver=driver,
        clocks=clocks,
        platform=platform.platform(),
        python=platform.python_version(),
        versions=installed_versions(),
        environment={k: v for k, v in sorted(os.environ.items()) if k.startswith(ENVIRONMENT_PREFIXES)},
    )


def installed_versions() -> dict[str, str]:
    """Versions of the distributions that can change a time, where installed."""
    found = {}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _driver_and_clocks() -> tuple[str, dict[str, str]]:
    values = _query(("driver_version", *_CLOCK_FIELDS))
    if values is None:
        return "", {}
    return values[0], dict(zip(_CLOCK_FIELDS, values[1:], strict=False))


def _query(fields: tuple[str, ...]) -> list[str] | None:
    """First GPU's values of nvidia-smi fields, or None where it cannot be asked."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [value.strip() for value in done.stdout.splitlines()[0].split(",")]


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Names of the harmful bits in a clock-event mask.

    >>> throttle_reasons(0x4), throttle_reasons(0x60)
    ((), ('software thermal', 'hardware thermal'))
    """
    return tuple(name for bit, name in THROTTLE_BITS.items() if mask & bit)


class ThrottleWatch:
    """Polls the driver's clock-event mask in a thread while a row is measured. Does nothing on the CPU."""

    def __init__(self, target: str, period_s: float = 0.5) -> None:
        self._active = target == "cuda"
        self._period = period_s
        self._stop = threading.Event()
        self._seen: set[str] = set()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ThrottleWatch:
        if self._active:
            self._thread = threading.Thread(target=self._poll, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Harmful reasons seen so far."""
        return tuple(sorted(self._seen))

    def _poll(self) -> None:
        while not self._stop.wait(self._period):
            values = _query(("clocks_event_reasons.active",))
            if values and values[0].startswith("0x"):
                self._seen.update(throttle_reasons(int(values[0], 16)))
