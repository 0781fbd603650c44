"""Two ceilings: what physics allows (below it a time is INVALID) and what this device was measured to do.

The physical peak is units x clock x width for arithmetic and bus width x data rate for memory. It is
deliberately the fastest that the part could ever do, since a floor that is too high would reject honest
times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

_MIB = 1 << 20


@dataclass(frozen=True)
class Peak:
    """Physical limits of one device model.

    `flops_per_clock` counts floating-point operations (a fused multiply-add is two) per unit and clock,
    dense, on the fastest unit that accepts the dtype: float32 is the matrix units' tf32 rate.
    """

    units: int
    clock_hz: float
    bus_bits: int
    memory_hz: float
    l2_bytes: int
    source: str
    flops_per_clock: dict[str, int] = field(default_factory=dict)

    @property
    def bandwidth(self) -> float:
        """Bytes per second: two transfers per memory clock."""
        return self.bus_bits / 8 * 2 * self.memory_hz

    def flops(self, dtypes: Iterable[str]) -> float:
        """The fastest rate among the dtypes; a dtype that the table lacks counts as the fastest of all."""
        fastest = max(self.flops_per_clock.values())
        width = max((self.flops_per_clock.get(d, fastest) for d in dtypes), default=fastest)
        return self.units * self.clock_hz * width


_HOPPER = {
    "float8_e4m3fn": 8192, "float8_e5m2": 8192, "int8": 8192, "float16": 4096, "bfloat16": 4096,
    "float32": 2048, "float64": 256,
}  # fmt: skip
_AMPERE = {"int8": 4096, "float16": 2048, "bfloat16": 2048, "float32": 1024, "float64": 128}

PEAKS: dict[str, Peak] = {
    "NVIDIA H200": Peak(
        132,
        1.98e9,
        6144,
        3.201e9,
        60 * _MIB,
        "H200 SXM: maximum clocks reported by the driver, 6144-bit HBM3e",
        _HOPPER,
    ),
    "NVIDIA H100 80GB HBM3": Peak(
        132, 1.98e9, 5120, 2.619e9, 50 * _MIB, "H100 SXM5 datasheet: 5120-bit HBM3 at 2619 MHz", _HOPPER
    ),
    "NVIDIA H100 PCIe": Peak(
        114, 1.755e9, 5120, 1.593e9, 50 * _MIB, "H100 PCIe datasheet: 5120-bit HBM2e at 1593 MHz", _HOPPER
    ),
    "NVIDIA A100-SXM4-80GB": Peak(
        108, 1.41e9, 5120, 1.593e9, 40 * _MIB, "A100 80GB datasheet: 5120-bit HBM2e at 1593 MHz", _AMPERE
    ),
    "NVIDIA A100 80GB PCIe": Peak(
        108, 1.41e9, 5120, 1.512e9, 40 * _MIB, "A100 80GB PCIe datasheet: 5120-bit HBM2e at 1512 MHz", _AMPERE
    ),
    "NVIDIA A100-SXM4-40GB": Peak(
        108, 1.41e9, 5120, 1.215e9, 40 * _MIB, "A100 40GB datasheet: 5120-bit HBM2 at 1215 MHz", _AMPERE
    ),
    "NVIDIA A100-PCIE-40GB": Peak(
        108, 1.41e9, 5120, 1.215e9, 40 * _MIB, "A100 40GB datasheet: 5120-bit HBM2 at 1215 MHz", _AMPERE
    ),
}


@dataclass(frozen=True)
class Work:
    """What one call must do at least: operations, bytes in, bytes out, and the dtypes it computes on."""

    flops: int
    bytes_total: int
    bytes_written: int
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Floor:
    """Least possible time in nanoseconds, or None with the reason why no floor is applied."""

    ns: float | None
    note: str


def physical_floor(work: Work, device: str, target: str) -> Floor:
    """The time that no call can undercut on this device.

    Writes that fit in the L2 need not have reached memory when the kernel ends, so only the excess counts.
    """
    if target == "cpu":
        return Floor(None, "no physical peak is known for this CPU: floor not applied")
    peak = PEAKS.get(device)
    if peak is None:
        return Floor(None, f"no physical peak is known for {device!r}: floor not applied")
    read = work.bytes_total - work.bytes_written
    must_move = max(0, read) + max(0, work.bytes_written - peak.l2_bytes)
    memory = must_move / peak.bandwidth
    compute = work.flops / peak.flops(work.dtypes)
    return Floor(max(memory, compute) * 1e9, f"{peak.bandwidth / 1e12:.2f} TB/s peak ({peak.source})")


@dataclass(frozen=True)
class Efficiency:
    """Share of the measured ceiling reached, and which ceiling it is."""

    value: float
    bound: Literal["memory", "compute"]


def efficiency(work: Work, ns: float, copy_rate: float, matmul_rates: dict[str, float]) -> Efficiency:
    """Time that the measured ceilings would need over the time taken.

    >>> work = Work(flops=0, bytes_total=1000, bytes_written=500, dtypes=("float16",))
    >>> efficiency(work, ns=2000.0, copy_rate=1e9, matmul_rates={}).value
    0.5
    """
    memory = work.bytes_total / copy_rate
    known = {*work.dtypes, "float32"}  # values of a narrow dtype can always be computed on as float32
    rates = [rate for dtype, rate in matmul_rates.items() if dtype in known]
    compute = work.flops / max(rates) if rates else 0.0
    ideal = max(memory, compute)
    if not (math.isfinite(ns) and ns > 0):
        raise ValueError(f"ns must be positive, got {ns!r}")
    return Efficiency(ideal * 1e9 / ns, "compute" if compute > memory else "memory")
