"""Oracles of routed layers (arXiv:2401.06066, arXiv:2412.19437).

* FusedMoEExperts: output[t] = factor * sum over j of topk_weights[t, j] * expert(topk_ids[t, j])(x_t),
  experts that are elsewhere adding nothing; expert(e)(x) = w_down[e] (activation(w_gate_up[e, :ffn] x) *
  (w_gate_up[e, ffn:] x)).
* FusedMoe: the same, weights being the scores (softmax or sigmoid of the logits) of the top_k experts whose
  score plus bias is greatest, divided by their sum if renormalised; of equal ones the lowest expert.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.arithmetic import accumulate, contract_as_step, exponentials
from tileops_tests.oracles.base import Call, Inputs, Oracle, Outputs, Params
from tileops_tests.oracles.grouped import absolute, gate_up, gate_up_public, gate_up_size
from tileops_tests.oracles.properties import Run, close, doubled


def _local_ids(call: Call) -> Tensor:
    ids, mapped = call["topk_ids"].to(torch.int64), call.get("expert_map")
    return ids if mapped is None else mapped.to(torch.int64)[ids]


def _combine(call: Call, ids: Tensor, weights: Tensor) -> Tensor:
    """Expert after expert; the copies of a token are added up in their order."""
    x = call["hidden_states"]
    copies = torch.zeros((*ids.shape, x.shape[1]), dtype=x.dtype, device=x.device)
    for e in range(call["w_down"].shape[0]):
        token, copy = torch.nonzero(ids == e, as_tuple=True)
        if token.numel():
            hidden = call.rounded("activations", gate_up(call, x[token], call["w_gate_up"][e]))
            rows = call.rounded("expert_outputs", contract_as_step(hidden, call["w_down"][e].mT))
            copies[token, copy] = rows * weights[token, copy][:, None]
    return accumulate(copies.transpose(0, 1)) * call.param("routed_scaling_factor")


def _combine_token_by_token(call: Call, ids: Tensor, weights: Tensor) -> Tensor:
    out = torch.zeros_like(call["hidden_states"])
    for token, row in enumerate(ids.tolist()):
        for copy, e in enumerate(row):
            if e >= 0:
                hidden = gate_up_public(call, call["hidden_states"][token], call["w_gate_up"][e])
                out[token] += weights[token, copy] * (call["w_down"][e] @ hidden)
    return out * call.param("routed_scaling_factor")


def _combined_size(call: Call, ids: Tensor, weights: Tensor) -> Tensor:
    sizes = absolute(call, "hidden_states", "w_gate_up", "w_down")
    x, w_down = sizes["hidden_states"], sizes["w_down"]
    out = torch.zeros_like(x)
    for e in range(w_down.shape[0]):
        token, copy = torch.nonzero(ids == e, as_tuple=True)
        if token.numel():
            rows = torch.matmul(gate_up_size(x[token], sizes["w_gate_up"][e]), w_down[e].mT)
            out.index_add_(0, token, rows * weights[token, copy].abs()[:, None])
    return out * abs(call.param("routed_scaling_factor"))


def _fused_experts(call: Call) -> Outputs:
    return (_combine(call, _local_ids(call), call["topk_weights"]),)


def _scores(call: Call) -> Tensor:
    logits = call["gating_output"]
    if call.param("scoring_func") == "sigmoid":
        return 1 / (1 + torch.exp(-logits))
    _, powers, total = exponentials(logits, -1)
    return powers / total


def _routed(call: Call) -> tuple[Tensor, Tensor]:
    """Ids and weights [tokens, top_k]: the expert of greatest biased score, top_k times over."""
    scores, bias = _scores(call), call.get("correction_bias")
    biased = scores if bias is None else scores + bias
    expert = torch.arange(scores.shape[1], device=scores.device)
    left = torch.ones_like(biased, dtype=torch.bool)  # a score may be -inf itself, so none marks the taken
    chosen = []
    for _ in range(call.param("top_k")):
        best = biased.masked_fill(~left, -torch.inf).amax(dim=-1, keepdim=True)
        first = torch.where(left & (biased == best), expert, scores.shape[1]).amin(dim=-1, keepdim=True)
        chosen.append(first)
        left = left & (expert != first)
    ids = torch.cat(chosen, dim=-1)
    weights = scores.gather(1, ids)
    if call.param("renormalize"):
        weights = weights / accumulate(weights.t())[:, None]
    return ids, weights


def _routed_by_sorting(call: Call) -> tuple[Tensor, Tensor]:
    logits, bias = call["gating_output"], call.get("correction_bias")
    scores = torch.sigmoid(logits) if call.param("scoring_func") == "sigmoid" else logits.softmax(dim=-1)
    ranked = torch.argsort(scores if bias is None else scores + bias, dim=-1, descending=True, stable=True)
    ids = ranked[:, : call.param("top_k")]
    weights = scores.gather(1, ids)
    return ids, F.normalize(weights, p=1, dim=-1, eps=0.0) if call.param("renormalize") else weights


def _fused(call: Call) -> Outputs:
    return (_combine(call, *_routed(call)),)


def is_linear_in_w_down(run: Run, inputs: Inputs, params: Params) -> bool:
    """Doubling w_down doubles the output."""
    twice = {**inputs, "w_down": doubled(inputs["w_down"])}
    return close(run(twice, params)[0], run(inputs, params)[0] * 2)


def the_order_of_experts_does_not_matter(run: Run, inputs: Inputs, params: Params) -> bool:
    """Experts renumbered, with their logits, biases and weights, give the same output."""
    turned = {
        name: None if inputs[name] is None else inputs[name].flip(axis)
        for name, axis in (("gating_output", 1), ("correction_bias", 0), ("w_gate_up", 0), ("w_down", 0))
    }
    (out,) = run(inputs, params)
    size = out.abs().nan_to_num(0, 0, 0).amax().item() if out.numel() else 0.0
    return close(run({**inputs, **turned}, params)[0], out, size)


def _expert_length(call: Call) -> int:
    return max(call["hidden_states"].shape[1], call["w_down"].shape[2])


ORACLES = (
    Oracle(
        "FusedMoEExpertsNopadPersistent3WGFwdOp",
        _fused_experts,
        lambda call: (_combine_token_by_token(call, _local_ids(call), call["topk_weights"]),),
        magnitudes=lambda call: (_combined_size(call, _local_ids(call), call["topk_weights"]),),
        length=_expert_length,
        properties=(is_linear_in_w_down,),
    ),
    Oracle(
        "FusedMoeFwdOp",
        _fused,
        lambda call: (_combine_token_by_token(call, *_routed_by_sorting(call)),),
        magnitudes=lambda call: (_combined_size(call, *_routed(call)),),
        length=_expert_length,
        properties=(is_linear_in_w_down, the_order_of_experts_does_not_matter),
    ),
)
