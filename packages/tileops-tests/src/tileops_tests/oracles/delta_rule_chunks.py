"""Delta rules, second opinions: a chunk as a whole, by triangular systems; gradients by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Outputs
from tileops_tests.oracles.delta_rule_steps import Tokens, as_given, tokens_of

# Tokens that are taken at once where the op has no chunks of its own.
_CHUNK = 32


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


def chunked_prefill(call: Call, heads_first: bool) -> Outputs:
    o, states = _by_chunks(tokens_of(call, heads_first), _CHUNK)
    return as_given(o, heads_first), states[-1]


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


def chunked_with_terms(call: Call, heads_first: bool) -> Outputs:
    tokens, size = tokens_of(call, heads_first), call.param("chunk_size")
    o, states = _by_chunks(tokens, size)
    terms = (_chunked_terms(tokens, size, decaying)[0] for decaying in (False, True))
    return as_given(o, heads_first), torch.stack(states, dim=2), *(as_given(x, heads_first) for x in terms)


def chunked_with_products(call: Call) -> Outputs:
    tokens, size = tokens_of(call), call.param("chunk_size")
    o, states = _by_chunks(tokens, size)
    inverse, w, u = _chunked_terms(tokens, size, decaying=False)
    return o, torch.stack(states, dim=2), inverse, inverse, w, u


def explicit_transition(call: Call) -> Outputs:
    """new_state = (I - beta k k^T) exp(g) state + beta k v^T, the transition written out as a matrix."""
    q, k, v, beta, state = (call[name] for name in ("q", "k", "v", "beta", "state"))
    eye = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    transition = eye - torch.einsum("bh,bhi,bhj->bhij", beta, k, k)
    if call.get("g") is not None:
        transition = transition * torch.exp(call["g"])[..., None, None]
    new_state = transition @ state + torch.einsum("bh,bhi,bhj->bhij", beta, k, v)
    return torch.einsum("bhi,bhij->bhj", q, new_state), new_state


def autograd(call: Call) -> Outputs:
    """Vector-Jacobian products of whole chunks, last chunk first."""
    tokens, size, do = tokens_of(call), call.param("chunk_size"), call["do"]
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
