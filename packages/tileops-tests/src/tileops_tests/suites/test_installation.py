"""`pytest --pyargs tileops_tests`: verifies an installation on the device that is found, one test per
implemented op.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_tests.ledger import load_ledger
from tileops_tests.limits import Limits
from tileops_tests.oracles import get_oracle
from tileops_tests.sandbox import build_sandbox
from tileops_tests.verify import Options, OpVerification
from tileops_tests.zygote import Zygote

TARGET = "cuda" if torch.cuda.is_available() else "cpu"
IMPLEMENTED = [
    name for name, entry in load_manifest().entries.items() if getattr(entry.status, TARGET) == "implemented"
]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with build_sandbox(TARGET) as sandbox, Zygote(sandbox, Limits()) as made:
        yield made


def test_something_is_implemented_for_the_device_at_hand() -> None:
    assert IMPLEMENTED, f"the manifest calls no op implemented for {TARGET}: nothing was verified"


@pytest.mark.parametrize("op", IMPLEMENTED)
def test_op_agrees_with_its_oracle(op: str, zygote: Zygote) -> None:
    options = Options(target=TARGET, ledger=load_ledger(), oracle_device=TARGET)
    record = OpVerification(load_manifest()[op], get_oracle(op), zygote, options).run()
    problems = [
        f"{failure.code} in {failure.case}: {failure.message}"
        for failure in (*record.failures, *record.refusals)
    ]
    assert record.status == "passed", "\n".join(problems)
