"""Oracles of attention over packed requests: request r has queries cu_seqlens_q[r] .. cu_seqlens_q[r + 1].

Query i of a request with Q queries and N keys stands at position p = i + N - Q: the last query at the last
key. It sees keys p - left .. p + right, -1 being no bound, causal meaning right = 0; one that sees none
gives 0.

* Varlen window (arXiv:2004.05150): q, o [total_q, H, D]; k, v [total_k, H_kv, D]; scale 1 / sqrt(D).
* Prefill (arXiv:2407.08608): the same with q, k and v times factors [B, H_kv], head h of q by that of its
  key head h // (H / H_kv); softcap * tanh(scores / softcap) if there is a softcap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from tileops_tests.oracles.attention import Heads, attend, by_key_head, by_query, magnitude, one_query
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close


class Request(NamedTuple):
    """One request: its queries [Q, H, D], keys and values [N, H_kv, D], and position of its first query."""

    rows: slice
    q: Tensor
    k: Tensor
    v: Tensor
    first: int


def spans(offsets: Tensor) -> Iterator[slice]:
    return (slice(start, end) for start, end in pairwise(offsets.tolist()))


def _scaled(call: Call, name: str, x: Tensor, request: int) -> Tensor:
    """`x` [tokens, heads, D] times the request's factor of each key head, which heads share in groups."""
    factor = call.get(name)
    if factor is None:
        return x
    heads = factor.shape[1]
    return (x.unflatten(1, (heads, x.shape[1] // heads)) * factor[request][:, None, None]).flatten(1, 2)


def _window_requests(call: Call) -> Iterator[Request]:
    pairs = zip(spans(call["cu_seqlens_q"]), spans(call["cu_seqlens_k"]), strict=True)
    for rows, keys in pairs:
        q, k, v = call["q"][rows], call["k"][keys], call["v"][keys]
        yield Request(rows, q, k, v, k.shape[0] - q.shape[0])


def _prefill_requests(call: Call) -> Iterator[Request]:
    pairs = zip(spans(call["cu_seqlens_q"]), spans(call["cu_seqlens_kv"]), strict=True)
    for r, (rows, keys) in enumerate(pairs):
        q = _scaled(call, "q_scale", call["q"][rows], r)
        k, v = (_scaled(call, f"{name}_scale", call[name][keys], r) for name in "kv")
        yield Request(rows, q, k, v, k.shape[0] - q.shape[0])


def _bounds(call: Call) -> tuple[int, int]:
    left, right = (call.params.get(f"window_size_{side}", -1) for side in ("left", "right"))
    return left, 0 if call.param("is_causal") else right


def _visible(call: Call, request: Request) -> Tensor:
    """[Q, N]."""
    left, right = _bounds(call)
    device = request.q.device
    position = request.first + torch.arange(request.q.shape[0], device=device)[:, None]
    key = torch.arange(request.k.shape[0], device=device)
    visible = torch.ones((request.q.shape[0], request.k.shape[0]), dtype=torch.bool, device=device)
    if left >= 0:
        visible &= key >= position - left
    if right >= 0:
        visible &= key <= position + right
    return visible


def _factor(call: Call) -> float:
    given = call.params.get("sm_scale")
    return 1 / math.sqrt(call["q"].shape[-1]) if given is None else given


def _heads(call: Call, request: Request) -> Heads:
    group = request.q.shape[1] // request.k.shape[1]
    return Heads(
        call,
        by_key_head(request.q[None], request.k.shape[1]),
        request.k[None].transpose(1, 2),
        request.v[None].transpose(1, 2),
        _visible(call, request).repeat(group, 1),
        _factor(call),
        call.params.get("softcap"),
    )


def all_requests(call: Call, requests: Iterator[Request], of_heads: Callable[[Heads], Tensor]) -> Tensor:
    out = torch.zeros_like(call["q"])
    for request in requests:
        if request.q.shape[0]:
            heads = of_heads(_heads(call, request))
            out[request.rows] = by_query(heads, request.q.shape[1], request.q.shape[0])[0]
    return out


def _windowed(call: Call) -> Outputs:
    return (all_requests(call, _window_requests(call), attend),)


def _windowed_magnitude(call: Call) -> Magnitudes:
    return (all_requests(call, _window_requests(call), magnitude),)


def _prefill(call: Call) -> Outputs:
    return (all_requests(call, _prefill_requests(call), attend),)


def _prefill_magnitude(call: Call) -> Magnitudes:
    return (all_requests(call, _prefill_requests(call), magnitude),)


def query_by_query(call: Call, requests: Iterator[Request]) -> Tensor:
    """Each query alone, its window a slice of keys instead of a mask."""
    left, right = _bounds(call)
    out = torch.zeros_like(call["q"])
    for rows, q, k, v, first in requests:
        for i in range(q.shape[0]):
            position = first + i
            begin = 0 if left < 0 else max(position - left, 0)
            end = k.shape[0] if right < 0 else min(position + right + 1, k.shape[0])
            if begin < end:
                seen = slice(begin, end)
                out[rows.start + i] = one_query(
                    q[i : i + 1], k[None, seen], v[None, seen], _factor(call), call.params.get("softcap")
                )[0]
    return out


def _length(call: Call) -> int:
    return max(*(call[name].shape[0] for name in ("q", "k")), call["q"].shape[-1])


def other_requests_do_not_matter(run: Run, inputs: Inputs, params: Params) -> bool:
    """The first request alone gives the outputs that it gives among the others."""
    keys = "cu_seqlens_kv" if "cu_seqlens_kv" in inputs else "cu_seqlens_k"
    ends = {name: int(inputs[name][1]) for name in ("cu_seqlens_q", keys)}
    alone = {**inputs, "q": inputs["q"][: ends["cu_seqlens_q"]]}
    alone |= {name: inputs[name][: ends[keys]] for name in "kv"}
    alone |= {name: inputs[name][:2] for name in ends}
    for name in ("q_scale", "k_scale", "v_scale"):
        if inputs.get(name) is not None:
            alone[name] = inputs[name][:1]
    return close(run(alone, params)[0], run(inputs, params)[0][: ends["cu_seqlens_q"]])


ORACLES = (
    Oracle(
        "GroupedQueryAttentionSlidingWindowVarlenFwdOp",
        _windowed,
        lambda call: (query_by_query(call, _window_requests(call)),),
        magnitudes=_windowed_magnitude,
        length=_length,
        properties=(other_requests_do_not_matter,),
    ),
    Oracle(
        "GroupedQueryAttentionPrefillFwdOp",
        _prefill,
        lambda call: (query_by_query(call, _prefill_requests(call)),),
        magnitudes=_prefill_magnitude,
        length=_length,
        properties=(other_requests_do_not_matter,),
    ),
)
