"""The measuring process: `python -m tileops_bench.child IN_FD OUT_FD CPUS TARGET`.

It runs candidates and baselines and sends raw samples; it computes no statistic and no verdict. What
candidates print goes to the log, since messages have a pipe of their own.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

from pydantic import ValidationError

from tileops_bench.errors import BenchError, TimerUnavailableError
from tileops_bench.protocol import (
    JOB,
    ConfigJob,
    Failure,
    Measured,
    Phase,
    Prepared,
    PrepareJob,
    RatesJob,
    Ready,
    RowJob,
)
from tileops_bench.records import Record

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve jobs until the parent closes the pipe."""
    read_fd, write_fd, cpus, target = int(arguments[0]), int(arguments[1]), arguments[2], arguments[3]
    _die_with_parent()
    if cpus:
        os.sched_setaffinity(0, {int(c) for c in cpus.split(",")})
    with os.fdopen(read_fd, "r") as requests, os.fdopen(write_fd, "w") as replies:
        emit = _emitter(replies)
        emit(_ready(target))
        for line in requests:
            emit(_answer(line, emit))
    return 0


def _die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, however that happens; a candidate may hang for
    ever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _emitter(stream: TextIO) -> Callable[[Record], None]:
    def emit(record: Record) -> None:
        stream.write(record.model_dump_json() + "\n")
        stream.flush()

    return emit


def _ready(target: str) -> Ready:
    import torch

    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    affinity = tuple(sorted(os.sched_getaffinity(0)))
    if target == "cuda" and torch.cuda.is_available():
        from tileops_bench.timers.device import l2_bytes

        return Ready(
            device=torch.cuda.get_device_name(), threads=threads, affinity=affinity, l2_bytes=l2_bytes()
        )
    return Ready(device=cpu_name(), threads=threads, affinity=affinity)


def cpu_name() -> str:
    """Model name of the CPU as the kernel gives it."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _answer(line: str, emit: Callable[[Record], None]) -> Record:
    try:
        job = JOB.validate_json(line)
        return _HANDLERS[type(job)](job, emit)
    except TimerUnavailableError as error:
        return Failure(kind="timer", detail=str(error))
    except (BenchError, ValidationError, LookupError) as error:
        return Failure(kind="usage", detail=f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001  the parent must hear of anything that goes wrong
        return Failure(kind="error", detail=f"{type(error).__name__}: {error}")


def _measure_row(job: RowJob, emit: Callable[[Record], None]) -> Measured:
    from tileops_bench.measure import Lane, RowMeasurement, synchronize_device
    from tileops_bench.timers import make_timer

    timer = make_timer(job.timer, job.target, job.scrub_bytes)
    emit(Phase(name="inputs"))
    workload, pool = _inputs(job, job.seed)
    binding = workload.binding
    lanes = [Lane(spec) for spec in job.contenders]
    for lane in lanes:
        emit(Phase(name="prepare", contender=lane.spec.name))
        _prepare(lane, job, dict(workload.params), pool.slots[0])
    synchronize = synchronize_device if job.target == "cuda" else _nothing
    run = RowMeasurement(job, lanes, pool, timer, emit, synchronize)
    contenders = run.run()
    return Measured(
        timer=timer.name,
        flops=int(binding.flops),
        bytes=int(binding.bytes),
        bytes_written=sum(_bytes(meta) for meta in binding.outputs.values()),
        inputs={n: f"{m.dtype}{list(m.shape)}" for n, m in binding.inputs.items() if m is not None},
        params={name: _plain(value) for name, value in workload.params.items()},
        deterministic=workload.entry.numerics.determinism == "bitwise",
        contenders=tuple(contenders),
        problems=tuple(run.problems),
    )


def _nothing() -> None:
    """The CPU has no queue to wait for."""


def _workload(job: RowJob | ConfigJob, seed: int) -> Any:
    from tileops_manifest import load_manifest
    from tileops_workloads import make_workload

    entry = load_manifest(getattr(job, "manifest", None))[job.op]
    return make_workload(
        entry, entry.row(job.label), job.dtypes, seed=seed, device=job.target, scale=job.scale
    )


def _inputs(job: RowJob | ConfigJob, seed: int) -> tuple[Any, Any]:
    from tileops_bench.rowinputs import InputPool

    workload = _workload(job, seed)
    pool = InputPool(
        lambda offset: _workload(job, seed + offset).gen_inputs(),
        job.target,
        frozenset(workload.binding.mutated),
    )
    return workload, pool


def _bytes(meta: Any) -> int:
    import math

    from tileops_workloads import torch_dtype

    return math.prod(meta.shape) * torch_dtype(meta.dtype).itemsize


def _plain(value: Any) -> Any:
    """Params as JSON has them."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


def _prepare(lane: Any, job: RowJob, params: dict[str, Any], inputs: dict[str, Any]) -> None:
    from tileops_bench.baselines import Case
    from tileops_bench.resolve import resolve

    case = Case(job.op, params, inputs, job.target)
    try:
        lane.call = resolve(lane.spec.ref, case)
    except Exception as error:  # noqa: BLE001  a contender may raise anything
        lane.stop(error)


def _prepare_row(job: PrepareJob, emit: Callable[[Record], None]) -> Prepared:
    import torch

    from tileops_bench.measure import Lane

    workload = _workload(job.row, job.row.seed)
    inputs = workload.gen_inputs()
    lanes = [Lane(spec) for spec in job.row.contenders]
    for lane in lanes:
        emit(Phase(name="prepare", contender=lane.spec.name))
        _prepare(lane, job.row, dict(workload.params), inputs)
        try:
            if lane.alive:
                lane.call(*inputs.values())
        except Exception as error:  # noqa: BLE001  a contender may raise anything
            lane.stop(error)
    if job.row.target == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # its neighbours need the memory
    return Prepared(failures=tuple(f"{lane.spec.name}: {lane.detail}" for lane in lanes if not lane.alive))


def _measure_rates(job: RatesJob, emit: Callable[[Record], None]) -> Record:
    from tileops_bench.rates import measure_rates

    emit(Phase(name="rates"))
    return measure_rates(job)


def _measure_configs(job: ConfigJob, emit: Callable[[Record], None]) -> Record:
    from tileops_bench.configs import measure_configs
    from tileops_bench.timers import make_timer

    timer = make_timer(job.timer, job.target, job.scrub_bytes)
    emit(Phase(name="inputs"))
    workload, pool = _inputs(job, seed=0)
    return measure_configs(job, pool, workload.binding, timer, emit)


_HANDLERS: dict[type[Record], Callable[[Any, Callable[[Record], None]], Record]] = {
    RowJob: _measure_row,
    PrepareJob: _prepare_row,
    RatesJob: _measure_rates,
    ConfigJob: _measure_configs,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
