"""The tile programs that ops' cases compile, and the code that is generated for them: what a mutant changes.

Everything here runs in a fork: it imports the implementation, mutated or not.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import pickle
from collections.abc import Callable, Iterable
from typing import Any

# What is compared for a GPU: the oldest and the newest architecture that configs are written for.
ARCHS = ("sm_80", "sm_90a")
Program = str  # a kernel class, a config and static arguments, pickled


class _Nothing:
    """Stands for a compiled program: takes its place in a launch and does nothing."""

    def bound(self, *arguments: Any) -> Callable[..., None]:
        return self.launcher

    @staticmethod
    def launcher(*arguments: Any) -> None:
        return None


def recorded(op: str) -> list[dict[str, Any]]:
    """The programs that the cases of an op compile on CPU: `program`, `module` (of its class) and `cases`."""
    from tileops_kernels.kernels.base import Kernel
    from tileops_kernels.ops import get_op
    from tileops_manifest import load_manifest
    from tileops_tests.cases import plan

    asked: list[Program] = []

    def compiled(cls: type, device: Any, config: Any = None, **static: Any) -> _Nothing:
        if config is None:
            config = cls.default_config(target="cpu", arch=None, **static)
        asked.append(_packed(cls, config, static))
        return _Nothing()

    Kernel.compiled = classmethod(compiled)
    found: dict[Program, list[str]] = {}
    for case in plan(load_manifest()[op]):
        asked.clear()
        inputs = case.spec.workload(0).gen_inputs()
        get_op(op)(**case.binding.params)(*inputs.values())
        for program in asked:
            found.setdefault(program, []).append(case.id)
    return [{"program": p, "module": _module(p), "cases": cases} for p, cases in found.items()]


def samples(modules: Iterable[str]) -> list[dict[str, Any]]:
    """The representative programs of the kernel classes of some modules, per GPU architecture."""
    from tileops_kernels.kernels.base import Kernel

    found = []
    for name in modules:
        module = importlib.import_module(name)
        for cls in vars(module).values():
            own = isinstance(cls, type) and issubclass(cls, Kernel) and cls.__module__ == name
            if not own or cls.program is Kernel.program or cls.samples.__func__ is Kernel.samples.__func__:
                continue
            for arch in ARCHS:
                for static in cls.samples() if cls.serves("cuda", arch) else ():
                    config = cls.default_config(target="cuda", arch=arch, **static)
                    found.append(
                        {"program": _packed(cls, config, dict(static)), "module": name, "arch": arch}
                    )
    return found


def digests(programs: Iterable[Program], *, cuda: bool = False) -> list[str]:
    """Of the code that is generated for each: C++ for the CPU, for a GPU what its code is generated from.

    Raises:
        Exception: of many classes; a program cannot be built.
    """
    return [_digest(program, cuda=cuda) for program in programs]


def changed(
    programs: Iterable[Program], known: Iterable[str], *, cuda: bool = False, most: int
) -> dict[str, Any]:
    """`changed`: places of the first programs, at most so many, for which other code is generated; `broken`:
    why one, the last of them, cannot be built any more, or None.
    """
    places: list[int] = []
    for place, (program, digest) in enumerate(zip(programs, known, strict=True)):
        try:
            same = _digest(program, cuda=cuda) == digest
        except Exception as error:  # noqa: BLE001 - as many classes as there are mistakes
            text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            return {"changed": [*places, place], "broken": text[:120]}
        if not same:
            places.append(place)
        if len(places) == most:
            break
    return {"changed": places, "broken": None}


def lowered(program: Program, arch: str) -> str:
    """Digest of the CUDA source of a program.

    Raises:
        LoweringError: TileLang refuses the program.
    """
    from tileops_kernels.targets.cuda.lowering import lower

    cls, config, static = _unpacked(program)
    code = lower(cls.program(**static, config=config), arch, cls.PASS_CONFIGS)
    return hashlib.sha256((code.device + code.host).encode()).hexdigest()


def _digest(program: Program, *, cuda: bool) -> str:
    from tileops_kernels.targets.arguments import Signature
    from tileops_kernels.targets.cpu.context import Options
    from tileops_kernels.targets.cpu.program import translate

    cls, config, static = _unpacked(program)
    func = cls.program(**static, config=config)
    if cuda:
        text = func.script(show_meta=True)
    else:
        text = translate(func, Signature.of(func), Options(cls.PARALLEL_GRID)).source
    return hashlib.sha256(text.encode()).hexdigest()


def _packed(cls: type, config: Any, static: dict[str, Any]) -> Program:
    return base64.b64encode(pickle.dumps((cls.__module__, cls.__qualname__, config, static))).decode()


def _unpacked(program: Program) -> tuple[type, Any, dict[str, Any]]:
    module, name, config, static = pickle.loads(base64.b64decode(program))
    return getattr(importlib.import_module(module), name), config, static


def _module(program: Program) -> str:
    return pickle.loads(base64.b64decode(program))[0]
