"""Candidates that find out what a worker can do; an answer comes back as the message of an error."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import socket
import subprocess
import sys

from softmax import right


class Answer(Exception):
    """Carries what was found out."""


def attempt(action) -> bool:
    try:
        action()
    except (OSError, ImportError, subprocess.SubprocessError):
        return False
    return True


def imports(parent):
    names = ("tileops_tests", "tileops_workloads", "tileops_bench", "tileops_manifest", "torch")
    raise Answer(
        json.dumps({name: attempt(lambda name=name: importlib.import_module(name)) for name in names})
    )


def search_path(parent):
    raise Answer(json.dumps({"path": sys.path}))


def abilities(parent):
    judge = os.path.join(os.path.dirname(__file__), "..", "..", "src", "tileops_tests", "judge.py")
    raise Answer(
        json.dumps(
            {
                "execute": attempt(lambda: subprocess.run(["/bin/true"], check=True)),
                "write_home": attempt(lambda: open("/tmp/tileops-probe", "w").close()),
                "read_judge": attempt(lambda: open(judge).close()),
                "read_parent_memory": attempt(lambda: open(f"/proc/{parent}/mem", "rb").close()),
                "signal_parent": attempt(lambda: os.kill(parent, 0)),
                "connect": attempt(lambda: socket.create_connection(("1.1.1.1", 80), timeout=1)),
            }
        )
    )


def forges_an_answer(**params):
    for fd in range(3, 64):
        try:
            channel = socket.socket(fileno=os.dup(fd))
            channel.sendall(b"all is well\n")
        except OSError:
            continue


def forges_an_output(x, *, dim=None):
    """Answers in the worker's place, with an output that lacks what the judge reads."""
    for fd in range(3, 64):
        try:
            channel = socket.socket(fileno=os.dup(fd))
            channel.sendall(b'{"ok": true, "outputs": [{"type": "torch.Tensor", "offset": null}]}\n')
        except OSError:
            continue
    return right(x, dim=dim)


def says_what_no_file_takes(x, *, dim=None):
    raise ValueError("half a surrogate \udcff and a colour \x1b[31m")


def sparse_output(x, *, dim=None):
    return right(x, dim=dim).to_sparse()


def starts_a_child(**params):
    child = subprocess.Popen(["/bin/sleep", "600"])
    raise Answer(str(child.pid))


def crashes_on_float16(x, *, dim=None):
    if x.element_size() == 2 and "float16" in str(x.dtype) and "bfloat16" not in str(x.dtype):
        ctypes.string_at(8)
    return right(x, dim=dim)
