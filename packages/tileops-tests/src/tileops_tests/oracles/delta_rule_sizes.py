"""Delta rules: the magnitude that each output accumulates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Magnitudes
from tileops_tests.oracles.delta_rule_steps import (
    Tokens,
    as_given,
    backward,
    chunks_of,
    in_chunks,
    in_tokens,
    run,
    substituted,
    tokens_of,
)
from tileops_tests.oracles.recurrence import not_rounded


def _greatest(x: list[Tensor]) -> Tensor:
    """[B, H, DV]: the greatest magnitude of each column of states over all tokens."""
    return torch.stack([state.abs().amax(dim=-2) for state in x]).amax(dim=0)


def _norm(x: Tensor) -> Tensor:
    """Along the last axis, which stays: roundoffs of many terms add up like a random walk."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


class Sizes(NamedTuple):
    """Of states, by column [B, H, DV]; |q| and |k| [B, H, L, 1]; of updates [B, H, L, DV]."""

    states: Tensor
    queries: Tensor
    keys: Tensor
    updates: Tensor


def _sizes(tokens: Tokens, states: list[Tensor]) -> Sizes:
    """A roundoff in one token's update is passed on by all later states, at its own size: what is accumulated
    in a state is the greatest update on the way. Keys mix its rows.
    """
    held = _greatest(states)
    queries, keys = _norm(tokens.q), _norm(tokens.k)
    updates = tokens.beta.abs()[..., None] * (tokens.v.abs() + keys * held[:, :, None])
    if tokens.length:
        longest = tokens.k.abs().amax(dim=-1, keepdim=True)
        held = held + (longest * updates).amax(dim=2)
    return Sizes(held, queries, keys, updates)


def prefill_size(call: Call, heads_first: bool) -> Magnitudes:
    tokens = tokens_of(call, heads_first)
    _, steps = run(call.rounded, tokens, tokens.start())
    sizes = _sizes(tokens, [tokens.start(), *(step.state for step in steps)])
    return as_given(sizes.queries * sizes.states[:, :, None], heads_first), sizes.states[:, :, None]


def decode_size(call: Call) -> Magnitudes:
    tokens = tokens_of(call)
    _, steps = run(not_rounded, tokens, call["state"])
    sizes = _sizes(tokens, [call["state"], steps[0].state])
    return (sizes.queries * sizes.states[:, :, None])[:, :, 0], sizes.states[:, :, None]


def _term_sizes(tokens: Tokens, size: int) -> Iterator[Tensor]:
    """Of (I + M)^-1, without and with decays, in tokens: |inverse| (I + |beta| |k| |k|) |inverse|."""
    chunks = chunks_of(tokens, size)
    k, beta = in_chunks(tokens.k, size).abs(), in_chunks(tokens.beta, size).abs()
    products = torch.tril(beta[..., None] * (k @ k.mT))
    for lower in (chunks.plain, chunks.decaying):
        inverse = substituted(lower).abs()
        yield in_tokens(inverse + inverse @ products @ inverse, tokens.length)


def with_terms_size(call: Call, heads_first: bool) -> Magnitudes:
    tokens = tokens_of(call, heads_first)
    o, state = prefill_size(call, heads_first)
    terms = _term_sizes(tokens, call.param("chunk_size"))
    return o, state[:, :, None], *(as_given(term, heads_first) for term in terms)


def with_products_size(call: Call) -> Magnitudes:
    tokens, size = tokens_of(call), call.param("chunk_size")
    o, state = prefill_size(call, heads_first=True)
    chunks, (term, _) = chunks_of(tokens, size), _term_sizes(tokens, size)
    scaled = (in_chunks(term, size) @ x.abs() for x in (chunks.keys, chunks.values))
    products = (in_tokens(x, tokens.length) for x in scaled)
    return o, state[:, :, None], term, term, *products


def gradient_sizes(call: Call) -> Magnitudes:
    back, do = backward(call), call["do"].abs()
    tokens = back.tokens
    if not tokens.length:
        return (None,) * (4 if tokens.g is None else 5)
    starts = list(call["S"].unbind(2))
    sizes = _sizes(tokens, [*starts, *(step.state for step in back.steps)])
    held = sizes.states[:, :, None]
    adds = (tokens.q.abs().amax(dim=-1, keepdim=True) * do).amax(dim=2)
    passed = (_greatest([grad.decayed for grad in back.reverse]) + adds)[:, :, None]
    updates = sizes.keys * passed
    predicted = tokens.beta.abs()[..., None] * updates
    errors = tokens.v.abs() + sizes.keys * held
    q = _norm(held * do)
    k = _norm(passed * sizes.updates + predicted * held)
    g = math.sqrt(tokens.k.shape[-1]) * _norm(held * passed)[..., 0]
    beta = _norm(updates * errors)[..., 0]
    return (q, k, predicted, beta) if tokens.g is None else (q, k, predicted, g, beta)
