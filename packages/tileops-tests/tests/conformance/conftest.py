"""Fixtures of the conformance suite: every tile operation, on every target of this machine, against torch."""

from collections.abc import Callable

import pytest
import torch

from tileops_kernels.targets import compile_program


@pytest.fixture(params=["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def target(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def run(target: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Compile a program, run it on copies of the arguments on the target, give these back on the CPU."""

    def call(program: object, *arguments: object, **options: object) -> tuple[torch.Tensor, ...]:
        compiled = compile_program(program, target, **options)
        moved = [a.to(target, copy=True) if isinstance(a, torch.Tensor) else a for a in arguments]
        compiled(*moved)
        return tuple(a.cpu() for a in moved if isinstance(a, torch.Tensor))

    return call
