"""Baselines of attention's gradients: what backends are handed, and what they decline."""

from __future__ import annotations

import pytest
import torch

from tileops_bench.baselines import Case, UnsupportedCase, baseline

OP = "GroupedQueryAttentionBwdOp"


def case(key_heads=2, dtype=torch.float16, device="meta"):
    generator = None if device == "meta" else torch.Generator().manual_seed(0)
    query, key = (2, 33, 4, 16), (2, 33, key_heads, 16)
    shapes = {"q": query, "k": key, "v": key, "o": query, "do": query, "lse": (2, 4, 33)}
    inputs = {
        name: torch.randn(shape, generator=generator, device=device).to(
            torch.float32 if name == "lse" else dtype
        )
        for name, shape in shapes.items()
    }
    return Case(OP, {"is_causal": True}, inputs, "cuda")


@pytest.mark.parametrize(
    ("name", "key_heads"), [("sdpa-flash", 4), ("sdpa-cudnn", 4), ("sdpa-cudnn", 2), ("sdpa-efficient", 4)]
)
def test_a_backend_takes_the_ops_tensors(name, key_heads):
    """On tensors without memory: torch checks names, order and shapes of what its operators are handed."""
    row = case(key_heads)
    found = baseline(OP, name).make(row)(*row.inputs.values())
    assert [g.shape for g in found] == [row.inputs[n].shape for n in "qkv"]


@pytest.mark.parametrize("name", ["sdpa-flash", "sdpa-cudnn"])
def test_float32_is_declined(name):
    with pytest.raises(UnsupportedCase, match="16-bit"):
        baseline(OP, name).make(case(dtype=torch.float32))


def test_shared_key_heads_are_declined_where_a_backend_has_none():
    with pytest.raises(UnsupportedCase, match="share a key head"):
        baseline(OP, "sdpa-efficient").make(case(key_heads=2))


def test_what_a_backend_refuses_is_unsupported():
    with pytest.raises(UnsupportedCase, match="Could not run"):
        baseline(OP, "sdpa-flash").make(case(device="cpu"))


def test_heads_that_share_keys_have_their_gradients_added():
    row = case(dtype=torch.float64, device="cpu")
    gradients = baseline(OP, "composition").make(row)(*row.inputs.values())
    assert [g.shape for g in gradients] == [row.inputs[name].shape for name in "qkv"]
