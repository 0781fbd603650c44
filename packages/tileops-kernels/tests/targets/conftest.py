"""What the target tests share: tile programs, and a cache of their own."""

# No `from __future__ import annotations`: TileLang reads the annotations of a tile program as it is defined.
from pathlib import Path
from types import SimpleNamespace

import pytest
import tilelang.language as T

from tileops_kernels.memo import Memo
from tileops_kernels.targets.cpu import target as cpu_target

HIDDEN = 32


def scaled(factor=2.0, dtype="float32"):
    rows = T.dynamic("rows")

    @T.prim_func
    def scale_rows(x: T.Tensor((rows, HIDDEN), dtype), y: T.Tensor((rows, HIDDEN), dtype), bias: T.float32):
        with T.Kernel(T.ceildiv(rows, 4), threads=64) as block:
            for i, j in T.Parallel(4, HIDDEN):
                y[block * 4 + i, j] = x[block * 4 + i, j] * factor + bias

    return scale_rows


def copied():
    rows = T.dynamic("rows")

    @T.prim_func
    def copy_rows(x: T.Tensor((rows, HIDDEN), "float32"), y: T.Tensor((rows, HIDDEN), "float32")):
        with T.Kernel(T.ceildiv(rows, 4), threads=64) as block:
            tile = T.alloc_shared((4, HIDDEN), "float32")
            T.copy(x[block * 4, 0], tile)
            T.copy(tile, y[block * 4, 0])

    return copy_rows


def counted():
    @T.prim_func
    def count(y: T.Tensor((1,), "int32")):
        with T.Kernel(8, threads=32):
            T.atomic_add(y[0], 1)

    return count


def row_sums():
    @T.prim_func
    def sum_rows(x: T.Tensor((16, 64), "float32"), y: T.Tensor((16,), "float32")):
        with T.Kernel(16, threads=64) as row:
            tile = T.alloc_fragment((1, 64), "float32")
            total = T.alloc_fragment((1,), "float32")
            T.copy(x[row, 0], tile)
            T.reduce_sum(tile, total, dim=1)
            T.copy(total, y[row])

    return sum_rows


def per_thread():
    @T.prim_func
    def write_thread_index(y: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            y[tx] = tx  # the line that the error names

    return write_thread_index


def shuffled():
    @T.prim_func
    def sum_of_a_warp(x: T.Tensor((32,), "float32"), y: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                y[i] = T.warp_reduce_sum(x[i])  # the line that the error names

    return sum_of_a_warp


def four_bits():
    @T.prim_func
    def copy_fp4(x: T.Tensor((32,), "float4_e2m1fn"), y: T.Tensor((32,), "float4_e2m1fn")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                y[i] = x[i]

    return copy_fp4


def asserted():
    @T.prim_func
    def refuse_negative(x: T.Tensor((8,), "int32")):
        with T.Kernel(8, threads=32) as block:
            T.device_assert(x[block] >= 0, "x is negative")

    return refuse_negative


def racing():
    @T.prim_func
    def shift_in_place(y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((64,), "float32")
            T.copy(y, tile)
            for i in T.Parallel(63):
                tile[i + 1] = tile[i] + 1.0  # each iteration reads what another one writes
            T.copy(tile, y)

    return shift_in_place


def forgetful():
    @T.prim_func
    def add_to_uncleared(y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((64,), "float32")
            for i in T.Parallel(64):
                tile[i] = tile[i] + 1.0  # never cleared
            T.copy(tile, y)

    return add_to_uncleared


@pytest.fixture
def programs() -> SimpleNamespace:
    """Factories of the tile programs above."""
    factories = (
        scaled,
        copied,
        counted,
        row_sums,
        per_thread,
        shuffled,
        four_bits,
        asserted,
        racing,
        forgetful,
    )
    return SimpleNamespace(**{f.__name__: f for f in factories})


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh cache directory; nothing compiled earlier in this process is remembered."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("TILEOPS_CACHE_DIR", str(directory))
    monkeypatch.setattr(cpu_target, "_programs", Memo())
    return directory
