"""The ledger of known failures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tileops_tests.codes import ReasonCode
from tileops_tests.errors import LedgerError
from tileops_tests.ledger import KnownFailure, load_ledger

ENTRY = """\
[[failure]]
op="SoftmaxFwdOp"
target="cpu"
case="ragged-*"
code="wrong_value"
reason="why"
since="0.1.0"
"""
ONE_CASE = ("ragged-float16-*",)


def known(code: ReasonCode) -> KnownFailure:
    return KnownFailure("SoftmaxFwdOp", "cpu", "ragged-float16-*", code, "a reason", "0.1.0")


def test_the_shipped_ledger_is_valid() -> None:
    assert all(entry.reason for entry in load_ledger())


def test_an_entry_is_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger.toml"
    path.write_text(ENTRY)
    (entry,) = load_ledger(path)
    assert entry.code is ReasonCode.WRONG_VALUE
    assert entry.covers("SoftmaxFwdOp", "cpu", "ragged-float16-cpu-s0")
    assert not entry.covers("SoftmaxFwdOp", "cuda", "ragged-float16-cpu-s0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('reason="why"\n', ""), "failure 1 needs a non-empty string 'reason'"),
        (('reason="why"', 'reason="  "'), "failure 1 needs a non-empty string 'reason'"),
        (("wrong_value", "unlucky"), "unknown code 'unlucky'"),
        (("since", "until"), "needs a non-empty string 'since'"),
        (("[[failure]]", "[[failures]]"), "unknown table 'failures'"),
        (("[[failure]]", "[[failure"), "ledger.toml"),
        (('since="0.1.0"\n', 'since="0.1.0"\nnote="x"\n'), "unknown field 'note'"),
    ],
)
def test_a_malformed_ledger_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "ledger.toml"
    path.write_text(ENTRY.replace(*change))
    with pytest.raises(LedgerError, match=message):
        load_ledger(path)


def test_a_known_failure_does_not_fail_the_op_and_is_counted(judge: Callable) -> None:
    ledger = (known(ReasonCode.WRONG_VALUE),)
    record = judge("SoftmaxFwdOp", "softmax.py:base_two", ONE_CASE, ledger=ledger)
    assert record.cases.known_failures == 1
    assert record.failures == ()


def test_another_code_than_the_known_one_fails(judge: Callable) -> None:
    ledger = (known(ReasonCode.CRASH),)
    record = judge("SoftmaxFwdOp", "softmax.py:base_two", ONE_CASE, ledger=ledger)
    assert {failure.code for failure in record.failures} == {ReasonCode.WRONG_VALUE}


def test_an_unexpected_pass_fails(judge: Callable) -> None:
    ledger = (known(ReasonCode.WRONG_VALUE),)
    record = judge("SoftmaxFwdOp", "softmax.py:right", ONE_CASE, ledger=ledger)
    assert {failure.code for failure in record.failures} == {ReasonCode.UNEXPECTED_PASS}
