"""Measuring one kernel class under several configs on one row, inside the measuring process.

A config is put in place by replacing the class's `default_config` while a flow prepares its closure; the
closures are then timed beside each other like any contenders. Nothing is written to the kernels package.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tileops_bench.errors import UsageError
from tileops_bench.measure import Emit, Lane, RowMeasurement, synchronize_device
from tileops_bench.protocol import ConfigJob, ConfigTimes, Phase, RowJob, Spec
from tileops_bench.rowinputs import InputPool
from tileops_bench.timers import Timer


@contextmanager
def replaced_choice(kernel: type, choose: Callable[..., Any]) -> Iterator[None]:
    """Let `choose(**sizes)` pick a kernel class's default config for as long as the context lasts."""
    own = kernel.__dict__.get("default_config")
    kernel.default_config = staticmethod(choose)
    try:
        yield
    finally:
        if own is None:
            del kernel.default_config
        else:
            kernel.default_config = own


def default_choice(kernel: type, prepare: Callable[[], Any]) -> Any | None:
    """The config that a kernel class chooses by itself while `prepare` runs; None where it is not asked."""
    seen: list[Any] = []
    choose = kernel.default_config

    def watch(**sizes: Any) -> Any:
        seen.append(choose(**sizes))
        return seen[-1]

    with replaced_choice(kernel, watch):
        prepare()
    return seen[0] if seen else None


def neighbours(config: Any) -> Iterator[Any]:
    """Configs that differ in one field: numbers doubled and halved, switches turned.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     block: int
    ...     swap: bool
    >>> [(c.block, c.swap) for c in neighbours(Config(4, False))]
    [(8, False), (2, False), (4, True)]
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, bool):
            yield dataclasses.replace(config, **{field.name: not value})
        elif isinstance(value, int) and value > 0:
            yield dataclasses.replace(config, **{field.name: value * 2})
            if value > 1:
                yield dataclasses.replace(config, **{field.name: value // 2})


def candidates(kernel: Any, default: Any, limit: int) -> list[Any]:
    """The default, every config of the kernel's table, then neighbours of all of these, without repeats."""
    known = [default, *(c for buckets in kernel.CONFIGS.devices.values() for _, c in buckets)]
    near = [n for config in dict.fromkeys(known) for n in neighbours(config)]
    return list(dict.fromkeys((*known, *near)))[:limit]


def measure_configs(job: ConfigJob, pool: InputPool, binding: Any, timer: Timer, emit: Emit) -> ConfigTimes:
    """Time every candidate config of a kernel on one row.

    Raises:
        UsageError: the op has no flow, or the row does not use the kernel.
    """
    from tileops_kernels.kernels import get_kernel
    from tileops_kernels.ops.registry import FLOWS

    flow, kernel = FLOWS.get(job.op), get_kernel(job.kernel)
    if flow is None:
        raise UsageError(f"{job.op} has no kernels to tune")
    inputs = pool.arguments(0)
    default = default_choice(kernel, lambda: flow.prepare(binding, inputs))
    if default is None:
        raise UsageError(f"{job.op} does not use {job.kernel} for row {job.label!r}")
    configs = candidates(kernel, default, job.limit)
    lanes = [Lane(Spec(name=f"config-{i}", ref=job.kernel, role="baseline")) for i in range(len(configs))]
    for lane, config in zip(lanes, configs, strict=True):
        emit(Phase(name="compile", contender=lane.spec.name))
        try:
            with replaced_choice(kernel, partial(_same, config)):
                lane.call = flow.prepare(binding, inputs)
        except Exception as error:  # noqa: BLE001  a config may be impossible in any way
            lane.stop(error)
    raw = RowMeasurement(_row_job(job, lanes), lanes, pool, timer, emit, _synchronizer(job.target)).run()
    return ConfigTimes(
        configs=tuple(dataclasses.asdict(config) for config in configs),
        samples=tuple(r.samples for r in raw),
        errors=tuple(r.detail or "; ".join(p.code.value for p in r.problems) for r in raw),
    )


def _same(config: Any, **sizes: Any) -> Any:
    return config


def _row_job(job: ConfigJob, lanes: list[Lane]) -> RowJob:
    return RowJob(
        op=job.op, label=job.label, dtypes=job.dtypes, scale=job.scale, target=job.target, timer=job.timer,
        contenders=tuple(lane.spec for lane in lanes), budget_s=job.budget_s, bulk=False,
    )  # fmt: skip


def _synchronizer(target: str) -> Any:
    return synchronize_device if target == "cuda" else (lambda: None)
