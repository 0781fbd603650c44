"""Delta rules token by token: what a token does to a state, the terms of a chunk, and the way back.

The formulas stand in `tileops_tests.oracles.delta_rule`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import contract_as_step, vector_times
from tileops_tests.oracles.base import Call
from tileops_tests.oracles.recurrence import Rounding, outer, scaled


class Tokens(NamedTuple):
    """Heads before tokens: q, k [B, H, L, DK], v [B, H, L, DV], beta, g [B, H, L] (None: no decay)."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    g: Tensor | None

    @property
    def length(self) -> int:
        return self.q.shape[2]

    def part(self, start: int, stop: int) -> Tokens:
        """Tokens start .. stop - 1."""
        return Tokens(*(None if x is None else x[:, :, start:stop] for x in self))

    def start(self) -> Tensor:
        """The zero state."""
        batch, heads, _, dk = self.k.shape
        return self.k.new_zeros((batch, heads, dk, self.v.shape[-1]))


class Step(NamedTuple):
    """What one token does: decayed state S', prediction S'^T k, update u and new state."""

    decayed: Tensor
    predicted: Tensor
    update: Tensor
    state: Tensor


def _step(rounded: Rounding, tokens: Tokens, t: int, state: Tensor) -> Step:
    k, beta = scaled(rounded, tokens.k[:, :, t]), tokens.beta[:, :, t, None]
    decayed = state if tokens.g is None else torch.exp(tokens.g[:, :, t, None, None]) * state
    predicted = vector_times(k, rounded("states", decayed))
    update = rounded("scaled_tokens", beta * (tokens.v[:, :, t] - predicted))
    return Step(decayed, predicted, update, decayed + outer(k, update))


def tokens_of(call: Call, heads_first: bool = True) -> Tokens:
    """The call's sequence, or its one token as a sequence of length 1."""

    def tokens(x: Tensor) -> Tensor:
        if call["q"].dim() == 3:
            return x[:, :, None]
        return (x if heads_first else x.transpose(1, 2)).contiguous()

    given = (call.get(name) for name in Tokens._fields)
    return Tokens(*(None if x is None else tokens(x) for x in given))


def as_given(x: Tensor, heads_first: bool) -> Tensor:
    """Heads and tokens back in the order of the call."""
    return x if heads_first else x.transpose(1, 2)


def run(rounded: Rounding, tokens: Tokens, state: Tensor) -> tuple[Tensor, list[Step]]:
    """o [B, H, L, DV] and every step, from a state."""
    steps, outputs = [], []
    for t in range(tokens.length):
        steps.append(_step(rounded, tokens, t, state))
        state = steps[-1].state
        outputs.append(vector_times(tokens.q[:, :, t], rounded("states", state)))
    return torch.stack(outputs, dim=2) if outputs else tokens.v.clone(), steps


def in_chunks(x: Tensor, size: int) -> Tensor:
    """[B, H, L, ...] as [B, H, chunks, size, ...], filled up with zeros."""
    chunks = -(-x.shape[2] // size)
    padded = x.new_zeros((*x.shape[:2], chunks * size, *x.shape[3:]))
    padded[:, :, : x.shape[2]] = x
    return padded.reshape(*x.shape[:2], chunks, size, *x.shape[3:])


def in_tokens(x: Tensor, length: int) -> Tensor:
    """The inverse of `in_chunks`."""
    return x.flatten(2, 3)[:, :, :length]


def _running(x: Tensor) -> Tensor:
    """Sums along the last axis, one addition after another."""
    sums = [x[..., 0]]
    for i in range(1, x.shape[-1]):
        sums.append(sums[-1] + x[..., i])
    return torch.stack(sums, dim=-1)


class Chunks(NamedTuple):
    """M, and M with decays, of every chunk [B, H, chunks, C, C]; beta k and beta v [B, H, chunks, C, D]."""

    plain: Tensor
    decaying: Tensor
    keys: Tensor
    values: Tensor


def chunks_of(tokens: Tokens, size: int) -> Chunks:
    """The terms of every chunk."""
    k, v = in_chunks(tokens.k, size), in_chunks(tokens.v, size)
    beta = in_chunks(tokens.beta, size)[..., None]
    plain = decaying = torch.tril(beta * contract_as_step(k, k.mT), -1)
    if tokens.g is not None:
        total = _running(in_chunks(tokens.g, size))
        decaying = plain * torch.exp(torch.tril(total[..., :, None] - total[..., None, :], -1))
    return Chunks(plain, decaying, beta * k, beta * v)


def substituted(lower: Tensor) -> Tensor:
    """(I + lower)^-1, row by row: row_i = e_i - sum_(j < i) lower_ij row_j."""
    inverse = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device).expand_as(lower).clone()
    for i in range(1, lower.shape[-1]):
        inverse[..., i, :] -= vector_times(lower[..., i, :i].clone(), inverse[..., :i, :].clone())
    return inverse


class Reverse(NamedTuple):
    """Gradients at one token: of its state, decayed state, update and prediction."""

    state: Tensor
    decayed: Tensor
    update: Tensor
    predicted: Tensor


class Backward(NamedTuple):
    """Steps of every token, run chunk by chunk from the given states, and their gradients."""

    tokens: Tokens
    steps: list[Step]
    reverse: list[Reverse]


def backward(call: Call) -> Backward:
    """A backward pass up to the gradients of states: chunks forwards, then tokens backwards."""
    tokens, size, do = tokens_of(call), call.param("chunk_size"), call["do"].contiguous()
    steps: list[Step] = []
    for chunk, start in enumerate(range(0, tokens.length, size)):
        steps += run(call.rounded, tokens.part(start, start + size), call["S"][:, :, chunk].contiguous())[1]
    reverse: list[Reverse] = []
    later = tokens.start()
    for t in range(tokens.length - 1, -1, -1):
        k = tokens.k[:, :, t]
        state = later + outer(tokens.q[:, :, t], do[:, :, t])
        update = vector_times(k, call.rounded("states", state))
        predicted = call.rounded("scaled_tokens", -tokens.beta[:, :, t, None] * update)
        decayed = state + outer(k, predicted)
        later = decayed if tokens.g is None else torch.exp(tokens.g[:, :, t, None, None]) * decayed
        reverse.append(Reverse(state, decayed, update, predicted))
    return Backward(tokens, steps, reverse[::-1])


def sum_of(x: Tensor) -> Tensor:
    """Over the last axis, every partial sum in the tensor's dtype."""
    return vector_times(torch.ones_like(x), x[..., None])[..., 0]
