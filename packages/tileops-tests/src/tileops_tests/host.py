"""The parent's side of a worker: start, ask, watch, end.

Time and memory are watched from here, by clock and by `/proc`, since a limit that the candidate's process
enforces on itself is one it can lift. Whatever ends a worker becomes a `WorkerFailure` with a reason code:
never a skip.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from tileops_tests.codes import ReasonCode
from tileops_tests.errors import WorkerStartError
from tileops_tests.limits import Limits
from tileops_tests.zygote import Zygote

_POLL_SECONDS = 0.05
_MAX_ANSWER = 1 << 22


class WorkerFailure(Exception):
    """The worker died, hung, outgrew its memory or broke the protocol; it has been ended."""

    def __init__(self, code: ReasonCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Worker:
    """One confined process. `ask` sends a request and returns its answer; a context manager that always ends
    it.
    """

    def __init__(
        self, zygote: Zygote, limits: Limits, *, threads: int = 1, cancel: Event | None = None
    ) -> None:
        self.zygote, self.sandbox, self.limits, self.threads = zygote, zygote.sandbox, limits, threads
        self._cancel = cancel
        self.scratch = self.sandbox.scratch()
        self._log = self.scratch / "output.txt"
        self._ended: int | None = None
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._log.open("wb") as log:
                self.pid = zygote.fork(self.scratch, theirs.fileno(), log.fileno())
        except OSError as error:
            mine.close()
            raise WorkerStartError(f"cannot start a worker: {error}") from error
        finally:
            theirs.close()
        self._socket = mine
        self.confinement: dict[str, Any] = {}
        self.details: dict[str, Any] = {}
        self._start()

    def _start(self) -> None:
        limits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": self.limits.file_bytes,
            "RLIMIT_NPROC": self.limits.processes,
        }
        if self.sandbox.target == "cpu":
            limits["RLIMIT_DATA"] = self.limits.memory_bytes
        first = {
            "limits": limits,
            "paths": self.sandbox.compile_paths(self.scratch),
            "threads": self.threads,
            "target": self.sandbox.target,
        }
        try:
            answer = self.ask(first, timeout=self.limits.start_seconds)
        except WorkerFailure as failure:
            raise WorkerStartError(f"the worker did not start: {failure.message}") from failure
        if not answer["ok"]:
            self.close()
            raise WorkerStartError(f"the worker did not start: {answer.get('message')}")
        self.confinement = {**self.zygote.confinement, **answer["confinement"]}
        self.details = answer["details"]

    def lock(self) -> None:
        """Enter the run phase: from here on nothing can be executed, only scratch can be written."""
        answer = self.ask(
            {"do": "lock", "paths": self.sandbox.run_paths(self.scratch)}, timeout=self.limits.run_seconds
        )
        held = answer.get("confinement", {}) if answer.get("ok") else {}
        self.confinement = {**self.confinement, "run_phase": held.get("landlock", "unavailable")}

    def ask(self, message: Mapping[str, Any], fds: Sequence[int] = (), *, timeout: float) -> dict[str, Any]:
        """One request, one answer.

        Raises:
            WorkerFailure: no valid answer within `timeout` seconds and the memory limit.
        """
        data = json.dumps(message).encode() + b"\n"
        try:
            if fds:
                sent = socket.send_fds(self._socket, [data], list(fds))
                data = data[sent:]
            self._socket.sendall(data)
        except OSError:
            self._fail_dead()
        return self._parse(self._receive(time.monotonic() + timeout, timeout))

    def _receive(self, deadline: float, timeout: float) -> bytes:
        data = b""
        while not data.endswith(b"\n"):
            readable, _, _ = select.select([self._socket], [], [], _POLL_SECONDS)
            if readable:
                try:
                    chunk = self._socket.recv(1 << 16)
                except OSError:
                    chunk = b""
                if not chunk:
                    self._fail_dead()
                data += chunk
                if len(data) > _MAX_ANSWER:
                    self._fail(ReasonCode.PROTOCOL_ERROR, "the worker's answer is longer than 4 MiB")
                continue
            if self._cancel is not None and self._cancel.is_set():
                self.close()
                raise KeyboardInterrupt
            if time.monotonic() > deadline:
                self._fail(ReasonCode.TIMEOUT, f"no answer within {timeout:g} s")
            if (used := resident_bytes(self.pid)) > self.limits.memory_bytes:
                self._fail(
                    ReasonCode.OUT_OF_MEMORY,
                    f"{used >> 20} MiB resident, limit {self.limits.memory_bytes >> 20} MiB",
                )
        return data

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            answer = writable(json.loads(data))
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
            self._fail(ReasonCode.PROTOCOL_ERROR, f"the worker answered {data[:200]!r}")
        return answer

    def _fail_dead(self) -> None:
        """The other end is gone: report how the process ended."""
        status = self._exit_status(timeout=5.0)
        if status is None:
            self._fail(ReasonCode.PROTOCOL_ERROR, "the worker closed its socket and lives on")
        if status == -signal.SIGKILL and self.sandbox.target == "cpu":
            self._fail(
                ReasonCode.OUT_OF_MEMORY,
                "the worker was killed (SIGKILL), as the system does when memory is short",
            )
        self._fail(
            ReasonCode.CRASH, f"the worker ended with {ending(status)}; its last output: {self._tail()}"
        )

    def _fail(self, code: ReasonCode, message: str) -> None:
        self.close()
        raise WorkerFailure(code, message)

    def _tail(self) -> str:
        try:
            return self._log.read_text(errors="replace")[-600:].strip() or "(none)"
        except OSError:
            return "(unreadable)"

    def close(self) -> None:
        """End the process and everything in its session."""
        self._socket.close()
        if self._exit_status(timeout=0.0) is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            # Between the fork and `setsid` the process has no group of its own yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._exit_status(timeout=5.0)

    def _exit_status(self, timeout: float) -> int | None:
        """How the process ended, None if it has not within `timeout` seconds. Until it is asked for, the id
        stays taken.
        """
        deadline = time.monotonic() + timeout
        while self._ended is None:
            self._ended = self.zygote.exit_status(self.pid)
            if self._ended is not None or time.monotonic() >= deadline:
                break
            time.sleep(0.005)
        return self._ended

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def writable(value: Any) -> Any:
    """JSON data with texts that every file and terminal takes: half surrogates and control characters, which
    an error message of a candidate may hold, become question marks.

    >>> writable({"message": "a\\udcff b\\x1b[31m"})
    {'message': 'a? b?[31m'}
    """
    if isinstance(value, str):
        return "".join(c if c.isprintable() or c in "\n\t " else "?" for c in value)
    if isinstance(value, list):
        return [writable(item) for item in value]
    if isinstance(value, dict):
        return {writable(key): writable(item) for key, item in value.items()}
    return value


def ending(status: int) -> str:
    """How a process ended, in words: negative is a signal.

    >>> ending(-11), ending(-40), ending(3)
    ('signal SIGSEGV', 'signal 40', 'exit status 3')
    """
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:  # real-time signals have no name
        return f"signal {-status}"


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
