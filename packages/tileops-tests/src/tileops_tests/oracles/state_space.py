"""Oracles of selective state spaces (Mamba-2, arXiv:2405.21060), token by token.

Per request and head a state S [P, N]; head h reads group h // (H / G) of B and C:

    d_t = max(0, dt_t + dt_bias), through softplus first if dt_softplus
    S_t = exp(d_t A) S_(t-1) + d_t x_t B_t^T;  y_t = S_t C_t

* Sequence: x, y [B, S, H, P], dt [B, S, H], A, dt_bias [H], B, C [B, S, G, N], states [B, H, P, N].
* Decode: one token, with A [H, P, N] and dt [B, H, P] for every element; the state is updated in place.

The second opinion of a sequence is its chunked form.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import vector_times
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs
from tileops_tests.oracles.properties import doubles_with, is_causal
from tileops_tests.oracles.state_space_chunks import (
    chunk_by_chunk_cb,
    chunk_states_as_product,
    first_state,
    magnitudes_of,
    passed_by_segments,
    per_head,
    scanned_as_product,
    step_magnitude,
    step_sizes,
    torch_da_cumsum,
)


def _sequence(call: Call, step: Tensor, x: Tensor, vectors: tuple[Tensor, Tensor], first: Tensor) -> Outputs:
    """y and the last state; the decays are those of the call."""
    decays = torch.exp(step_sizes(call, 0.0, math.inf) * call["A"])
    heads, state, rows = x.shape[2], first, []
    b, c = (per_head(v, heads) for v in vectors)
    for t in range(x.shape[1]):
        scaled = call.rounded("scaled_tokens", step[:, t, :, None] * x[:, t])
        state = decays[:, t, :, None, None] * state + scaled[..., :, None] * b[:, t, :, None, :]
        rows.append(vector_times(c[:, t].contiguous(), call.rounded("states", state).mT))
    return torch.stack(rows, dim=1) if rows else x.clone(), state


def _first_of(call: Call) -> Tensor:
    batch, _, heads, p = call["x"].shape
    return first_state(call, call["x"].new_empty((batch, heads, p, call["B"].shape[-1])))


def _mamba2(call: Call) -> Outputs:
    step = step_sizes(call, 0.0, math.inf)
    x, b, c = (call[name].contiguous() for name in ("x", "B", "C"))
    return _sequence(call, step, x, (b, c), _first_of(call).contiguous())


def _mamba2_size(call: Call) -> Magnitudes:
    """A roundoff of a step is one of the exponent of its decay as well."""
    step = step_magnitude(call, 0.0, math.inf)
    magnitudes = (torch.abs(call[name]) for name in "BC")
    y, state = _sequence(call, step, torch.abs(call["x"]), tuple(magnitudes), torch.abs(_first_of(call)))
    exponents = step * torch.abs(call["A"])
    worst = 1 + (exponents.amax(dim=1) if exponents.shape[1] else exponents.sum(dim=1))
    return y * worst[:, None, :, None], state * worst[..., None, None]


def _mamba2_by_chunks(call: Call) -> Outputs:
    """DaCumsum, CBProducer, ChunkState, StatePassing and ChunkScan, by their second opinions."""
    size, x = 16, call["x"]
    batch, _, heads, p = x.shape
    n = call["B"].shape[-1]
    steps = dict(call.params, chunk_len=size, dt_min=0.0, dt_max=math.inf)
    dt, total = torch_da_cumsum(Call(call.given, steps, call.dtype))
    (cb,) = chunk_by_chunk_cb(Call({"C_mat": call["C"], "B_mat": call["B"]}, steps, call.dtype))
    tokens: Inputs = {"x": x, "Bmat": call["B"], "C": call["C"], "dt": dt, "dA_cumsum": total}
    (states,) = chunk_states_as_product(Call(tokens, steps, call.dtype))
    passing: Inputs = {
        "states": states.flatten(-2),
        "dA_chunk_cumsum": total[..., -1],
        "initial_states": _first_of(call).flatten(-2),
    }
    before, last = passed_by_segments(Call(passing, steps, call.dtype))
    before = before.reshape(batch, states.shape[1], heads, p, n)
    (y,) = scanned_as_product(Call({**tokens, "cb": cb, "prev_states": before}, steps, call.dtype))
    return y, last.reshape(batch, heads, p, n)


def _decode(call: Call) -> Outputs:
    x, step, heads = call["x"], call["dt"], call["x"].shape[1]
    b, c = (per_head(call[name], heads) for name in ("B_in", "C_in"))
    decay = torch.exp(step[..., None] * call["A"])
    state = decay * call["state"] + (step * x)[..., None] * b[:, :, None, :]
    return vector_times(c, state.mT), state


def _decode_size(call: Call) -> Magnitudes:
    exponents = torch.abs(call["dt"])[..., None] * torch.abs(call["A"])
    sizes = magnitudes_of(call, "x", "B_in", "C_in", "state")
    y, state = _decode(sizes)
    worst = 1 + (exponents.amax(dim=(-1, -2)) if exponents.numel() else exponents.sum(dim=(-1, -2)))
    return y * worst[..., None], state * worst[..., None, None]


def _decode_by_group(call: Call) -> Outputs:
    batch, heads, p = call["x"].shape
    groups, n = call["B_in"].shape[1:]
    split = (batch, groups, heads // groups, p)
    x, step = call["x"].reshape(split), call["dt"].reshape(split)
    a = call["A"].reshape(groups, heads // groups, p, n)
    state = call["state"].reshape(*split, n) * torch.exp(torch.einsum("bgrp,grpn->bgrpn", step, a))
    state = state + torch.einsum("bgrp,bgrp,bgn->bgrpn", step, x, call["B_in"])
    y = torch.einsum("bgrpn,bgn->bgrp", state, call["C_in"])
    return y.reshape(batch, heads, p), state.reshape(batch, heads, p, n)


ORACLES = (
    Oracle(
        "SSDDecodeFwdOp",
        _decode,
        _decode_by_group,
        magnitudes=_decode_size,
        length=lambda call: call["B_in"].shape[-1],
        properties=(doubles_with("x", "state"),),
    ),
    Oracle(
        "Mamba2FwdOp",
        _mamba2,
        _mamba2_by_chunks,
        magnitudes=_mamba2_size,
        length=lambda call: call["x"].shape[1] + call["B"].shape[-1],
        properties=(doubles_with("x", "initial_states"), is_causal(1)),
    ),
)
