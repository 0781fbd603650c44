"""The parent's side of a measuring process: start it, give it jobs, validate what comes back, kill it if it
hangs."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO

from pydantic import ValidationError

from tileops_bench.errors import ProtocolError, TimerUnavailableError, UsageError
from tileops_bench.protocol import REPLY, BulkBegin, BulkEnd, Failure, Phase, Ready
from tileops_bench.records import Record
from tileops_bench.verdict import Bulk

START_TIMEOUT_S = 120.0
ENDING_S = 5.0
MAX_MESSAGE = 64 << 20


class ChildDied(Exception):
    """The measuring process crashed, hung or broke the protocol.

    Attributes:
        phase: what it was doing.
        contender: whose code was running, or an empty string where it cannot be known.
        reason: how it ended, with the end of its log.
    """

    def __init__(self, phase: str, contender: str, reason: str) -> None:
        super().__init__(f"while in {phase}{f' of {contender}' if contender else ''}: {reason}")
        self.phase, self.contender, self.reason = phase, contender, reason


@dataclass(frozen=True)
class Answer:
    """The last message of a job, and the parent's own timing of the bulk calls if there were any."""

    reply: Record
    bulk: Bulk | None


class ChildSession:
    """A measuring process that serves one job after the other.

    Args:
        target: cpu or cuda: the device that its ready message describes.
        cpus: CPUs to pin it to; empty for no pinning.
        environment: variables on top of the parent's.
        on_phase: called with each phase, for progress displays.

    Raises:
        ChildDied: it does not come up.
    """

    def __init__(
        self,
        target: str,
        cpus: tuple[int, ...] = (),
        environment: Mapping[str, str] | None = None,
        on_phase: Callable[[Phase], None] | None = None,
        module: str = "tileops_bench.child",
    ) -> None:
        self._on_phase = on_phase or (lambda _: None)
        self._phase = Phase(name="start")
        self._buffer = b""
        self._closed = False
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the session
        child_in, self._to_child = os.pipe()
        self._from_child, child_out = os.pipe()
        threads = str(len(cpus) or len(os.sched_getaffinity(0)))
        env = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(child_in), str(child_out), ",".join(map(str, cpus)), target],
            pass_fds=(child_in, child_out), env=env, stdin=subprocess.DEVNULL, stdout=self._log,
            stderr=self._log, start_new_session=True,
        )  # fmt: skip
        os.close(child_in)
        os.close(child_out)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._from_child, selectors.EVENT_READ)
        try:
            self.ready = self._first_message()
        except BaseException:  # an interrupt while it starts must not leave it behind
            self.close()
            raise

    def _first_message(self) -> Ready:
        ready = self._receive(time.monotonic() + START_TIMEOUT_S)
        if not isinstance(ready, Ready):
            raise ChildDied("start", "", f"expected a ready message, got {type(ready).__name__}")
        return ready

    def ask(self, job: Record, timeout_s: float) -> Answer:
        """Give a job and wait for its answer.

        Raises:
            ChildDied: crash, hang or broken protocol; the process is gone afterwards.
            TimerUnavailableError, UsageError, ProtocolError: the child refuses the job.
        """
        self._phase = Phase(name="job")
        try:
            os.write(self._to_child, (job.model_dump_json() + "\n").encode())
        except BrokenPipeError as error:
            raise self._death("the process is gone") from error
        deadline = time.monotonic() + timeout_s
        bulk, begun, calls = None, 0, 0
        while True:
            message = self._receive(deadline)
            now = time.perf_counter_ns()
            match message:
                case Phase():
                    self._phase = message
                    self._on_phase(message)
                case BulkBegin():
                    begun, calls = now, message.calls
                case BulkEnd():
                    bulk = Bulk(calls=max(1, calls), total_ns=now - begun)
                case Failure():
                    raise _REFUSALS[message.kind](message.detail)
                case _:
                    return Answer(message, bulk)

    def _receive(self, deadline: float) -> Record:
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not self._selector.select(remaining):
                raise self._death("no answer in time")
            chunk = os.read(self._from_child, 1 << 16)
            if not chunk:
                # Its pipe is closed before it is gone: without waiting, it would be said to be killed by us.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(ENDING_S)
                raise self._death("the process ended")
            self._buffer += chunk
            if len(self._buffer) > MAX_MESSAGE:
                raise self._death(f"a message longer than {MAX_MESSAGE} bytes")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            return REPLY.validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            raise self._death(f"a message that the protocol does not allow: {first['msg']}") from error

    def _death(self, reason: str) -> ChildDied:
        self.close()
        how = _ending(self._process.returncode)
        return ChildDied(self._phase.name, self._phase.contender, f"{reason} ({how}){self._log_tail()}")

    def _log_tail(self, size: int = 400) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - size))
        text = " | ".join(self._log.read().decode(errors="replace").split("\n")[-4:]).strip(" |")
        return f"; its log ends: {text}" if text else ""

    def close(self) -> None:
        """End the process and everything that it started. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        if self._process.poll() is None:
            self._stop_group()
        self._process.wait()
        self._selector.close()
        os.close(self._to_child)
        os.close(self._from_child)

    def _stop_group(self) -> None:
        """The child leads its own process group, so compilers and the like that it started go with it."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self._process.kill()

    def __enter__(self) -> ChildSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ending(code: int) -> str:
    """How a process ended, from its return code.

    >>> _ending(-9), _ending(3)
    ('signal SIGKILL', 'exit code 3')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no name
        return f"signal {-code}"


_REFUSALS: dict[str, type[Exception]] = {
    "usage": UsageError,
    "timer": TimerUnavailableError,
    "error": ProtocolError,
}
