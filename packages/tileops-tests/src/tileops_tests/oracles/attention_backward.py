"""Oracles of attention's gradients, from what the forward pass kept (arXiv:2205.14135, section 3).

q, o, do, dq [B, S, H, D]; k, v, dk, dv [B, S, H_kv, D]; lse [B, H, S]. With s_ij = q_i . k_j / sqrt(D) over
the visible pairs (causal: j <= i), p_ij = exp(s_ij - lse_i) and ds_ij = p_ij (do_i . v_j - do_i . o_i):
dv_j = sum_i p_ij do_i, dq_i = sum_j ds_ij k_j / sqrt(D), dk_j = sum_i ds_ij q_i / sqrt(D), sums over i
running over the queries of all heads that share the key head.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import accumulate, contract_as_step
from tileops_tests.oracles.attention import by_key_head, by_query
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close


class Saved(NamedTuple):
    """By key head, the queries that share it side by side: q, o, do [B, H_kv, Q, D], lse [B, H_kv, Q], k and
    v [B, H_kv, S, D], visible [Q, S].
    """

    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    do: Tensor
    lse: Tensor
    visible: Tensor


def _saved(call: Call) -> Saved:
    k, v = (call[name].transpose(1, 2) for name in "kv")
    q, o, do = (by_key_head(call[name], k.shape[1]) for name in ("q", "o", "do"))
    batch, heads, length = call["lse"].shape
    group = heads // max(k.shape[1], 1)
    visible = torch.ones((length, length), dtype=torch.bool, device=k.device)
    visible = visible.tril() if call.param("is_causal") else visible
    lse = call["lse"].reshape(batch, k.shape[1], group * length)
    return Saved(q, k, v, o, do, lse, visible.repeat(group, 1))


def _weights(saved: Saved) -> Tensor:
    scores = contract_as_step(saved.q, saved.k.mT) / math.sqrt(saved.q.shape[-1])
    return torch.exp(scores - saved.lse[..., None]).masked_fill(~saved.visible, 0)


def _of_heads(call: Call, dq: Tensor, dk: Tensor, dv: Tensor) -> Outputs:
    _, length, heads, _ = call["q"].shape
    return by_query(dq, heads, length), dk.transpose(1, 2), dv.transpose(1, 2)


def _program(call: Call) -> Outputs:
    saved = _saved(call)
    scale = 1 / math.sqrt(saved.q.shape[-1])
    weights = _weights(saved)
    own = accumulate((saved.do * saved.o).movedim(-1, 0))[..., None]
    change = weights * (contract_as_step(saved.do, saved.v.mT) - own)
    change = call.rounded("score_gradients", change.masked_fill(~saved.visible, 0))
    dv = contract_as_step(call.rounded("probabilities", weights).mT, saved.do)
    dq, dk = contract_as_step(change, saved.k) * scale, contract_as_step(change.mT, saved.q) * scale
    return _of_heads(call, dq, dk, dv)


def _magnitudes(call: Call) -> Magnitudes:
    """Each sum over magnitudes, times 1 + |q_i| |k_j| / sqrt(D) + |lse_i|: what a roundoff of scores is
    worth.
    """
    saved = _saved(call)
    scale = 1 / math.sqrt(saved.q.shape[-1])
    longest = torch.linalg.vector_norm(saved.k, dim=-1).sum(dim=-1, keepdim=True)
    if saved.k.shape[2]:
        longest = torch.linalg.vector_norm(saved.k, dim=-1).amax(dim=-1, keepdim=True)
    exponent = 1 + torch.linalg.vector_norm(saved.q, dim=-1) * longest * scale + saved.lse.abs()
    weights = _weights(saved) * exponent[..., None]
    own = (saved.do * saved.o).abs().sum(dim=-1, keepdim=True)
    change = weights * (torch.matmul(saved.do.abs(), saved.v.abs().mT) + own)
    dv = torch.matmul(weights.mT, saved.do.abs())
    dq, dk = torch.matmul(change, saved.k.abs()) * scale, torch.matmul(change.mT, saved.q.abs()) * scale
    return _of_heads(call, dq, dk, dv)


def _by_autograd(call: Call) -> Outputs:
    """Gradients of sum_i do_i . sum_j p_ij v_j - sum_ij p_ij (do_i . o_i), in which lse is a constant."""
    q, k, v = (call[name].detach().clone().requires_grad_() for name in "qkv")
    group = q.shape[2] // max(k.shape[2], 1)
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(group, dim=2)) * q.shape[-1] ** -0.5
    if call.param("is_causal"):
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.exp(scores - call["lse"][..., None])
    gained = torch.einsum("bhij,bjhd->bihd", weights, v.repeat_interleave(group, dim=2))
    own = torch.einsum("bihd,bihd->bhi", call["do"], call["o"])
    objective = (call["do"] * gained).sum() - (weights * own[..., None]).sum()
    return torch.autograd.grad(objective, (q, k, v))


def is_linear_in_the_gradient(run: Run, inputs: Inputs, params: Params) -> bool:
    """Doubling do doubles all three gradients."""
    doubled = {**inputs, "do": inputs["do"].to(torch.float64) * 2}
    return all(
        close(twice, once * 2) for twice, once in zip(run(doubled, params), run(inputs, params), strict=True)
    )


def _length(call: Call) -> int:
    _, length, heads, dim = call["q"].shape
    return max(length * heads // max(call["k"].shape[2], 1), dim)


ORACLES = tuple(
    Oracle(
        op,
        _program,
        _by_autograd,
        magnitudes=_magnitudes,
        length=_length,
        properties=(is_linear_in_the_gradient,),
    )
    for op in ("MultiHeadAttentionBwdOp", "GroupedQueryAttentionBwdOp")
)
