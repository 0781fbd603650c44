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

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import contract_as_step, vector_times
from tileops_tests.oracles.base import Call, Magnitudes, Oracle, Outputs
from tileops_tests.oracles.properties import doubles_with, is_causal

# Tokens that the second opinion takes at once where the op has no chunks of its own.
_CHUNK = 32


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


# Rounds a named intermediate value as the entry allows.
Rounding = Callable[[str, Tensor], Tensor]


def _not_rounded(name: str, x: Tensor) -> Tensor:
    """For entries that name no intermediate values."""
    return x


class Step(NamedTuple):
    """What one token does: decayed state S', prediction S'^T k, update u and new state."""

    decayed: Tensor
    predicted: Tensor
    update: Tensor
    state: Tensor


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :, None] * b[..., None, :]


def _step(rounded: Rounding, tokens: Tokens, t: int, state: Tensor) -> Step:
    k, beta = tokens.k[:, :, t], tokens.beta[:, :, t, None]
    decayed = state if tokens.g is None else torch.exp(tokens.g[:, :, t, None, None]) * state
    predicted = vector_times(k, rounded("states", decayed))
    update = rounded("scaled_tokens", beta * (tokens.v[:, :, t] - predicted))
    return Step(decayed, predicted, update, decayed + _outer(k, update))


def _tokens(call: Call, heads_first: bool = True) -> Tokens:
    """The call's sequence, or its one token as a sequence of length 1."""

    def tokens(x: Tensor) -> Tensor:
        if call["q"].dim() == 3:
            return x[:, :, None]
        return (x if heads_first else x.transpose(1, 2)).contiguous()

    given = (call.get(name) for name in Tokens._fields)
    return Tokens(*(None if x is None else tokens(x) for x in given))


def _run(rounded: Rounding, tokens: Tokens, state: Tensor) -> tuple[Tensor, list[Step]]:
    """o [B, H, L, DV] and every step, from a state."""
    steps, outputs = [], []
    for t in range(tokens.length):
        steps.append(_step(rounded, tokens, t, state))
        state = steps[-1].state
        outputs.append(vector_times(tokens.q[:, :, t], rounded("states", state)))
    return torch.stack(outputs, dim=2) if outputs else tokens.v.clone(), steps


def _prefill(call: Call, heads_first: bool) -> Outputs:
    tokens = _tokens(call, heads_first)
    o, steps = _run(call.rounded, tokens, tokens.start())
    return _as_given(o, heads_first), steps[-1].state if steps else tokens.start()


def _as_given(x: Tensor, heads_first: bool) -> Tensor:
    return x if heads_first else x.transpose(1, 2)


def _decode(call: Call) -> Outputs:
    o, steps = _run(_not_rounded, _tokens(call), call["state"])
    return o[:, :, 0], steps[0].state


# Terms of a chunk.


def _in_chunks(x: Tensor, size: int) -> Tensor:
    """[B, H, L, ...] as [B, H, chunks, size, ...], filled up with zeros."""
    chunks = -(-x.shape[2] // size)
    padded = x.new_zeros((*x.shape[:2], chunks * size, *x.shape[3:]))
    padded[:, :, : x.shape[2]] = x
    return padded.reshape(*x.shape[:2], chunks, size, *x.shape[3:])


def _in_tokens(x: Tensor, length: int) -> Tensor:
    """The inverse of `_in_chunks`."""
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


def _chunks(tokens: Tokens, size: int) -> Chunks:
    k, v = _in_chunks(tokens.k, size), _in_chunks(tokens.v, size)
    beta = _in_chunks(tokens.beta, size)[..., None]
    plain = decaying = torch.tril(beta * contract_as_step(k, k.mT), -1)
    if tokens.g is not None:
        total = _running(_in_chunks(tokens.g, size))
        decaying = plain * torch.exp(torch.tril(total[..., :, None] - total[..., None, :], -1))
    return Chunks(plain, decaying, beta * k, beta * v)


def _substituted(lower: Tensor) -> Tensor:
    """(I + lower)^-1, row by row: row_i = e_i - sum_(j < i) lower_ij row_j."""
    inverse = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device).expand_as(lower).clone()
    for i in range(1, lower.shape[-1]):
        inverse[..., i, :] -= vector_times(lower[..., i, :i].clone(), inverse[..., :i, :].clone())
    return inverse


def _states(tokens: Tokens, steps: list[Step], size: int) -> Tensor:
    """[B, H, chunks + 1, DK, DV]: before each chunk, and the last one."""
    starts = [tokens.start(), *(step.state for step in steps)]
    return torch.stack([*starts[: tokens.length : size], starts[-1]], dim=2)


def _with_terms(call: Call, heads_first: bool) -> Outputs:
    """o, S, Aw and Au."""
    tokens, size = _tokens(call, heads_first), call.param("chunk_size")
    o, steps = _run(call.rounded, tokens, tokens.start())
    chunks = _chunks(tokens, size)
    terms = (_in_tokens(_substituted(lower), tokens.length) for lower in (chunks.plain, chunks.decaying))
    aw, au = (_as_given(term, heads_first) for term in terms)
    return _as_given(o, heads_first), _states(tokens, steps, size), aw, au


def _with_products(call: Call) -> Outputs:
    """o, S, Aw, Au, w and u of the rule without decays."""
    tokens, size = _tokens(call), call.param("chunk_size")
    o, steps = _run(call.rounded, tokens, tokens.start())
    chunks = _chunks(tokens, size)
    inverse = _substituted(chunks.plain)
    w, u = (contract_as_step(inverse, x) for x in (chunks.keys, chunks.values))
    inverse, w, u = (_in_tokens(x, tokens.length) for x in (inverse, w, u))
    return o, _states(tokens, steps, size), inverse, inverse.clone(), w, u


# Backward.


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


def _backward(call: Call) -> Backward:
    tokens, size, do = _tokens(call), call.param("chunk_size"), call["do"].contiguous()
    steps: list[Step] = []
    for chunk, start in enumerate(range(0, tokens.length, size)):
        steps += _run(call.rounded, tokens.part(start, start + size), call["S"][:, :, chunk].contiguous())[1]
    reverse: list[Reverse] = []
    later = tokens.start()
    for t in range(tokens.length - 1, -1, -1):
        k = tokens.k[:, :, t]
        state = later + _outer(tokens.q[:, :, t], do[:, :, t])
        update = vector_times(k, call.rounded("states", state))
        predicted = call.rounded("scaled_tokens", -tokens.beta[:, :, t, None] * update)
        decayed = state + _outer(k, predicted)
        later = decayed if tokens.g is None else torch.exp(tokens.g[:, :, t, None, None]) * decayed
        reverse.append(Reverse(state, decayed, update, predicted))
    return Backward(tokens, steps, reverse[::-1])


def _sum(x: Tensor) -> Tensor:
    """Over the last axis, every partial sum in the tensor's dtype."""
    return vector_times(torch.ones_like(x), x[..., None])[..., 0]


def _gradients(call: Call) -> Outputs:
    """dq, dk, dv, dg (with decays) and dbeta."""
    back, do = _backward(call), call["do"].contiguous()
    tokens, named = back.tokens, {"q": [], "k": [], "v": [], "g": [], "beta": []}
    for t, (step, grad) in enumerate(zip(back.steps, back.reverse, strict=True)):
        beta, error = tokens.beta[:, :, t, None], tokens.v[:, :, t] - step.predicted
        state, decayed, later = (call.rounded("states", x) for x in (step.state, step.decayed, grad.state))
        named["q"].append(vector_times(do[:, :, t], state.mT))
        named["k"].append(vector_times(step.update, later.mT) + vector_times(grad.predicted, decayed.mT))
        named["v"].append(beta * grad.update)
        named["g"].append(_sum((decayed * grad.decayed).flatten(-2)))
        named["beta"].append(_sum(grad.update * error))
    if tokens.g is None:
        del named["g"]
    shapes = {"q": tokens.q, "k": tokens.k, "v": tokens.v, "g": tokens.g, "beta": tokens.beta}
    return tuple(torch.stack(x, dim=2) if x else shapes[name].clone() for name, x in named.items())


# Magnitudes.


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


def _prefill_size(call: Call, heads_first: bool) -> Magnitudes:
    tokens = _tokens(call, heads_first)
    _, steps = _run(call.rounded, tokens, tokens.start())
    sizes = _sizes(tokens, [tokens.start(), *(step.state for step in steps)])
    return _as_given(sizes.queries * sizes.states[:, :, None], heads_first), sizes.states[:, :, None]


def _decode_size(call: Call) -> Magnitudes:
    tokens = _tokens(call)
    _, steps = _run(_not_rounded, tokens, call["state"])
    sizes = _sizes(tokens, [call["state"], steps[0].state])
    return (sizes.queries * sizes.states[:, :, None])[:, :, 0], sizes.states[:, :, None]


def _term_sizes(tokens: Tokens, size: int) -> Iterator[Tensor]:
    """Of (I + M)^-1, without and with decays, in tokens: |inverse| (I + |beta| |k| |k|) |inverse|."""
    chunks = _chunks(tokens, size)
    k, beta = _in_chunks(tokens.k, size).abs(), _in_chunks(tokens.beta, size).abs()
    products = torch.tril(beta[..., None] * (k @ k.mT))
    for lower in (chunks.plain, chunks.decaying):
        inverse = _substituted(lower).abs()
        yield _in_tokens(inverse + inverse @ products @ inverse, tokens.length)


def _with_terms_size(call: Call, heads_first: bool) -> Magnitudes:
    tokens = _tokens(call, heads_first)
    o, state = _prefill_size(call, heads_first)
    terms = _term_sizes(tokens, call.param("chunk_size"))
    return o, state[:, :, None], *(_as_given(term, heads_first) for term in terms)


def _with_products_size(call: Call) -> Magnitudes:
    tokens, size = _tokens(call), call.param("chunk_size")
    o, state = _prefill_size(call, heads_first=True)
    chunks, (term, _) = _chunks(tokens, size), _term_sizes(tokens, size)
    scaled = (_in_chunks(term, size) @ x.abs() for x in (chunks.keys, chunks.values))
    products = (_in_tokens(x, tokens.length) for x in scaled)
    return o, state[:, :, None], term, term, *products


def _gradient_sizes(call: Call) -> Magnitudes:
    back, do = _backward(call), call["do"].abs()
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


# Second opinions: a chunk as a whole.


def _solve(lower: Tensor, right: Tensor) -> Tensor:
    """(I + lower)^-1 right."""
    eye = torch.eye(lower.shape[-1], dtype=lower.dtype, device=lower.device)
    return torch.linalg.solve_triangular(eye + lower, right, upper=False, unitriangular=True)


def _whole_chunk(tokens: Tokens, state: Tensor) -> tuple[Tensor, Tensor]:
    """o of a chunk and the state behind it."""
    q, k, v, beta, g = tokens
    total = torch.zeros_like(beta) if g is None else g.cumsum(dim=-1)
    between = torch.exp((total[..., :, None] - total[..., None, :]).tril())
    kept = torch.exp(total)[..., None]
    lower = (beta[..., None] * (k @ k.mT) * between).tril(-1)
    updates = _solve(lower, beta[..., None] * (v - kept * (k @ state)))
    o = (kept * q) @ state + ((q @ k.mT) * between).tril() @ updates
    left = torch.exp(total[..., -1:] - total)[..., None]
    return o, torch.exp(total[..., -1])[..., None, None] * state + (left * k).mT @ updates


def _by_chunks(tokens: Tokens, size: int) -> tuple[Tensor, list[Tensor]]:
    """o, and the states before each chunk and behind the last."""
    states, outputs = [tokens.start()], []
    for start in range(0, tokens.length, size):
        o, state = _whole_chunk(tokens.part(start, start + size), states[-1])
        outputs.append(o)
        states.append(state)
    return torch.cat(outputs, dim=2) if outputs else tokens.v.clone(), states


def _chunked_prefill(call: Call, heads_first: bool) -> Outputs:
    o, states = _by_chunks(_tokens(call, heads_first), _CHUNK)
    return _as_given(o, heads_first), states[-1]


def _chunked_terms(tokens: Tokens, size: int, decaying: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(I + M)^-1 [B, H, L, size], and it times beta k and beta v."""
    inverse = tokens.k.new_zeros((*tokens.k.shape[:3], size))
    keys, values = torch.zeros_like(tokens.k), torch.zeros_like(tokens.v)
    for start in range(0, tokens.length, size):
        part = tokens.part(start, start + size)
        lower = part.beta[..., None] * (part.k @ part.k.mT)
        if decaying:
            total = part.g.cumsum(dim=-1)
            lower = lower * torch.exp((total[..., :, None] - total[..., None, :]).tril())
        lower, chunk = lower.tril(-1), slice(start, start + part.length)
        eye = torch.eye(part.length, dtype=lower.dtype, device=lower.device)
        inverse[:, :, chunk, : part.length] = _solve(lower, eye.expand_as(lower))
        keys[:, :, chunk] = _solve(lower, part.beta[..., None] * part.k)
        values[:, :, chunk] = _solve(lower, part.beta[..., None] * part.v)
    return inverse, keys, values


def _chunked_with_terms(call: Call, heads_first: bool) -> Outputs:
    tokens, size = _tokens(call, heads_first), call.param("chunk_size")
    o, states = _by_chunks(tokens, size)
    terms = (_chunked_terms(tokens, size, decaying)[0] for decaying in (False, True))
    return _as_given(o, heads_first), torch.stack(states, dim=2), *(_as_given(x, heads_first) for x in terms)


def _chunked_with_products(call: Call) -> Outputs:
    tokens, size = _tokens(call), call.param("chunk_size")
    o, states = _by_chunks(tokens, size)
    inverse, w, u = _chunked_terms(tokens, size, decaying=False)
    return o, torch.stack(states, dim=2), inverse, inverse, w, u


def _explicit_transition(call: Call) -> Outputs:
    """new_state = (I - beta k k^T) exp(g) state + beta k v^T, the transition written out as a matrix."""
    q, k, v, beta, state = (call[name] for name in ("q", "k", "v", "beta", "state"))
    eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    transition = eye - torch.einsum("bh,bhi,bhj->bhij", beta, k, k)
    if call.get("g") is not None:
        transition = transition * torch.exp(call["g"])[..., None, None]
    new_state = transition @ state + torch.einsum("bh,bhi,bhj->bhij", beta, k, v)
    return torch.einsum("bhi,bhij->bhj", q, new_state), new_state


def _autograd(call: Call) -> Outputs:
    """Vector-Jacobian products of whole chunks, last chunk first."""
    tokens, size, do = _tokens(call), call.param("chunk_size"), call["do"]
    gradients = {name: torch.zeros_like(x) for name, x in tokens._asdict().items() if x is not None}
    later = tokens.start()
    for chunk, start in reversed(list(enumerate(range(0, tokens.length, size)))):
        state = call["S"][:, :, chunk].detach().requires_grad_()
        part = tokens.part(start, start + size)
        leaves = {name: part._asdict()[name].detach().requires_grad_() for name in gradients}
        with torch.enable_grad():
            results = _whole_chunk(part._replace(**leaves), state)
        sought = (*leaves.values(), state)
        *found, later = torch.autograd.grad(results, sought, (do[:, :, start : start + size], later))
        for name, gradient in zip(gradients, found, strict=True):
            gradients[name][:, :, start : start + size] = gradient
    return tuple(gradients[name] for name in ("q", "k", "v", "g", "beta") if name in gradients)


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
        "GatedDeltaNetPrefillBTHDFwdOp", _prefill, _chunked_prefill, _prefill_size,
        heads_first=False, properties=(_LINEAR_IN_V, is_causal(1)),
    ),
    _oracle(
        "GatedDeltaNetPrefillBHTDFwdOp", _prefill, _chunked_prefill, _prefill_size,
        heads_first=True, properties=(_LINEAR_IN_V, is_causal(2)),
    ),
    _oracle(
        "GatedDeltaNetBTHDFwdOp", _with_terms, _chunked_with_terms, _with_terms_size,
        heads_first=False, properties=(_LINEAR_IN_V, is_causal(1)),
    ),
    _oracle(
        "GatedDeltaNetBHTDFwdOp", _with_terms, _chunked_with_terms, _with_terms_size,
        heads_first=True, properties=(_LINEAR_IN_V, is_causal(2)),
    ),
    _oracle(
        "DeltaNetFwdOp", _with_products, _chunked_with_products, _with_products_size,
        properties=(_LINEAR_IN_V, is_causal(2)),
    ),
    _oracle(
        "GatedDeltaNetDecodeFwdOp", _decode, _explicit_transition, _decode_size,
        properties=(_LINEAR_IN_STATE,),
    ),
    _oracle(
        "DeltaNetDecodeFwdOp", _decode, _explicit_transition, _decode_size, properties=(_LINEAR_IN_STATE,)
    ),
    _oracle("GatedDeltaNetBwdOp", _gradients, _autograd, _gradient_sizes, properties=(_LINEAR_IN_DO,)),
    _oracle("DeltaNetBwdOp", _gradients, _autograd, _gradient_sizes, properties=(_LINEAR_IN_DO,)),
)  # fmt: skip
