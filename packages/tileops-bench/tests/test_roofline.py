"""The physical floor and the efficiency against measured ceilings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tileops_bench.calibrate import (
    Calibration,
    default_path,
    find_calibration,
    read_calibration,
    write_calibration,
)
from tileops_bench.conditions import THROTTLE_BITS, cpu_scrub_bytes, throttle_reasons
from tileops_bench.errors import CalibrationError
from tileops_bench.roofline import PEAKS, Work, efficiency, physical_floor

H200 = "NVIDIA H200"


def work(flops=0, read=0, written=0, dtypes=("bfloat16",)) -> Work:
    return Work(flops, read + written, written, dtypes)


def test_reading_alone_is_bounded_by_the_bus():
    floor = physical_floor(work(read=4_917_000_000), H200, "cuda")
    assert floor.ns == pytest.approx(1e6, rel=0.01)


def test_writes_that_fit_in_the_l2_are_not_charged():
    small = physical_floor(work(read=1000, written=30 << 20), H200, "cuda")
    large = physical_floor(work(read=1000, written=600 << 20), H200, "cuda")
    assert small.ns < 1.0
    assert large.ns > 100_000


def test_arithmetic_is_bounded_by_the_fastest_unit_of_the_dtype():
    flops = 2 * 8192**3
    bf16 = physical_floor(work(flops=flops), H200, "cuda").ns
    fp8 = physical_floor(work(flops=flops, dtypes=("float8_e4m3fn",)), H200, "cuda").ns
    assert bf16 == pytest.approx(flops / 1.07e15 * 1e9, rel=0.01)
    assert bf16 == pytest.approx(2 * fp8)


def test_a_dtype_that_the_table_lacks_gets_the_lowest_floor():
    unknown = physical_floor(work(flops=10**12, dtypes=("int32",)), H200, "cuda").ns
    assert unknown == physical_floor(work(flops=10**12, dtypes=("float8_e4m3fn",)), H200, "cuda").ns


def test_measured_times_of_the_real_part_lie_above_its_floor():
    """Best times seen on an H200: 8192^3 bf16 in 1.585 ms; a copy at 4.27 TB/s."""
    assert physical_floor(work(flops=2 * 8192**3), H200, "cuda").ns < 1_585_170
    moved = 2 << 30
    assert physical_floor(work(read=moved, written=moved), H200, "cuda").ns < 2 * moved / 4.27e12 * 1e9


@pytest.mark.parametrize(("device", "target"), [("Some CPU", "cpu"), ("NVIDIA Unheard-of", "cuda")])
def test_without_a_known_peak_no_floor_is_applied_and_it_is_said(device, target):
    floor = physical_floor(work(read=10**9), device, target)
    assert floor.ns is None
    assert "not applied" in floor.note


def test_every_peak_names_its_source():
    assert all(peak.source and peak.bandwidth > 1e12 for peak in PEAKS.values())


def test_efficiency_names_the_ceiling_that_binds():
    memory = efficiency(
        work(read=500, written=500, flops=1), 2000, copy_rate=1e9, matmul_rates={"bfloat16": 1e9}
    )
    compute = efficiency(work(read=1, flops=1000), 2000, copy_rate=1e9, matmul_rates={"bfloat16": 1e9})
    assert (memory.value, memory.bound) == (0.5, "memory")
    assert (compute.value, compute.bound) == (0.5, "compute")


def test_a_slow_matmul_of_a_narrow_dtype_is_no_ceiling():
    """CPUs multiply float16 slower than float32; an op can convert, so float32's rate is the ceiling."""
    rates = {"float16": 1e6, "float32": 1e9}
    found = efficiency(work(flops=1000, read=1, dtypes=("float16",)), 2000, copy_rate=1e9, matmul_rates=rates)
    assert found.value == 0.5


def calibration(device="Test CPU") -> Calibration:
    return Calibration(
        device=device, target="cpu", threads=2, timer="perf_counter", created="2026-11-30", copy_rate=1e10,
        read_rate=1e10, matmul={"float32": 1e11},
    )  # fmt: skip


def test_a_stored_calibration_is_found_by_device_and_threads(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_calibration(None, "Test CPU", 2) is None
    write_calibration(calibration(), default_path("Test CPU", 2))
    assert find_calibration(None, "Test CPU", 2) == calibration()
    assert find_calibration(None, "Test CPU", 1) is None


def test_a_calibration_of_another_device_is_refused(tmp_path):
    path = tmp_path / "c.json"
    write_calibration(calibration("Other"), path)
    with pytest.raises(CalibrationError, match="'Other'"):
        find_calibration(path, "Test CPU", 2)


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"schema": "tileops-calibration/9"})])
def test_a_malformed_calibration_is_refused(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=r"c\.json"):
        read_calibration(path)


def test_a_binary_calibration_is_refused(tmp_path):
    path = tmp_path / "c.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CalibrationError, match=r"c\.json: not a calibration file"):
        read_calibration(path)


def test_a_user_without_a_home_has_no_stored_calibration(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert find_calibration(None, "Test CPU", 2) is None
    with pytest.raises(CalibrationError, match="XDG_CACHE_HOME"):
        default_path("Test CPU", 2)


def test_the_scrub_is_twice_the_last_level_cache(tmp_path):
    for index, size in enumerate(("32K", "1024K", "16384K")):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "size").write_text(size + "\n")
    assert cpu_scrub_bytes(tmp_path) == 32 << 20
    assert cpu_scrub_bytes(tmp_path / "nowhere") == 64 << 20


@pytest.mark.parametrize(("bit", "name"), THROTTLE_BITS.items())
def test_harmful_clock_events_are_named(bit, name):
    assert throttle_reasons(bit | 0x1 | 0x4) == (name,)
