"""The candidate's process: a standalone script that never imports tileops_tests.

Started by `zygote.py` as `python -I -S main.py --socket FD --view DIR`; it forks one worker per op. A
worker knows no expected value: it is handed inputs in sealed memory, runs the candidate on copies of them
in buffers that the parent owns, and writes the bytes of the outputs into memory of the parent. Messages are
JSON lines on a Unix socket; file descriptors travel beside them.

Requests to a worker (`do`): `load`, `warm`, `case`, `run`, `recheck`, `refuse`, `lock`. Every answer has
`ok`.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import importlib.util
import json
import os
import socket
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

# Isolated mode leaves the script's own folder off the path. The parent copied this folder to where nothing
# leads back to the package.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import confinement
from buffers import CaseBuffers
from guards import GuardedAllocator

del sys.path[0]

MAX_TEXT = 4000


class Blocker:
    """Import hook that refuses the judge's own packages, whatever path they might be found on."""

    names = frozenset({"tileops_tests", "tileops_workloads", "tileops_bench"})

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"{name} is not available to a candidate", name=name)
        return None


class Channel:
    """JSON lines with file descriptors, one request and one answer at a time."""

    def __init__(self, fd):
        self.socket = socket.socket(fileno=fd)

    def receive(self):
        data, fds = b"", []
        while not data.endswith(b"\n"):
            chunk, ancillary, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(16 * 4))
            if not chunk:
                return None, fds
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    received = array.array("i")
                    received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
                    fds.extend(received)
            data += chunk
        return json.loads(data), fds

    def send(self, message):
        self.socket.sendall(json.dumps(message).encode() + b"\n")


class Worker:
    """Answers the parent's requests, one at a time."""

    def __init__(self, channel, torch, allocator):
        self.channel = channel
        self.torch = torch
        self.allocator = allocator
        self.function = None
        self.case = None
        self.held = None

    def load(self, message, fds):
        """Import the candidate. A foreign one is an attribute of a file; ours is built per case from its
        params.
        """
        if message["kind"] == "op":
            from tileops_kernels.ops import get_op

            op_class = get_op(message["op"])
            self.function = lambda *inputs, **params: op_class(**params)(*inputs)
            return {"ok": True}
        # A file may import its neighbours, as it could when run by hand.
        sys.path.append(os.path.dirname(message["path"]))
        spec = importlib.util.spec_from_file_location("tileops_candidate", message["path"])
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        target = module
        for part in message["object"].split("."):
            target = getattr(target, part)
        if not callable(target):
            raise TypeError(f"{message['object']} is {type(target).__name__}, expected a callable")
        self.function = target
        return {"ok": True}

    def warm(self, message, fds):
        """Call our own op on zeros, several calls at a time, so that its programs compile side by side.
        What fails here fails again in a call of its own, which reports it.
        """

        def call(item):
            try:
                self.function(*map(self._zeros, item["inputs"]), **self._params(item["params"]))
            except Exception:  # noqa: BLE001 - see above
                return 1
            return 0

        with ThreadPoolExecutor(message["threads"]) as pool:
            failed = sum(pool.map(call, message["calls"]))
        return {"ok": True, "failed": failed}

    def open_case(self, message, fds):
        self.held = None
        self.case = CaseBuffers(self.torch, message, fds)
        return {"ok": True}

    def run(self, message, fds):
        case = self.case
        case.fill(message["values"])
        self.allocator.reset(message["poison"])
        case.poison_free_memory(message["poison"])
        self._synchronize()
        self.allocator.active = True
        try:
            with self._default_device(case):
                result, calls = self._observed(case.inputs, message)
        finally:
            self.allocator.active = False
        self._synchronize()
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        if message.get("hold"):
            self.held = outputs
        answer = {"ok": True, "outputs": self._snapshot(outputs), "broken_guards": self.allocator.broken()}
        answer["calls"] = calls
        case.bring_back()
        self.allocator.reset(message["poison"])
        return answer

    def _default_device(self, case):
        """An op without inputs works on torch's default device: make that the one that is verified, by its
        index, since torch finds a missing one by making a tensor, which a trace would show.
        """
        if case.inputs or case.device.type == "cpu":
            return contextlib.nullcontext()
        return self.torch.device(case.device.type, case.device.index or 0)

    def _observed(self, inputs, message):
        """The result, and the framework's operators that made it where `trace` asks for them."""
        params = self._params(message["params"])
        if not message.get("trace"):
            return self.function(*inputs, **params), []
        with self.torch.autograd.profiler.profile() as profile:
            result = self.function(*inputs, **params)
        names = {event.name for event in profile.function_events}
        return result, sorted(name for name in names if name.startswith("aten::"))

    def recheck(self, message, fds):
        """Once more the bytes of the outputs that `hold` kept: a later call must not have changed them."""
        return {"ok": True, "outputs": self._snapshot(self.held or ())}

    def refuse(self, message, fds):
        """Run on inputs that the manifest forbids; that no error comes is the parent's to judge."""
        inputs = [self._zeros(spec) for spec in message["inputs"]]
        self.function(*inputs, **self._params(message["params"]))
        self._synchronize()
        return {"ok": True}

    def _zeros(self, spec):
        if spec is None:
            return None
        dtype = getattr(self.torch, spec["dtype"])
        return self.torch.zeros(spec["shape"], dtype=dtype, device=spec["device"])

    def _params(self, params):
        def revive(value):
            if isinstance(value, dict) and "$dtype" in value:
                return getattr(self.torch, value["$dtype"])
            return value

        return {name: revive(value) for name, value in params.items()}

    def _snapshot(self, outputs):
        """Copy output bytes into the parent's memory, back to back; describe each output, judge none."""
        described, offset = [], 0
        for out in outputs:
            if type(out) is not self.torch.Tensor or out.layout is not self.torch.strided:
                kind = f"{type(out).__module__}.{type(out).__qualname__}"
                layout = f" of layout {out.layout}" if type(out) is self.torch.Tensor else ""
                described.append({"type": kind + layout})
                continue
            nbytes = out.numel() * out.element_size()
            entry = {
                "type": "torch.Tensor",
                "dtype": str(out.dtype).removeprefix("torch."),
                "shape": list(out.shape),
                "stride": list(out.stride()),
                "device": out.device.type,
                "alias": self.case.alias(out),
                "offset": None,
                "nbytes": nbytes,
            }
            here = out.device.type == self.case.device.type
            if here and 0 < nbytes <= len(self.case.out) - offset:
                plain = out.detach().contiguous().reshape(-1).view(self.torch.uint8)
                target = self.torch.frombuffer(
                    self.case.out, dtype=self.torch.uint8, count=nbytes, offset=offset
                )
                target.copy_(plain)
                entry["offset"] = offset
                offset += nbytes
            described.append(entry)
        return described

    def _synchronize(self):
        if self.case is not None and self.case.device.type == "cuda":
            self.torch.cuda.synchronize()

    def serve(self):
        actions = {
            "load": self.load,
            "warm": self.warm,
            "case": self.open_case,
            "run": self.run,
            "recheck": self.recheck,
            "refuse": self.refuse,
        }
        while True:
            message, fds = self.channel.receive()
            if message is None:
                return
            try:
                if message["do"] == "lock":
                    answer = {"ok": True, "confinement": confinement.apply(message)}
                else:
                    answer = actions[message["do"]](message, fds)
            except BaseException as error:  # noqa: BLE001 - whatever a candidate raises is an answer, also SystemExit
                answer = describe_error(error, self.torch)
            self.channel.send(answer)


def describe_error(error, torch):
    """An error as data: its kind for the reason code, its class names for the manifest's error contract."""
    text = "".join(traceback.format_exception(error))
    out_of_memory = isinstance(
        error, (MemoryError, torch.OutOfMemoryError)
    ) or "can't allocate memory" in str(error)
    kind = "out_of_memory" if out_of_memory else "exception"
    if isinstance(error, NotImplementedError):
        kind = "not_implemented"
    return {
        "ok": False,
        "kind": kind,
        "classes": [c.__name__ for c in type(error).__mro__],
        "message": f"{type(error).__name__}: {error}"[:MAX_TEXT],
        "traceback": text[-MAX_TEXT:],
    }


class Zygote:
    """Imports what every worker needs once, confined; then forks a worker per request and reports how it
    ended.

    No thread runs here and no device is touched, so that a fork is a faithful copy.
    """

    def __init__(self, channel, view):
        self.channel = channel
        self.view = view

    def start(self, message):
        held = confinement.apply(message)
        sys.path.insert(0, self.view)
        sys.meta_path.insert(0, Blocker())
        import torch

        self.torch = torch
        self.allocator = GuardedAllocator(torch)
        for name in message["preload"]:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001 - the request that needs it will say why it cannot be had
                continue
        return {"ok": True, "confinement": held, "torch": torch.__version__}

    def serve(self):
        message, _ = self.channel.receive()
        self.channel.send(self.start(message))
        while True:
            message, fds = self.channel.receive()
            if message is None:
                return
            if message["do"] == "fork":
                self.fork(message, fds)
            else:
                self.channel.send({"ok": True, "status": self.wait(message["pid"])})

    def fork(self, message, fds):
        pid = os.fork()
        if pid == 0:
            self.channel.socket.close()
            self.become_worker(message, fds)
            os._exit(0)
        for fd in fds:
            os.close(fd)
        self.channel.send({"ok": True, "pid": pid})

    def become_worker(self, message, fds):
        connection, log = fds
        os.setsid()
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.chdir(message["scratch"])
        os.environ.update(HOME=message["scratch"], TMPDIR=message["scratch"])
        channel = Channel(connection)
        first, _ = channel.receive()
        held = confinement.apply(first)
        self.torch.set_num_threads(first["threads"])
        channel.send({"ok": True, "confinement": held, "details": self.details(first["target"])})
        Worker(channel, self.torch, self.allocator).serve()

    def details(self, target):
        details = {"torch": self.torch.__version__, "cuda": self.torch.version.cuda}
        if target == "cuda":
            properties = self.torch.cuda.get_device_properties(0)
            details |= {"device": properties.name, "arch": f"sm_{properties.major}{properties.minor}"}
        return details

    @staticmethod
    def wait(pid):
        """Exit code of a worker as subprocess has it (negative: a signal); None while it runs."""
        found, status = os.waitpid(pid, os.WNOHANG)
        return None if found == 0 else os.waitstatus_to_exitcode(status)


def main():
    arguments = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    Zygote(Channel(int(arguments["--socket"])), arguments["--view"]).serve()


if __name__ == "__main__":
    main()
