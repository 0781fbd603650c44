"""Attention over packed requests: programs per size, capabilities, what is launched."""

from __future__ import annotations

from itertools import accumulate

import pytest
import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.attention_packed import PackedAttentionKernel
from tileops_kernels.ops import get_op

WINDOW = "GroupedQueryAttentionSlidingWindowVarlenFwdOp"
PREFILL = "GroupedQueryAttentionPrefillFwdOp"


def operands(lengths=(3, 0, 2), head_dim=32, dtype=torch.float16):
    total = sum(lengths)
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    q, k, v = (torch.ones(total, heads, head_dim).to(dtype) for heads in (4, 2, 2))
    return q, k, v, starts, starts


def never(*args: object, **kwargs: object) -> object:
    raise AssertionError("nothing must be compiled for this call")


def test_requests_lengths_and_windows_share_one_program() -> None:
    PackedAttentionKernel.clear()
    for lengths, left in (((3, 0, 2), 1), ((70,), 5), ((1, 1, 1, 1), 1000)):
        op = get_op(WINDOW)(window_size_left=left, max_seqlen_q=max(lengths))
        assert op(*operands(lengths)).shape == (sum(lengths), 4, 32)
    assert PackedAttentionKernel.programs() == 1


def test_eight_bit_operands_give_the_dtype_that_is_asked_for() -> None:
    factors = torch.ones(3, 2)
    op = get_op(PREFILL)(max_seqlen_q=3, max_seqlen_kv=3, dtype=torch.bfloat16)
    out = op(*operands(dtype=torch.float8_e4m3fn), factors, None, factors)
    assert (out.shape, out.dtype) == ((5, 4, 32), torch.bfloat16)


def test_a_head_too_wide_for_the_registers_is_refused() -> None:
    with pytest.raises(NotImplementedOpError, match="257, expected at most 256"):
        get_op(WINDOW)(max_seqlen_q=3)(*operands(head_dim=257))


def test_no_tokens_launch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PackedAttentionKernel, "compiled", never)
    assert get_op(WINDOW)(max_seqlen_q=1)(*operands((0, 0))).shape == (0, 4, 32)
