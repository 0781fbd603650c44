"""Measured ceilings of a device: copy, read and matmul rates, each the best of the samples. Runs in the
child."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tileops_bench.protocol import Rates, RatesJob
from tileops_bench.timers import Timer, make_timer

SAMPLES = 9
WARM = 3


def measure_rates(job: RatesJob) -> Rates:
    """Copy and read a large buffer, and multiply large random matrices in each dtype.

    A dtype that the device cannot multiply is left out.
    """
    timer = make_timer(job.timer, job.target, job.scrub_bytes)
    source = torch.rand(job.copy_bytes // 4, device=job.target)
    target = torch.empty_like(source)
    size = source.numel() * 4
    copy = 2 * size / _best_seconds(timer, lambda: target.copy_(source))
    read = size / _best_seconds(timer, lambda: torch.sum(source))
    matmul: dict[str, float] = {}
    for dtype in job.dtypes:
        rate = _matmul_rate(timer, dtype, job.matmul_size, job.target)
        if rate is not None:
            matmul[dtype] = rate
    return Rates(copy_rate=copy, read_rate=read, matmul=matmul)


def _matmul_rate(timer: Timer, dtype: str, n: int, target: str) -> float | None:
    multiply = _multiplication(dtype, n, target)
    try:
        return 2.0 * n**3 / _best_seconds(timer, multiply)
    except (RuntimeError, NotImplementedError, ValueError):
        return None


def _multiplication(dtype: str, n: int, target: str) -> Callable[[], Any]:
    kind = getattr(torch, dtype)
    a, b = (torch.randn(n, n, device=target).to(kind) for _ in range(2))
    if kind.itemsize > 1:
        return lambda: a @ b
    one = torch.ones((), device=target)
    return lambda: torch._scaled_mm(a, b.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _best_seconds(timer: Timer, call: Callable[[], Any]) -> float:
    for _ in range(WARM):
        call()
    timer.start()
    for token in range(SAMPLES):
        timer.prepare()
        timer.time(token, call)
    timings = timer.finish()
    if timings.problems:
        raise ValueError(timings.problems[0][1].detail)
    return min(m.ns for m in timings.calls.values()) / 1e9
