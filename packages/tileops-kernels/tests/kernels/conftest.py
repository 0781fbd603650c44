"""A stub in place of compiled programs: how flows cut a call into launches, and nothing compiles."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tileops_kernels.kernels.base import Kernel
from tileops_kernels.ops.plan import PlanCache


@dataclass(frozen=True)
class Launched:
    """One launch: the kernel's name, its static arguments, and what it was called with."""

    kernel: str
    static: dict[str, Any]
    args: tuple[Any, ...]

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [arg for arg in self.args if isinstance(arg, torch.Tensor)]

    @property
    def sizes(self) -> list[int]:
        return [tensor.numel() for tensor in self.tensors]

    @property
    def numbers(self) -> tuple[Any, ...]:
        return tuple(arg for arg in self.args if not isinstance(arg, torch.Tensor))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[Launched]:
    """The launches in order."""
    calls: list[Launched] = []

    def compiled(cls: type, device: torch.device, config: Any = None, **static: Any) -> SimpleNamespace:
        def launcher(*args: Any) -> None:
            calls.append(Launched(cls.__name__, static, args))

        return SimpleNamespace(bound=lambda *example: launcher, launcher=launcher)

    monkeypatch.setattr(Kernel, "compiled", classmethod(compiled))
    # A plan of another test would launch what is not in the log, and one of this test nothing at all.
    monkeypatch.setattr(PlanCache, "get", lambda self, key: None)
    monkeypatch.setattr(PlanCache, "put", lambda self, key, plan: None)
    return calls
