"""Oracles of the steps of selective state spaces in chunks (Mamba-2, arXiv:2405.21060).

Chunks have Q tokens; c is a chunk, l and m tokens in it, h a head that reads group h // (H / G) of B and C.
Past the last token everything is 0.

* DaCumsum: d [B, H, c, l] = dt + dt_bias, through softplus if dt_softplus, then clamped; dA_cumsum[l] = sum
  of A d over m <= l.
* CBProducer: cb [B, c, G, l, m] = C_l . B_m.
* ChunkState: states [B, c, H, P, N] = sum_l exp(dA_cumsum[Q - 1] - dA_cumsum[l]) dt_l x_l B_l^T, over tokens
  of the request that the chunk's last token belongs to.
* StatePassing: out[0] = initial states or 0, out[c + 1] = exp(dA_chunk_cumsum[c]) out[c] + states[c].
* ChunkScan: y_l = exp(dA_cumsum[l]) prev_states C_l + sum_(m <= l) cb[l, m] exp(dA_cumsum[l] - dA_cumsum[m])
  dt_m x_m.

Programs go token by token or chunk by chunk; second opinions write sums over pairs as products of matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import contract_as_step
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close, doubles_with


def per_head(x: Tensor, heads: int, axis: int = -2) -> Tensor:
    """Groups repeated so that there is one for each head."""
    return x.repeat_interleave(heads // x.shape[axis], dim=axis)


def _in_chunks(x: Tensor, size: int) -> Tensor:
    """[B, S, ...] as [B, chunks, size, ...], filled up with zeros."""
    chunks = -(-x.shape[1] // size)
    padded = x.new_zeros((x.shape[0], chunks * size, *x.shape[2:]))
    padded[:, : x.shape[1]] = x
    return padded.reshape(x.shape[0], chunks, size, *x.shape[2:])


def magnitudes_of(call: Call, *names: str) -> Call:
    """The call with magnitudes of the named inputs, which no exponential reads."""
    given = {name: None if x is None else x.abs() if name in names else x for name, x in call.given.items()}
    return Call(given, call.params, call.dtype)


# Steps.


def step_sizes(call: Call, low: float, high: float) -> Tensor:
    """d [B, S, H]."""
    step, bias = call["dt"], call.get("dt_bias")
    if bias is not None:
        step = step + bias
    if call.param("dt_softplus"):
        step = torch.clamp(step, min=0) + torch.log1p(torch.exp(-torch.abs(step)))
    return torch.clamp(step, low, high)


def _raw_size(call: Call) -> Tensor:
    """What is added up before a softplus, at least 1 behind it: relative errors stay relative."""
    bias = call.get("dt_bias")
    size = torch.abs(call["dt"]) if bias is None else torch.abs(call["dt"]) + torch.abs(bias)
    return 1 + size if call.param("dt_softplus") else size


def step_magnitude(call: Call, low: float, high: float) -> Tensor:
    """What is added up in a step."""
    if call.param("dt_softplus"):
        return step_sizes(call, low, high) * _raw_size(call)
    return _raw_size(call)


def _heads_first(x: Tensor, size: int) -> Tensor:
    """[B, S, H] as [B, H, chunks, size]."""
    return _in_chunks(x, size).permute(0, 3, 1, 2)


def _sums(terms: Tensor) -> Tensor:
    """Along the last axis, one addition after another."""
    sums = [terms[..., 0]]
    for i in range(1, terms.shape[-1]):
        sums.append(sums[-1] + terms[..., i])
    return torch.stack(sums, dim=-1)


def _da_cumsum(call: Call) -> Outputs:
    step = step_sizes(call, call.param("dt_min"), call.param("dt_max"))
    size = call.param("chunk_len")
    return _heads_first(step, size), _sums(_heads_first(step * call["A"], size))


def _da_cumsum_size(call: Call) -> Magnitudes:
    step = step_magnitude(call, call.param("dt_min"), call.param("dt_max"))
    size = call.param("chunk_len")
    return _heads_first(step, size), _sums(_heads_first(step * torch.abs(call["A"]), size))


def torch_da_cumsum(call: Call) -> Outputs:
    """DaCumsum by torch's own sums and a softplus of another form."""
    step = call["dt"] + (0 if call.get("dt_bias") is None else call["dt_bias"])
    if call.param("dt_softplus"):
        step = torch.logaddexp(step, torch.zeros_like(step))
    step = step.clamp(call.param("dt_min"), call.param("dt_max"))
    size = call.param("chunk_len")
    batch, length, heads = step.shape
    chunks = -(-length // size)
    padded = torch.nn.functional.pad(step, (0, 0, 0, chunks * size - length))
    chunked = padded.reshape(batch, chunks, size, heads).permute(0, 3, 1, 2)
    return chunked, (chunked * call["A"][:, None, None]).cumsum(dim=-1)


# Products within chunks.


def _cb(call: Call) -> Outputs:
    c, b = (_in_chunks(call[name], call.param("chunk_len")).transpose(2, 3) for name in ("C_mat", "B_mat"))
    products = contract_as_step(c, b.mT)
    return (products.masked_fill(~_real_pairs(call, call.param("chunk_len"), call["C_mat"].shape[1]), 0),)


def _real_pairs(call: Call, size: int, length: int) -> Tensor:
    """Bool [1, chunks, 1, size, size]: both tokens exist."""
    chunks = -(-length // size)
    real = (torch.arange(chunks * size, device=call["C_mat"].device) < length).reshape(1, chunks, 1, size)
    return real[..., :, None] & real[..., None, :]


def chunk_by_chunk_cb(call: Call) -> Outputs:
    """CBProducer, one chunk after another, each as long as it is."""
    c, b, size = call["C_mat"], call["B_mat"], call.param("chunk_len")
    batch, length, groups, _ = c.shape
    out = c.new_zeros((batch, -(-length // size), groups, size, size))
    for chunk, start in enumerate(range(0, length, size)):
        part = torch.einsum("blgn,bmgn->bglm", c[:, start : start + size], b[:, start : start + size])
        out[:, chunk, :, : part.shape[-2], : part.shape[-1]] = part
    return (out,)


# States of chunks.


class Chunks(NamedTuple):
    """Tokens last but for their elements: x [B, c, H, Q, P], B or C by head [B, c, H, Q, N], dt and dA_cumsum
    [B, c, H, Q], which tokens add to the chunk's state (None: all).
    """

    x: Tensor
    vectors: Tensor
    dt: Tensor
    total: Tensor
    counted: Tensor | None = None


def _chunks(call: Call, vectors: str) -> Chunks:
    size, heads = call["dt"].shape[-1], call["x"].shape[2]
    x = _in_chunks(call["x"], size).transpose(2, 3)
    by_head = _in_chunks(per_head(call[vectors], heads), size).transpose(2, 3)
    dt, total = (call[name].transpose(1, 2).contiguous() for name in ("dt", "dA_cumsum"))
    numbers, counted = call.get("seq_idx"), None
    if numbers is not None:
        length = numbers.shape[1]
        ends = torch.arange(size - 1, x.shape[1] * size, size, device=numbers.device).clamp(max=length - 1)
        counted = (_in_chunks(numbers, size) == numbers[:, ends][..., None])[:, :, None]
    return Chunks(x, by_head, dt, total, counted)


def _chunk_states(call: Call) -> Outputs:
    chunks = _chunks(call, "Bmat")
    weights = torch.exp(chunks.total[..., -1:] - chunks.total) * chunks.dt
    if chunks.counted is not None:
        weights = weights.masked_fill(~chunks.counted, 0)
    states = chunks.x.new_zeros((*chunks.x.shape[:3], chunks.x.shape[-1], chunks.vectors.shape[-1]))
    for token in range(weights.shape[-1]):
        scaled = call.rounded("scaled_tokens", weights[..., token, None] * chunks.x[..., token, :])
        states = states + scaled[..., :, None] * chunks.vectors[..., token, None, :]
    return (states,)


def chunk_states_as_product(call: Call) -> Outputs:
    """ChunkState as one product over tokens."""
    x, b, dt, total, counted = _chunks(call, "Bmat")
    weights = torch.exp(total[..., -1:] - total) * dt * (1 if counted is None else counted)
    return (torch.einsum("bchl,bchlp,bchln->bchpn", weights, x, b),)


def first_state(call: Call, like: Tensor) -> Tensor:
    """The initial states, or zeros of the shape of `like`."""
    given = call.get("initial_states")
    return like.new_zeros(like.shape) if given is None else given.clone()


def _passed(call: Call) -> Outputs:
    states, decays = call["states"], torch.exp(call["dA_chunk_cumsum"])
    state = first_state(call, states.new_empty((states.shape[0], *states.shape[2:])))
    out = torch.zeros_like(states)
    for chunk in range(states.shape[1]):
        out[:, chunk] = state
        state = decays[:, :, chunk, None] * state + states[:, chunk]
    return out, state


def passed_by_segments(call: Call) -> Outputs:
    """Each state as a sum over all chunks before it, weighted by the decay in between."""
    states, exponents = call["states"], call["dA_chunk_cumsum"]
    first = first_state(call, states.new_empty((states.shape[0], *states.shape[2:])))
    added = torch.cat((first[:, None], states), dim=1)
    total = torch.nn.functional.pad(exponents.cumsum(dim=-1), (1, 0))
    distance = total[..., :, None] - total[..., None, :]
    weights = torch.exp(distance.tril()).tril()
    everything = torch.einsum("bhij,bjhn->bihn", weights, added)
    return everything[:, :-1], everything[:, -1]


# Outputs of chunks.


def _scanned(call: Call) -> Outputs:
    chunks = _chunks(call, "C")
    x, c, dt, total, _ = chunks
    y = torch.exp(total)[..., None] * contract_as_step(c, call.rounded("states", call["prev_states"]).mT)
    pairs = per_head(call["cb"], x.shape[2], axis=2)
    token = torch.arange(x.shape[3], device=x.device)
    for m in range(x.shape[3]):
        decay = torch.exp((total - total[..., m, None]).masked_fill(token < m, -math.inf))
        weights = call.rounded("scaled_tokens", pairs[..., m] * decay * dt[..., m, None])
        y = y + weights[..., None] * x[..., m, None, :]
    return (y.transpose(2, 3).flatten(1, 2)[:, : call["x"].shape[1]],)


def scanned_as_product(call: Call) -> Outputs:
    """ChunkScan with all pairs of tokens at once."""
    x, c, dt, total, _ = _chunks(call, "C")
    distance = (total[..., :, None] - total[..., None, :]).tril()
    weights = (per_head(call["cb"], x.shape[2], axis=2) * torch.exp(distance) * dt[..., None, :]).tril()
    y = torch.einsum("bchlm,bchmp->bchlp", weights, x)
    y = y + torch.einsum("bchln,bchpn,bchl->bchlp", c, call["prev_states"], torch.exp(total))
    return (y.transpose(2, 3).flatten(1, 2)[:, : call["x"].shape[1]],)


def steps_are_differences(run: Run, inputs: Inputs, params: Params) -> bool:
    """dA_cumsum[l] - dA_cumsum[l - 1] = A dt_out[l]."""
    step, total = run(inputs, params)
    if total.shape[-1] < 2:
        return True
    terms = (step * inputs["A"].to(step.dtype)[:, None, None])[..., 1:]
    return close(total.diff(dim=-1), terms, total.abs().max() if total.numel() else 0.0)


def transposes_with_its_inputs(run: Run, inputs: Inputs, params: Params) -> bool:
    """cb(C, B) is the transpose of cb(B, C)."""
    swapped = {"C_mat": inputs["B_mat"], "B_mat": inputs["C_mat"]}
    (there,), (back,) = run(inputs, params), run(swapped, params)
    return close(there.mT, back, there.abs().max() if there.numel() else 0.0)


def _oracle(
    op: str,
    program: Callable[[Call], Outputs],
    opinion: Callable[[Call], Outputs],
    magnitudes: Callable[[Call], Magnitudes],
    length: Callable[[Call], int],
    *properties: Callable[..., bool],
) -> Oracle:
    return Oracle(op, program, opinion, magnitudes=magnitudes, length=length, properties=properties)


ORACLES = (
    _oracle(
        "DaCumsumFwdOp", _da_cumsum, torch_da_cumsum, _da_cumsum_size,
        lambda call: call.param("chunk_len"), steps_are_differences,
    ),
    _oracle(
        "CBProducerFwdOp", _cb, chunk_by_chunk_cb, lambda call: _cb(magnitudes_of(call, "C_mat", "B_mat")),
        lambda call: call["C_mat"].shape[-1], transposes_with_its_inputs, doubles_with("C_mat"),
    ),
    _oracle(
        "SSDChunkStateFwdOp", _chunk_states, chunk_states_as_product,
        lambda call: _chunk_states(magnitudes_of(call, "x", "Bmat", "dt")),
        lambda call: call["dt"].shape[-1], doubles_with("x"), doubles_with("Bmat"),
    ),
    _oracle(
        "SSDStatePassingFwdOp", _passed, passed_by_segments,
        lambda call: _passed(magnitudes_of(call, "states", "initial_states")),
        lambda call: call["states"].shape[1], doubles_with("states", "initial_states"),
    ),
    _oracle(
        "SSDChunkScanFwdOp", _scanned, scanned_as_product,
        lambda call: _scanned(magnitudes_of(call, "x", "cb", "C", "prev_states", "dt")),
        lambda call: call["cb"].shape[-1] + call["C"].shape[-1], doubles_with("x", "prev_states"),
    ),
)  # fmt: skip
