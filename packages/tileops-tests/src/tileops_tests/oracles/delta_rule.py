"""Oracles of delta rules, token by token.

A state S [DK, DV] per request and head maps keys to values. Each token decays it, then moves what it holds
for the token's key towards the token's value (arXiv:2406.06484 without, arXiv:2412.06464 with decays):

    S'_t = exp(g_t) S_(t-1);  u_t = beta_t (v_t - S'_t^T k_t);  S_t = S'_t + k_t u_t^T;  o_t = S_t^T q_t

* q, k [.., L, DK], v, o [.., L, DV], g, beta [.., L]: with heads before tokens (BHTD) or behind (BTHD).
* States S [B, H, chunks + 1, DK, DV]: before each chunk of `chunk_size` tokens, and the last one.
* With M_ij = beta_i k_i.k_j for j < i within a chunk, else 0, and G the running sum of g in it:
  Aw = (I + M)^-1, Au = (I + M * exp(G_i - G_j))^-1, both [.., L, chunk_size];
  w = Aw (beta k), u = Au (beta v).
* Backward: gradients of sum(do * o), each chunk run again from the given S.

The second opinion treats a chunk as a whole, by triangular systems; that of backward passes is autograd's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import contract_as_step, vector_times
from tileops_tests.oracles.base import Call, Magnitudes, Oracle, Outputs
from tileops_tests.oracles.delta_rule_chunks import (
    autograd,
    chunked_prefill,
    chunked_with_products,
    chunked_with_terms,
    explicit_transition,
)
from tileops_tests.oracles.delta_rule_sizes import (
    decode_size,
    gradient_sizes,
    prefill_size,
    with_products_size,
    with_terms_size,
)
from tileops_tests.oracles.delta_rule_steps import (
    Step,
    Tokens,
    as_given,
    backward,
    chunks_of,
    in_tokens,
    run,
    substituted,
    sum_of,
    tokens_of,
)
from tileops_tests.oracles.properties import doubles_with, is_causal
from tileops_tests.oracles.recurrence import not_rounded


def _prefill(call: Call, heads_first: bool) -> Outputs:
    tokens = tokens_of(call, heads_first)
    o, steps = run(call.rounded, tokens, tokens.start())
    return as_given(o, heads_first), steps[-1].state if steps else tokens.start()


def _decode(call: Call) -> Outputs:
    o, steps = run(not_rounded, tokens_of(call), call["state"])
    return o[:, :, 0], steps[0].state


def _states(tokens: Tokens, steps: list[Step], size: int) -> Tensor:
    """[B, H, chunks + 1, DK, DV]: before each chunk, and the last one."""
    starts = [tokens.start(), *(step.state for step in steps)]
    return torch.stack([*starts[: tokens.length : size], starts[-1]], dim=2)


def _with_terms(call: Call, heads_first: bool) -> Outputs:
    """o, S, Aw and Au."""
    tokens, size = tokens_of(call, heads_first), call.param("chunk_size")
    o, steps = run(call.rounded, tokens, tokens.start())
    chunks = chunks_of(tokens, size)
    terms = (in_tokens(substituted(lower), tokens.length) for lower in (chunks.plain, chunks.decaying))
    aw, au = (as_given(term, heads_first) for term in terms)
    return as_given(o, heads_first), _states(tokens, steps, size), aw, au


def _with_products(call: Call) -> Outputs:
    """o, S, Aw, Au, w and u of the rule without decays."""
    tokens, size = tokens_of(call), call.param("chunk_size")
    o, steps = run(call.rounded, tokens, tokens.start())
    chunks = chunks_of(tokens, size)
    inverse = substituted(chunks.plain)
    w, u = (contract_as_step(inverse, x) for x in (chunks.keys, chunks.values))
    inverse, w, u = (in_tokens(x, tokens.length) for x in (inverse, w, u))
    return o, _states(tokens, steps, size), inverse, inverse.clone(), w, u


def _gradients(call: Call) -> Outputs:
    """dq, dk, dv, dg (with decays) and dbeta."""
    back, do = backward(call), call["do"].contiguous()
    tokens, named = back.tokens, {"q": [], "k": [], "v": [], "g": [], "beta": []}
    for t, (step, grad) in enumerate(zip(back.steps, back.reverse, strict=True)):
        beta, error = tokens.beta[:, :, t, None], tokens.v[:, :, t] - step.predicted
        state, decayed, later = (call.rounded("states", x) for x in (step.state, step.decayed, grad.state))
        named["q"].append(vector_times(do[:, :, t], state.mT))
        named["k"].append(vector_times(step.update, later.mT) + vector_times(grad.predicted, decayed.mT))
        named["v"].append(beta * grad.update)
        named["g"].append(sum_of((decayed * grad.decayed).flatten(-2)))
        named["beta"].append(sum_of(grad.update * error))
    if tokens.g is None:
        del named["g"]
    shapes = {"q": tokens.q, "k": tokens.k, "v": tokens.v, "g": tokens.g, "beta": tokens.beta}
    return tuple(torch.stack(x, dim=2) if x else shapes[name].clone() for name, x in named.items())


def _length(call: Call) -> int:
    """Tokens that pass on a state, and terms of a product with it."""
    dk = call["k"].shape[-1]
    return dk if call["k"].dim() == 3 else dk + max(call["k"].shape[1:3])


def _oracle(
    op: str,
    program: Callable[..., Outputs],
    opinion: Callable[..., Outputs],
    magnitudes: Callable[..., Magnitudes],
    **arguments: object,
) -> Oracle:
    """An oracle whose three functions are told where heads stand, if that is among the arguments."""
    told = {name: arguments.pop(name) for name in ("heads_first",) if name in arguments}
    return Oracle(
        op,
        lambda call: program(call, **told),
        lambda call: opinion(call, **told),
        magnitudes=lambda call: magnitudes(call, **told),
        length=_length,
        **arguments,
    )


_LINEAR_IN_V = doubles_with("v", outputs=2)
_LINEAR_IN_STATE = doubles_with("v", "state")
_LINEAR_IN_DO = doubles_with("do")

ORACLES = (
    _oracle(
        "GatedDeltaNetPrefillBTHDFwdOp", _prefill, chunked_prefill, prefill_size,
        heads_first=False, properties=(_LINEAR_IN_V, is_causal(1)),
    ),
    _oracle(
        "GatedDeltaNetPrefillBHTDFwdOp", _prefill, chunked_prefill, prefill_size,
        heads_first=True, properties=(_LINEAR_IN_V, is_causal(2)),
    ),
    _oracle(
        "GatedDeltaNetBTHDFwdOp", _with_terms, chunked_with_terms, with_terms_size,
        heads_first=False, properties=(_LINEAR_IN_V, is_causal(1)),
    ),
    _oracle(
        "GatedDeltaNetBHTDFwdOp", _with_terms, chunked_with_terms, with_terms_size,
        heads_first=True, properties=(_LINEAR_IN_V, is_causal(2)),
    ),
    _oracle(
        "DeltaNetFwdOp", _with_products, chunked_with_products, with_products_size,
        properties=(_LINEAR_IN_V, is_causal(2)),
    ),
    _oracle(
        "GatedDeltaNetDecodeFwdOp", _decode, explicit_transition, decode_size,
        properties=(_LINEAR_IN_STATE,),
    ),
    _oracle(
        "DeltaNetDecodeFwdOp", _decode, explicit_transition, decode_size, properties=(_LINEAR_IN_STATE,)
    ),
    _oracle("GatedDeltaNetBwdOp", _gradients, autograd, gradient_sizes, properties=(_LINEAR_IN_DO,)),
    _oracle("DeltaNetBwdOp", _gradients, autograd, gradient_sizes, properties=(_LINEAR_IN_DO,)),
)  # fmt: skip
