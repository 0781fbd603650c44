"""Oracles of gated linear attention (arXiv:2312.06635), token by token.

Per request and head a state S [DK, DV], whose key channels decay each on their own:

    S_t = diag(exp(g_t)) S_(t-1) + k_t v_t^T;  o_t = scale S_t^T q_t

* q, k, g [B, L, H, DK], v, o [B, L, H, DV]; for one token without L. A negative scale is 1 / sqrt(DK).
* Backward: gradients of sum(do * o) + sum(dht * last state), each chunk of `chunk_size` tokens run again
  from the given states h [B, chunks + 1, H, DK, DV].

The second opinion weighs keys of a chunk by the decay between two tokens; that of the backward pass is
autograd's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import accumulate, vector_times
from tileops_tests.oracles.base import Call, Magnitudes, Oracle, Outputs
from tileops_tests.oracles.properties import doubles_with, is_causal
from tileops_tests.oracles.recurrence import Rounding, not_rounded, outer, scaled

# Tokens that the second opinion takes at once: it holds a decay for each pair of them and key channel.
_CHUNK = 16


class Tokens(NamedTuple):
    """A sequence, tokens first: q (scaled), k, decay [L, B, H, DK], v [L, B, H, DV]."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor


def _scale(call: Call) -> float:
    scale = call.param("scale")
    return 1 / math.sqrt(call["q"].shape[-1]) if scale < 0 else scale


def _tokens(call: Call, gate: str = "g") -> Tokens:
    """The call's sequence, or its one token as a sequence."""

    def tokens(x: Tensor) -> Tensor:
        return (x[None] if x.dim() == 3 else x.transpose(0, 1)).contiguous()

    q, k, v, g = (tokens(call[name]) for name in ("q", "k", "v", gate))
    return Tokens(q * _scale(call), k, v, torch.exp(g))


def _states(rounded: Rounding, tokens: Tokens, state: Tensor) -> list[Tensor]:
    """The state behind each token."""
    states = []
    for k, v, decay in zip(scaled(rounded, tokens.k), tokens.v, tokens.decay, strict=True):
        state = decay[..., None] * state + outer(k, v)
        states.append(state)
    return states


def _first(call: Call) -> Tensor:
    """The state before the first token."""
    given = call.get("initial_state")
    if given is not None:
        return given
    batch, _, heads, dk = call["k"].shape
    return call["v"].new_zeros((batch, heads, dk, call["v"].shape[-1]))


def _read(rounded: Rounding, tokens: Tokens, states: list[Tensor]) -> Tensor:
    """o, tokens first."""
    pairs = zip(tokens.q, states, strict=True)
    rows = [vector_times(q, rounded("states", state)) for q, state in pairs]
    return torch.stack(rows) if rows else tokens.v.clone()


def _forward(call: Call) -> Outputs:
    tokens, first = _tokens(call), _first(call)
    states = _states(call.rounded, tokens, first)
    return _read(call.rounded, tokens, states).transpose(0, 1), states[-1] if states else first.clone()


def _decode(call: Call) -> Outputs:
    tokens = _tokens(call, "gk")
    states = _states(not_rounded, tokens, call["state"])
    return _read(not_rounded, tokens, states)[0], states[0]


def _sizes(tokens: Tokens) -> Tokens:
    """The same recurrence on magnitudes: what is added up in states."""
    return Tokens(*(x.abs() for x in tokens))


def _forward_size(call: Call) -> Magnitudes:
    tokens, first = _sizes(_tokens(call)), _first(call).abs()
    states = _states(call.rounded, tokens, first)
    return _read(call.rounded, tokens, states).transpose(0, 1), states[-1] if states else first


def _decode_size(call: Call) -> Magnitudes:
    tokens = _sizes(_tokens(call, "gk"))
    states = _states(not_rounded, tokens, call["state"].abs())
    return _read(not_rounded, tokens, states)[0], states[0]


class Backward(NamedTuple):
    """Per token: its state, what later tokens make the gradient of it, and the whole gradient."""

    tokens: Tokens
    do: Tensor
    states: list[Tensor]
    passed: list[Tensor]
    gradients: list[Tensor]


def _starts(call: Call) -> list[Tensor]:
    """The state before each chunk."""
    starts = [state.contiguous() for state in call["h"].unbind(1)]
    return starts if call.param("has_initial_state") else [torch.zeros_like(starts[0]), *starts[1:]]


def _backward(call: Call, tokens: Tokens, do: Tensor, starts: list[Tensor], later: Tensor) -> Backward:
    states: list[Tensor] = []
    length, size, queries = tokens.k.shape[0], call.param("chunk_size"), scaled(call.rounded, tokens.q)
    for chunk, start in enumerate(range(0, length, size)):
        part = Tokens(*(x[start : start + size] for x in tokens))
        states += _states(call.rounded, part, starts[chunk])
    passed: list[Tensor] = []
    gradients: list[Tensor] = []
    for t in range(length - 1, -1, -1):
        passed.append(later)
        gradients.append(later + outer(queries[t], do[t]))
        later = tokens.decay[t][..., None] * gradients[-1]
    return Backward(tokens, do, states, passed[::-1], gradients[::-1])


def _of_call(call: Call) -> Backward:
    do, dht = call["do"].transpose(0, 1).contiguous(), call["dht"].contiguous()
    return _backward(call, _tokens(call), do, _starts(call), dht)


def _of_magnitudes(call: Call) -> Backward:
    do, dht = call["do"].transpose(0, 1).abs(), call["dht"].abs()
    starts = [state.abs() for state in _starts(call)]
    return _backward(call, _sizes(_tokens(call)), do, starts, dht)


def _gradients_of(call: Call, back: Backward, scale: float, sign: int) -> Outputs:
    """dq, dk, dv, dg, tokens second.

    exp(g) scales rows of the state before it, whose product with its gradient is, row by row,
    dg_t = dg_(t + 1) + q_t dq_t - k_t dk_t, and S * dS behind a chunk's last token. `sign` is that of k dk.
    """
    tokens, length, size = back.tokens, len(back.states), call.param("chunk_size")
    keys, rows = scaled(call.rounded, back.tokens.k), ([], [], [], [])
    for t in range(length - 1, -1, -1):
        state, gradient = (call.rounded("states", x) for x in (back.states[t], back.gradients[t]))
        dq, dk = vector_times(back.do[t], state.mT), vector_times(tokens.v[t], gradient.mT)
        if t == length - 1 or (t + 1) % size == 0:
            dg = accumulate((back.states[t] * back.passed[t]).movedim(-1, 0))
        dg = dg + (tokens.q[t] * dq + sign * tokens.k[t] * dk)
        for row, x in zip(rows, (dq * scale, dk, vector_times(keys[t], gradient), dg), strict=True):
            row.append(x)
    shapes = (tokens.q, tokens.k, tokens.v, tokens.decay)
    stacked = (
        torch.stack(row[::-1]) if row else like.clone() for row, like in zip(rows, shapes, strict=True)
    )
    return tuple(x.transpose(0, 1) for x in stacked)


def _gradients(call: Call) -> Outputs:
    return _gradients_of(call, _of_call(call), _scale(call), -1)


def _gradient_sizes(call: Call) -> Magnitudes:
    return _gradients_of(call, _of_magnitudes(call), abs(_scale(call)), 1)


# Second opinions.


def _whole_chunk(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """o [B, C, H, DV] of a chunk, q being scaled, and the state behind it."""
    total = g.cumsum(dim=1)
    distance = total[:, :, None] - total[:, None]
    later = torch.ones(g.shape[1], g.shape[1], dtype=torch.bool, device=g.device).triu(1)
    weights = torch.exp(distance.masked_fill(later[None, :, :, None, None], -math.inf))
    scores = torch.einsum("bihd,bjhd,bijhd->bhij", q, k, weights)
    o = torch.einsum("bhij,bjhv->bihv", scores, v)
    o = o + torch.einsum("bihd,bhdv->bihv", q * torch.exp(total), state)
    left = torch.exp(total[:, -1:] - total)
    added = torch.einsum("bjhd,bjhv->bhdv", k * left, v)
    return o, torch.exp(total[:, -1])[..., None] * state + added


def _by_chunks(call: Call) -> Outputs:
    q, k, v, g = (call[name] for name in ("q", "k", "v", "g"))
    q, state, outputs = q * _scale(call), _first(call), []
    for start in range(0, q.shape[1], _CHUNK):
        part = (x[:, start : start + _CHUNK] for x in (q, k, v, g))
        o, state = _whole_chunk(*part, state)
        outputs.append(o)
    return torch.cat(outputs, dim=1) if outputs else v.clone(), state


def _one_token(call: Call) -> Outputs:
    """As a sequence of length 1, by the forward pass's second opinion."""
    given = {name: call[name][:, None] for name in ("q", "k", "v")}
    given |= {"g": call["gk"][:, None], "initial_state": call["state"]}
    o, state = _by_chunks(Call(given, call.params, call.dtype))
    return o[:, 0], state


def _autograd(call: Call) -> Outputs:
    """Vector-Jacobian products of whole chunks, last chunk first."""
    inputs = {name: call[name] for name in ("q", "k", "v", "g")}
    size, do, starts, later = call.param("chunk_size"), call["do"], _starts(call), call["dht"]
    gradients = {name: torch.zeros_like(x) for name, x in inputs.items()}
    for chunk, start in reversed(list(enumerate(range(0, do.shape[1], size)))):
        part = slice(start, start + size)
        leaves = {name: x[:, part].detach().requires_grad_() for name, x in inputs.items()}
        state = starts[chunk].detach().requires_grad_()
        with torch.enable_grad():
            results = _whole_chunk(leaves["q"] * _scale(call), *list(leaves.values())[1:], state)
        *found, later = torch.autograd.grad(results, (*leaves.values(), state), (do[:, part], later))
        for name, gradient in zip(inputs, found, strict=True):
            gradients[name][:, part] = gradient
    return tuple(gradients.values())


def _length(call: Call) -> int:
    """Tokens that pass on a state, and terms of a product with it."""
    dk, dv = call["k"].shape[-1], call["v"].shape[-1]
    return max(dk, dv) + (call["k"].shape[1] if call["k"].dim() == 4 else 1)


def _oracle(
    op: str,
    program: Callable[[Call], Outputs],
    opinion: Callable[[Call], Outputs],
    magnitudes: Callable[[Call], Magnitudes],
    *properties: Callable[..., bool],
) -> Oracle:
    return Oracle(op, program, opinion, magnitudes=magnitudes, length=_length, properties=properties)


ORACLES = (
    _oracle(
        "GLAFwdOp", _forward, _by_chunks, _forward_size, doubles_with("v", "initial_state"), is_causal(1)
    ),
    _oracle("GLADecodeFwdOp", _decode, _one_token, _decode_size, doubles_with("v", "state")),
    _oracle("GLABwdOp", _gradients, _autograd, _gradient_sizes, doubles_with("do", "dht")),
)
