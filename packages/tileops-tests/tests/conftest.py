"""Shared pieces: one zygote per session, one short way to judge a candidate of `tests/wrong`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tileops_manifest import load_manifest
from tileops_tests.candidate import Candidate
from tileops_tests.limits import Limits
from tileops_tests.oracles import get_oracle
from tileops_tests.record import OpRecord
from tileops_tests.sandbox import build_sandbox
from tileops_tests.verify import Options, OpVerification
from tileops_tests.zygote import Zygote

WRONG = Path(__file__).parent / "wrong"
LIMITS = Limits(run_seconds=20.0, compile_seconds=20.0, memory_bytes=2 << 30)

Judge = Callable[..., OpRecord]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """Workers for candidates from files; the sandbox may read the folder of wrong implementations."""
    with build_sandbox("cpu", candidate=WRONG / "rms_norm.py") as sandbox, Zygote(sandbox, LIMITS) as made:
        yield made


@pytest.fixture(scope="session")
def limits() -> Limits:
    return LIMITS


@pytest.fixture(scope="session")
def judge(zygote: Zygote) -> Judge:
    def run(
        op: str, text: str, only: tuple[str, ...] = (), limits: Limits = LIMITS, **options: object
    ) -> OpRecord:
        candidate = Candidate.parse(f"{WRONG}/{text}")
        chosen = Options(candidate=candidate, only=only, limits=limits, **options)
        return OpVerification(load_manifest()[op], get_oracle(op), zygote, chosen).run()

    return run
