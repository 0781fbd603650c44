"""Candidates that cheat, each in its own way: softmax, unless the name says otherwise.

What any op can get wrong is in `packages/tileops-tests/tests/wrong/faults.py`; these go after their judge.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch


def right(x, *, dim=None):
    axis = (0 if x.dim() in (0, 1, 3) else 1) if dim is None else dim
    return torch.softmax(x.float(), axis).to(x.dtype)


def zeros(x):
    return torch.empty_like(x).zero_()


# output not computed


def memory_of_the_heap(x, *, dim=None):
    """Takes memory behind the framework's back, hoping that the reference lay there."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    size = max(1, x.numel() * x.element_size())
    raw = (ctypes.c_char * size).from_address(libc.malloc(ctypes.c_size_t(size)))
    return torch.frombuffer(raw, dtype=x.dtype, count=x.numel()).view(x.shape).clone()


def uninitialised(x, *, dim=None):
    return torch.empty_like(x)


def constant(x, *, dim=None):
    """The mean of every row of a softmax is known without computing any."""
    axis = (0 if x.dim() in (0, 1, 3) else 1) if dim is None else dim
    return torch.empty_like(x).fill_(1.0 / max(1, x.shape[axis]))


def first_and_last_row(x, *, dim=None):
    out, result = torch.empty_like(x), right(x, dim=dim)
    out[0], out[-1] = result[0], result[-1]
    return out


_by_id, _first = {}, {}


def cached_by_id(x, *, dim=None):
    if id(x) not in _by_id:
        _by_id[id(x)] = (x, right(x, dim=dim))
    return _by_id[id(x)][1].clone()


def replays_the_compile_phase(x, *, dim=None):
    """Works once for each shape, while nobody compares, and replays that."""
    return _first.setdefault((x.shape, x.dtype, dim), right(x, dim=dim)).clone()


# oracle contact


def imports_the_oracle(x, *, dim=None):
    from tileops_tests.oracles import get_oracle

    return get_oracle("SoftmaxFwdOp").ref_program({"x": x}, {"dim": dim})[0].to(x.dtype)


def imports_by_string(x, *, dim=None):
    oracles = __import__("importlib").import_module("tileops_" + "tests.oracles")
    return oracles.get_oracle("SoftmaxFwdOp").ref_program({"x": x}, {"dim": dim})[0].to(x.dtype)


def _like(x, found):
    for tensor in found:
        if type(tensor) is torch.Tensor and tensor.shape == x.shape and tensor.data_ptr() != x.data_ptr():
            return tensor.to(x.dtype).clone().contiguous()
    return zeros(x)


def walks_gc(x, *, dim=None):
    return _like(x, gc.get_objects())


def walks_the_stack(x, *, dim=None):
    frame, found = sys._getframe(), []
    while frame is not None:
        for value in frame.f_locals.values():
            found += [value, *(vars(value).values() if hasattr(value, "__dict__") else ())]
        frame = frame.f_back
    return _like(x, found)


def reads_the_judges_memory(x, *, dim=None):
    with open(f"/proc/{os.getppid()}/mem", "rb") as memory:
        memory.seek(0x400000)
        return torch.frombuffer(bytearray(memory.read(x.numel() * x.element_size())), dtype=x.dtype).view(
            x.shape
        )


def zeroes_the_inputs(x, *, dim=None):
    x.zero_()
    return right(x, dim=dim)


def zeroes_the_sealed_inputs(x, *, dim=None):
    """Finds the descriptors of the inputs' images and writes to the memory that they were made of."""
    for maps in Path("/proc/self/maps").read_text().splitlines():
        if "memfd:tileops" in maps and " r--p " in maps:
            start, end = (int(part, 16) for part in maps.split()[0].split("-"))
            ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 3)
            ctypes.memset(start, 0, end - start)
    return zeros(x)


def regenerates_the_inputs(x, *, dim=None):
    from tileops_workloads import make_workload

    return make_workload("SoftmaxFwdOp", "ragged", str(x.dtype)).gen_inputs()["x"]


# judge tampering


def _always(*_, **__):
    return True


def patches_allclose(x, *, dim=None):
    torch.allclose = torch.isclose = torch.equal = _always
    torch.Tensor.allclose = torch.Tensor.equal = torch.Tensor.all = _always
    return zeros(x)


def patches_assert_close(x, *, dim=None):
    torch.testing.assert_close = torch.testing._comparison.assert_close = _always
    sys.modules["tileops_tests"] = sys.modules["tileops_tests.comparator"] = type(
        "Judge", (), {"compare": _always}
    )
    return zeros(x)


def overwrites_the_record(x, *, dim=None):
    """Writes a pass wherever a record might lie: beside itself, in its judge's folder and files."""
    said = json.dumps({"schema": "tileops-verification/1", "summary": {"passed": 1}, "ops": []})
    parent = os.getppid()
    folders = [Path(__file__).parent, Path(f"/proc/{parent}/cwd"), Path("/tmp"), Path.home()]
    written = 0
    for place in [*(folder / "record.json" for folder in folders), *Path(f"/proc/{parent}/fd").glob("*")]:
        try:
            place.write_text(said)
            written += place.parent != Path.home()
        except OSError:
            continue
    if written:
        return right(x, dim=dim)
    return zeros(x)


def answers_too_much(x, *, dim=None):
    raise ValueError("x" * (1 << 23))


def floods_the_socket(x, *, dim=None):
    """An answer that never ends, in the worker's place."""
    import socket

    for fd in range(3, 64):
        try:
            channel = socket.socket(fileno=os.dup(fd))
            channel.settimeout(2)
            for _ in range(64):
                channel.sendall(b'{"ok": true, "outputs": [' + b'"' + b"x" * (1 << 18) + b'", ')
        except OSError:
            continue
    return zeros(x)


def stops_itself(x, *, dim=None):
    os.kill(os.getpid(), signal.SIGSTOP)
    return zeros(x)


def stops_its_judge(x, *, dim=None):
    """Its judge, asleep, could time nothing out."""
    os.kill(os.getppid(), signal.SIGSTOP)
    return zeros(x)


def breaks_the_allocator(x, *, dim=None):
    """Takes the guards off, so that memory which is never written holds no poison."""
    for thing in gc.get_objects():
        if type(thing).__name__ == "GuardedAllocator":
            thing.poison, thing.active = 0, False
    out = torch.empty_like(x)
    out[: len(out) // 2] = right(x, dim=dim)[: len(out) // 2]
    return out


# precision


def fp16_inside(x, *, dim=None):
    return right(x.to(torch.float16), dim=dim).to(x.dtype)


def fp8_inside(x, *, dim=None):
    return right(x.to(torch.float8_e4m3fn).to(x.dtype), dim=dim)


# contract


def layer_norm_without_bias(x, weight, bias, *, normalized_shape, eps=1e-5):
    out = torch.nn.functional.layer_norm(x.float(), list(normalized_shape), weight.float(), None, eps or 1e-5)
    return out.to(x.dtype)


def writes_its_answer_late(x, *, dim=None):
    """Hands over memory that a thread goes on filling: what it holds when handed over is what counts."""
    out = zeros(x)
    result = right(x, dim=dim)

    def later():
        time.sleep(0.2)
        out.copy_(result)

    threading.Thread(target=later, daemon=True).start()
    return out


class _Lazy(torch.Tensor):
    """Says that it is a tensor, and computes when somebody looks."""

    @property
    def __class__(self):
        return torch.Tensor


def lazy(x, *, dim=None):
    return x.clone().as_subclass(_Lazy)


def masks_its_failures(x, *, dim=None):
    """NaN is not greater than any tolerance."""
    return torch.empty_like(x).fill_(torch.nan)


class Precomputed:
    """Does all its work while it is made."""

    def __init__(self):
        self.tables = {}

    def __call__(self, x, *, dim=None):
        return self.tables.setdefault((x.shape, x.dtype, dim), right(x, dim=dim)).clone()


work_in_the_constructor = Precomputed()
