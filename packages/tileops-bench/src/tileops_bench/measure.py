"""Timing contenders beside each other on one row, inside the measuring process.

Nothing here judges: raw samples, fingerprints and observations go to the parent.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tileops_bench.baselines import UnsupportedCase
from tileops_bench.fingerprint import fingerprints
from tileops_bench.memory import peak_extra_bytes
from tileops_bench.protocol import BulkBegin, BulkEnd, Kept, Phase, RawContender, RowJob, Spec
from tileops_bench.records import Code, Problem, Record, Status
from tileops_bench.rowinputs import InputPool
from tileops_bench.timers import Timer, Timings

WARM_CALLS = (2, 20)
WARM_NS = 30_000_000
HOST_CALLS = 15
KEPT_CALLS = 3
MOST_NAMES = 64
BULK_NS = 50_000_000
BULK_CALLS = (3, 200)

Emit = Callable[[Record], None]
# Bound before any candidate is imported: a name that it replaces later is not the one that is used.
_clock = time.perf_counter_ns
synchronize_device = torch.cuda.synchronize


@dataclass
class Lane:
    """One contender while it is measured."""

    spec: Spec
    call: Callable[..., Any] | None = None
    status: Status = Status.OK
    detail: str = ""
    first_call_ns: int | None = None
    per_call_ns: int = 0
    peak_bytes: int | None = None
    host: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    to_keep: int = 0
    outputs: list[Kept] = field(default_factory=list)
    far_output: str | None = None
    problems: list[Problem] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Still worth calling."""
        return self.status is Status.OK

    def stop(self, error: BaseException) -> None:
        """Take the contender out, with the reason."""
        self.status = Status.UNSUPPORTED if isinstance(error, UnsupportedCase) else Status.FAILED
        place = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
        where = f" ({place.filename.rsplit('/', 1)[-1]}:{place.lineno})" if place else ""
        self.detail = f"{type(error).__name__}: {_first_lines(_text(error))}{where}"


def _text(error: BaseException) -> str:
    """An error's message, whatever its class makes of it, with nothing that a file or terminal does not
    take."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001  a contender's class may raise anything
        text = f"(its message cannot be had: {type(second).__name__})"
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def _first_lines(text: str, limit: int = 400) -> str:
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())[:limit]


def order_of_round(lanes: Sequence[Lane], index: int) -> list[Lane]:
    """Rotate the starting contender each round and reverse every second turn, so that neighbours change too.

    >>> [order_of_round("abc", i) for i in range(4)]
    [['a', 'b', 'c'], ['b', 'c', 'a'], ['c', 'a', 'b'], ['c', 'b', 'a']]
    """
    count = len(lanes)
    turned = [lanes[(index + k) % count] for k in range(count)]
    return turned[::-1] if (index // count) % 2 else turned


class RowMeasurement:
    """Measures the contenders of one job.

    Args:
        job: what to measure.
        lanes: resolved contenders.
        pool: inputs.
        timer: how to time.
        emit: where messages to the parent go.
        synchronize: waits for the device.
    """

    def __init__(
        self, job: RowJob, lanes: list[Lane], pool: InputPool, timer: Timer, emit: Emit,
        synchronize: Callable[[], None],
    ) -> None:  # fmt: skip
        self.job, self.lanes, self.pool = job, lanes, pool
        self.timer, self.emit, self.synchronize = timer, emit, synchronize
        self.problems: list[Problem] = []

    def run(self) -> list[RawContender]:
        """Warm up, measure host time and memory, then time call by call."""
        for lane in self.lanes:
            self._guard(lane, "warm", self._warm)
        for lane in self._alive():
            self._guard(lane, "host", self._host_and_memory)
        timings = self._interleave() if self._alive() else Timings({})
        for lane in self._alive():
            if lane.spec.role == "candidate" and self.job.bulk:
                self._guard(lane, "bulk", self._bulk)
        for lane in self._alive():
            if len({kept.timed for kept in lane.outputs}) == 1:
                self._far(lane)
        self._check_all_slots()
        self.problems.extend(problem for token, problem in timings.problems if token is None)
        return [self._raw(lane, timings) for lane in self.lanes]

    def _alive(self) -> list[Lane]:
        return [lane for lane in self.lanes if lane.alive]

    def _guard(self, lane: Lane, phase: str, step: Callable[[Lane], None]) -> None:
        """Run a step of one contender; whatever it raises is its own failure and nobody else's."""
        if not lane.alive:
            return
        self.emit(Phase(name=phase, contender=lane.spec.name))
        try:
            step(lane)
        except Exception as error:  # noqa: BLE001  a contender may raise anything
            lane.stop(error)

    def _warm(self, lane: Lane) -> None:
        arguments = self.pool.arguments(0)
        lane.first_call_ns = self._timed(lane, arguments)
        spent, calls = 0, 0
        fewest, most = WARM_CALLS
        while calls < fewest or (calls < most and spent < WARM_NS):
            lane.per_call_ns = self._timed(lane, self.pool.arguments(calls % len(self.pool.slots)))
            spent += lane.per_call_ns
            calls += 1
        for slot in range(len(self.pool.slots)):
            self._check_inputs(lane, slot)

    def _check_inputs(self, lane: Lane, slot: int) -> None:
        """A contender that writes to its inputs is out: it would spoil them for the others."""
        problem = self.pool.check(slot)
        if problem and lane.alive:
            lane.problems.append(problem)
            lane.status, lane.detail = Status.FAILED, problem.detail

    def _timed(self, lane: Lane, arguments: list[Any]) -> int:
        begin = _clock()
        lane.call(*arguments)
        self.synchronize()
        return _clock() - begin

    def _host_and_memory(self, lane: Lane) -> None:
        arguments = self.pool.arguments(0)
        lane.peak_bytes = peak_extra_bytes(lambda: lane.call(*arguments), self.job.target)
        if self.job.target == "cpu":
            return  # on the CPU the call is the work: there is no separate host time
        for _ in range(HOST_CALLS):
            self.synchronize()
            begin = _clock()
            lane.call(*arguments)
            lane.host.append(_clock() - begin)
        self.synchronize()

    def _rounds(self) -> int:
        """How many rounds fit in the budget, within the job's limits."""
        per_round = sum(lane.per_call_ns for lane in self._alive()) + len(self._alive()) * self._cold_cost()
        fitting = int(self.job.budget_s * 1e9 / max(1, per_round))
        return max(self.job.min_samples, min(self.job.max_samples, fitting))

    def _cold_cost(self) -> int:
        begin = _clock()
        self.timer.prepare()
        return _clock() - begin

    def _interleave(self) -> Timings:
        rounds = self._rounds()
        for lane in self._alive():
            lane.to_keep = min(KEPT_CALLS, rounds)
        self.emit(Phase(name="measure"))
        self.timer.start()
        token = 0
        for index in range(rounds):
            for place, lane in enumerate(order_of_round(self.lanes, index)):
                if lane.alive:
                    slot = (index + place) % len(self.pool.slots)
                    self._one(lane, token, slot, rounds - index)
                    token += 1
        return self.timer.finish()

    def _one(self, lane: Lane, token: int, slot: int, rounds_left: int) -> None:
        self.pool.stir(slot)
        arguments = self.pool.arguments(slot)
        self.timer.prepare()
        try:
            result = self.timer.time(token, lambda: lane.call(*arguments))
            lane.tokens.append(token)
            # Drawn after the call: nothing that the call could have looked at knows whether it is kept.
            if random.SystemRandom().randrange(rounds_left) < lane.to_keep:
                lane.to_keep -= 1
                self._keep(lane, slot, result)
            else:
                self.pool.settle()
        except Exception as error:  # noqa: BLE001  a contender may raise anything
            self.pool.settle()
            lane.stop(error)

    def _keep(self, lane: Lane, slot: int, result: Any) -> None:
        """Snapshot a timed call's output at once, then make the same call untimed on copies elsewhere."""
        timed = fingerprints(_outputs(result))
        copies = self.pool.fresh_copy(slot)
        self.pool.settle()
        self._check_inputs(lane, slot)
        given = fingerprints(copies)
        untimed = fingerprints(_outputs(lane.call(*copies)))
        lane.outputs.append(Kept(inputs=given, timed=timed, untimed=untimed))

    def _far(self, lane: Lane) -> None:
        """Call with half of every floating input. Other values of the same distribution need not show in a
        sum over a whole tensor, which a 16-bit output holds to two or three digits; half of them must.
        """
        halves = [_half(tensor) for tensor in self.pool.fresh_copy(0)]
        try:
            lane.far_output = fingerprints(_outputs(lane.call(*halves)))
        except Exception:  # noqa: BLE001  halves may be no legal values: then nothing is known
            return

    def _bulk(self, lane: Lane) -> None:
        fewest, most = BULK_CALLS
        calls = max(fewest, min(most, BULK_NS // max(1, lane.per_call_ns)))
        sets = [self.pool.arguments(slot) for slot in range(len(self.pool.slots))]
        self.synchronize()
        self.emit(BulkBegin(calls=calls))
        for index in range(calls):
            lane.call(*sets[index % len(sets)])
        self.synchronize()
        self.emit(BulkEnd())

    def _check_all_slots(self) -> None:
        for names in (*map(self.pool.changed, range(len(self.pool.slots))), self.pool.spare_changed()):
            if names:
                detail = (
                    f"{', '.join(names)} changed during the timed calls; which contender did it is not known"
                )
                self.problems.append(Problem(code=Code.INPUT_CHANGED, detail=detail))

    def _raw(self, lane: Lane, timings: Timings) -> RawContender:
        calls = [timings.calls[t] for t in lane.tokens if t in timings.calls]
        own = set(lane.tokens)
        problems = lane.problems + _merged([p for token, p in timings.problems if token in own])
        kernels = [c.kernels for c in calls if c.kernels is not None]
        return RawContender(
            name=lane.spec.name,
            status=lane.status,
            detail=lane.detail,
            samples=tuple(c.ns for c in calls),
            spans=tuple(c.span_ns for c in calls if c.span_ns is not None),
            host=tuple(lane.host),
            kernel_names=tuple(sorted({name for c in calls for name in c.names}))[:MOST_NAMES],
            kernels_per_call=(min(kernels), max(kernels)) if kernels else None,
            first_call_ns=lane.first_call_ns,
            peak_bytes=lane.peak_bytes,
            outputs=tuple(lane.outputs),
            far_output=lane.far_output,
            problems=tuple(problems),
        )


def _half(tensor: torch.Tensor | None) -> torch.Tensor | None:
    if tensor is None or not tensor.is_floating_point():
        return tensor
    return (tensor.float() / 2).to(tensor.dtype) if tensor.itemsize == 1 else tensor / 2


def _merged(problems: list[Problem]) -> list[Problem]:
    """One problem per code, with a count."""
    return [
        Problem(code=code, detail=f"{next(p.detail for p in problems if p.code is code)} ({count} times)")
        for code in dict.fromkeys(p.code for p in problems)
        if (count := sum(p.code is code for p in problems))
    ]


def _outputs(result: Any) -> list[torch.Tensor]:
    """The output tensors of a call. Only plain tensors count: a lazy stand-in has not done the work."""
    items = list(result) if isinstance(result, (tuple, list)) else [result]
    for item in items:
        if type(item) is not torch.Tensor:
            raise TypeError(f"returned {type(item).__name__}, expected torch.Tensor or a tuple of them")
    return items
