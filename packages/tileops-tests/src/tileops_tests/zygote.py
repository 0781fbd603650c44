"""The process that workers are forked from: confined first, then torch is imported in it once for all ops.

Importing torch and a compiler takes seconds, a fork takes milliseconds; every op still gets a process of
its own.
"""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from tileops_tests.errors import WorkerStartError
from tileops_tests.limits import Limits
from tileops_tests.sandbox import Sandbox


class Zygote:
    """Starts workers in a sandbox. A context manager; safe to share between threads. `preload`: modules that
    are imported once, for all workers, unless the candidate is a foreign one.

    Raises:
        WorkerStartError: the interpreter or torch cannot be started inside the sandbox.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        limits: Limits,
        *,
        threads: int = 1,
        preload: Sequence[str] = ("tileops_kernels.ops",),
    ) -> None:
        self.sandbox, self.limits, self._preload = sandbox, limits, preload
        self._lock = Lock()
        scratch = sandbox.scratch()
        self._log = scratch / "output.txt"
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        command = [sys.executable, "-I", "-S", "-X", "faulthandler", str(sandbox.boot / "main.py")]
        command += ["--socket", str(theirs.fileno()), "--view", str(sandbox.view)]
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=scratch,
                    start_new_session=True,
                    env=sandbox.environment(scratch, threads), pass_fds=[theirs.fileno()],
                )  # fmt: skip
        except OSError as error:
            mine.close()
            raise WorkerStartError(f"cannot start {sys.executable}: {error}") from error
        finally:
            theirs.close()
        self._socket = mine
        try:
            self.confinement: dict[str, Any] = self._start()
        except BaseException:  # an interrupt while it starts must not leave it behind
            self.close()
            raise

    def _start(self) -> dict[str, Any]:
        message = {
            "isolate": True,
            "limits": {"RLIMIT_CORE": 0},
            "paths": self.sandbox.compile_paths(self.sandbox.root),
            "preload": list(self._preload) if self.sandbox.candidate is None else [],
        }
        return self._ask(message)["confinement"]

    def fork(self, scratch: Path, connection: int, log: int) -> int:
        """Start a worker that talks over `connection`; returns its process id."""
        return int(self._ask({"do": "fork", "scratch": str(scratch)}, [connection, log])["pid"])

    def exit_status(self, pid: int) -> int | None:
        """How a worker ended (negative: by that signal); None while it runs. An answer is given once."""
        return self._ask({"do": "wait", "pid": pid})["status"]

    def _ask(self, message: dict[str, Any], fds: list[int] | None = None) -> dict[str, Any]:
        with self._lock:
            try:
                socket.send_fds(self._socket, [json.dumps(message).encode() + b"\n"], fds or [])
                return json.loads(self._receive(time.monotonic() + self.limits.start_seconds))
            except (OSError, ValueError) as error:
                raise WorkerStartError(
                    f"workers cannot be started: {error}; last output: {self._tail()}"
                ) from error

    def _receive(self, deadline: float) -> bytes:
        data = b""
        while not data.endswith(b"\n"):
            if not select.select([self._socket], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise OSError(f"no answer within {self.limits.start_seconds:g} s")
            chunk = self._socket.recv(1 << 16)
            if not chunk:
                raise OSError("the process ended")
            data += chunk
        return data

    def _tail(self) -> str:
        try:
            return self._log.read_text(errors="replace")[-800:].strip() or "(none)"
        except OSError:
            return "(unreadable)"

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
