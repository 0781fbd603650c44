"""Baselines of packed attention: what torch is handed, what it declines, and that requests stay apart."""

from __future__ import annotations

import pytest
import torch

from tileops_bench.baselines import Case, UnsupportedCase, baseline

OP = "GroupedQueryAttentionSlidingWindowVarlenFwdOp"


def case(device="meta", dtype=torch.float16, **params):
    shapes = {"q": (9, 4, 16), "k": (12, 2, 16), "v": (12, 2, 16)}
    inputs = {name: torch.ones(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
    inputs["cu_seqlens_q"] = torch.tensor([0, 4, 9], dtype=torch.int32, device=device)
    inputs["cu_seqlens_k"] = torch.tensor([0, 7, 12], dtype=torch.int32, device=device)
    window = {"window_size_left": 3, "window_size_right": -1, "is_causal": True, "max_seqlen_q": 5}
    return Case(OP, {**window, **params}, inputs, "cuda")


@pytest.mark.parametrize(
    "params", [{}, {"is_causal": False, "window_size_right": 2}, {"window_size_left": -1}]
)
def test_torch_takes_the_ops_tensors(params):
    """On tensors without memory: torch checks names, order and shapes of what its operator is handed."""
    row = case(**params)
    found = baseline(OP, "torch-varlen").make(row)(*row.inputs.values())
    assert found.shape == row.inputs["q"].shape


@pytest.mark.parametrize("params", [{"dtype": torch.float32}, {"softcap": 5.0}])
def test_torch_declines_what_it_has_no_arithmetic_for(params):
    with pytest.raises(UnsupportedCase, match="16-bit operands without a cap"):
        baseline(OP, "torch-varlen").make(case(**params))


def test_a_request_sees_no_keys_of_another():
    row = case(device="cpu", dtype=torch.float32)
    composition = baseline(OP, "composition").make(row)
    row.inputs["v"][7:] = float("nan")
    assert composition(*row.inputs.values()).isnan().any(-1).any(-1).tolist() == [False] * 4 + [True] * 5
