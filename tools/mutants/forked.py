"""Work in a process of its own, forked from a warm one: what it breaks, it breaks for itself alone."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any


def in_fork(work: Callable[[], Any], timeout: float) -> dict[str, Any]:
    """`{"value": what `work` returned}` (as JSON), or `{"ended": how it ended without returning}`.

    What it prints is dropped. It and all that it started are gone when this returns.

    >>> in_fork(lambda: 1 + 1, timeout=10.0)
    {'value': 2}
    >>> in_fork(lambda: os.kill(os.getpid(), signal.SIGSEGV), timeout=10.0)
    {'ended': 'signal 11'}
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _child(work, reader, writer)
    os.close(writer)
    try:
        data = _read(reader, time.monotonic() + timeout)
    finally:
        os.close(reader)
        for end in (os.killpg, os.kill):  # before `setsid` it has no group of its own
            with contextlib.suppress(ProcessLookupError):
                end(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if data is None:
        return {"ended": f"no end within {timeout:.0f} s"}
    with contextlib.suppress(ValueError):
        return json.loads(data)
    return {"ended": f"signal {-status}" if status < 0 else f"exit status {status}"}


def _child(work: Callable[[], Any], reader: int, writer: int) -> None:
    os.close(reader)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    try:
        answer = {"value": work()}
    except BaseException as error:  # noqa: BLE001 - whatever ends it is the answer
        frame = traceback.extract_tb(error.__traceback__)[-1]
        answer = {"ended": f"{type(error).__name__}: {error} ({frame.name})"[:300]}
    with os.fdopen(writer, "wb") as file:
        file.write(json.dumps(answer).encode())
    os._exit(0)


def _read(reader: int, deadline: float) -> bytes | None:
    """All that comes until the other end is closed; None if that takes too long."""
    data = b""
    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            return data
        data += chunk
    return None
