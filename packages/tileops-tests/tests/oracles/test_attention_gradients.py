"""The backward oracles are the gradients of the forward ones."""

from __future__ import annotations

import pytest
import torch

from tileops_tests.oracles import get_oracle

CASES = [
    ("MultiHeadAttentionFwdOp", "MultiHeadAttentionBwdOp", 3),
    ("GroupedQueryAttentionFwdOp", "GroupedQueryAttentionBwdOp", 1),
]


def saved(q, k, is_causal):
    """Log-sum-exp of the scaled scores: [B, H, S]."""
    group = q.shape[2] // k.shape[2]
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(group, dim=2)) / q.shape[-1] ** 0.5
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.logsumexp(dim=-1)


class Attention(torch.autograd.Function):
    """The forward oracle, with the backward one for its gradient."""

    @staticmethod
    def forward(ctx, q, k, v, ops, is_causal):
        (o,) = get_oracle(ops[0]).ref_program({"q": q, "k": k, "v": v}, {"is_causal": is_causal})
        ctx.save_for_backward(q, k, v, o)
        ctx.rest = ops[1], is_causal
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o = ctx.saved_tensors
        op, is_causal = ctx.rest
        inputs = {"q": q, "k": k, "v": v, "o": o, "do": do, "lse": saved(q, k, is_causal)}
        return *get_oracle(op).ref_program(inputs, {"is_causal": is_causal}), None, None


def operands(key_heads):
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, 5, 3, 4), (2, 5, key_heads, 4), (2, 5, key_heads, 4)]
    made = (torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes)
    return tuple(tensor.requires_grad_() for tensor in made)


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(("forward", "backward", "key_heads"), CASES)
def test_backward_oracle_is_the_gradient_of_the_forward_one(forward, backward, key_heads, is_causal):
    q, k, v = operands(key_heads)

    def attention(q, k, v):
        return Attention.apply(q, k, v, (forward, backward), is_causal)

    assert torch.autograd.gradcheck(attention, (q, k, v))


def test_gradients_that_miss_a_factor_are_noticed():
    q, k, v = operands(1)

    class WithoutScale(Attention):
        @staticmethod
        def backward(ctx, do):
            dq, dk, dv, *rest = Attention.backward(ctx, do)
            return dq * 2, dk, dv, *rest

    def attention(q, k, v):
        return WithoutScale.apply(q, k, v, CASES[1][:2], True)

    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(attention, (q, k, v))
