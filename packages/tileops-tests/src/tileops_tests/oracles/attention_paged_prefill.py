"""Oracle of attention over a paged cache that new tokens are written to first (arXiv:2309.06180).

q, o [total_q, H, D]; k_new, v_new [total_q, H_kv, D]; k_pages, v_pages [physical_tokens, H_kv, D]. Token t of
request r lies at block_table[r, t // page_size] * page_size + t % page_size. New tokens follow the
cache_seqlens[r] cached ones. Rotation is by the position t (arXiv:2104.09864): elements i and i +
rotary_dim / 2 turn by t * rope_base ^ (-2 i / rotary_dim). An 8-bit page holds x / scale, saturated; keys and
values are read back from the pages. Results: o, k_pages, v_pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tileops_tests.oracles.attention import attend, magnitude
from tileops_tests.oracles.attention_packed import Request, all_requests, query_by_query, spans
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close

_EIGHT_BITS = torch.float8_e4m3fn


class Rotated(NamedTuple):
    """New tokens: queries as the attention takes them, keys and values as the cache stores them, places."""

    q: Tensor
    k: Tensor
    v: Tensor
    place: Tensor


def _positions(call: Call) -> tuple[Tensor, Tensor]:
    """Request and position of each new token: int64 [total_q] both."""
    offsets, cached = call["cu_seqlens_q"].to(torch.int64), call["cache_seqlens"].to(torch.int64)
    sizes = offsets.diff()
    request = torch.repeat_interleave(torch.arange(sizes.numel(), device=sizes.device), sizes)
    token = torch.arange(request.numel(), device=sizes.device)
    return request, cached[request] + token - offsets[request]


def _places(call: Call, request: Tensor, position: Tensor) -> Tensor:
    page_size, table = call.param("page_size"), call["block_table"].to(torch.int64)
    return table[request, position // page_size] * page_size + position % page_size


def _rotated_dim(call: Call) -> int:
    given = call.param("rotary_dim")
    return 0 if not call.param("fuse_rope") else call["q"].shape[-1] if given is None else given


def _angles(call: Call, position: Tensor) -> Tensor:
    """[total_q, 1, rotary_dim / 2] in float64."""
    rotated = _rotated_dim(call)
    exponent = torch.arange(0, rotated, 2, dtype=torch.float64, device=position.device) / max(rotated, 1)
    return (position.to(torch.float64)[:, None] * call.param("rope_base") ** -exponent)[:, None]


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    pairs = angles.shape[-1]
    cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    a, b = x[..., :pairs], x[..., pairs : 2 * pairs]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, x[..., 2 * pairs :]), dim=-1)


def _turned_magnitude(x: Tensor, angles: Tensor) -> Tensor:
    pairs = angles.shape[-1]
    cos, sin, size = torch.cos(angles).abs(), torch.sin(angles).abs(), torch.abs(x)
    a, b = size[..., :pairs], size[..., pairs : 2 * pairs]
    return torch.cat((a * cos + b * sin, b * cos + a * sin, size[..., 2 * pairs :]), dim=-1)


def _is_eight_bit(call: Call) -> bool:
    return call.given["k_pages"].dtype == _EIGHT_BITS


def _stored(call: Call, x: Tensor, scale: str) -> Tensor:
    """As a page holds it: 8 bits are part of the definition, the rounding to 16 bits is the caller's."""
    if not _is_eight_bit(call):
        return x
    greatest = torch.finfo(_EIGHT_BITS).max
    return (x / call[scale]).clamp(-greatest, greatest).to(_EIGHT_BITS).to(x.dtype)


def _read(call: Call, pages: Tensor, scale: str) -> Tensor:
    return call.rounded("dequantized", pages * call[scale]) if _is_eight_bit(call) else pages


def _new_tokens(call: Call) -> Rotated:
    request, position = _positions(call)
    q, k, v = call["q"], call["k_new"], call["v_new"]
    if call.param("fuse_rope"):
        angles = _angles(call, position)
        q, k = call.rounded("rotated", _turned(q, angles)), _turned(k, angles)
        k = k if _is_eight_bit(call) else call.rounded("rotated", k)
    return Rotated(
        q, _stored(call, k, "k_scale"), _stored(call, v, "v_scale"), _places(call, request, position)
    )


def _paged_requests(call: Call, new: Rotated, k_pages: Tensor, v_pages: Tensor) -> Iterator[Request]:
    for r, rows in enumerate(spans(call["cu_seqlens_q"])):
        cached = int(call["cache_seqlens"][r])
        token = torch.arange(cached + rows.stop - rows.start, device=new.place.device)
        place = _places(call, torch.full_like(token, r), token)
        yield Request(rows, new.q[rows], k_pages[place], v_pages[place], cached)


def _updated(call: Call, new: Rotated) -> tuple[Tensor, Tensor]:
    k_pages, v_pages = call["k_pages"].clone(), call["v_pages"].clone()
    k_pages[new.place], v_pages[new.place] = new.k, new.v
    return k_pages, v_pages


def _paged_prefill(call: Call) -> Outputs:
    new = _new_tokens(call)
    k_pages, v_pages = _updated(call, new)
    keys, values = _read(call, k_pages, "k_scale"), _read(call, v_pages, "v_scale")
    return all_requests(call, _paged_requests(call, new, keys, values), attend), k_pages, v_pages


def _paged_magnitude(call: Call) -> Magnitudes:
    new = _new_tokens(call)
    k_pages, v_pages = _updated(call, new)
    keys, values = _read(call, k_pages, "k_scale"), _read(call, v_pages, "v_scale")
    out = all_requests(call, _paged_requests(call, new, keys, values), magnitude)
    if not call.param("fuse_rope") or _is_eight_bit(call):
        return out, None, None
    size = torch.abs(k_pages)
    size[new.place] = _turned_magnitude(call["k_new"], _angles(call, _positions(call)[1]))
    return out, size, None


def _token_by_token(call: Call) -> Outputs:
    """Tokens written one after another, rotated as complex numbers; each query alone over the pages."""
    q, rotated = call["q"].clone(), _rotated_dim(call)
    k_pages, v_pages = call["k_pages"].clone(), call["v_pages"].clone()
    table, size = call["block_table"].tolist(), call.param("page_size")
    frequency = [call.param("rope_base") ** (-2 * i / rotated) for i in range(rotated // 2)]
    requests = []
    for r, rows in enumerate(spans(call["cu_seqlens_q"])):
        cached = int(call["cache_seqlens"][r])
        for i, row in enumerate(range(rows.start, rows.stop)):
            position = cached + i
            turn = torch.polar(
                torch.ones(rotated // 2, dtype=q.dtype),
                torch.tensor([position * f for f in frequency], dtype=q.dtype),
            )
            place = table[r][position // size] * size + position % size
            q[row] = _as_complex(q[row], turn)
            k_pages[place] = _stored(call, _as_complex(call["k_new"][row], turn), "k_scale")
            v_pages[place] = _stored(call, call["v_new"][row], "v_scale")
        pages = table[r][: -(-(cached + rows.stop - rows.start) // size)]
        requests.append((rows, cached, pages))
    return query_by_query(call, _sliced(call, q, k_pages, v_pages, requests)), k_pages, v_pages


def _as_complex(x: Tensor, turn: Tensor) -> Tensor:
    pairs = turn.shape[0]
    turned = torch.complex(x[:, :pairs], x[:, pairs : 2 * pairs]) * turn
    return torch.cat((turned.real, turned.imag, x[:, 2 * pairs :]), dim=-1)


def _sliced(call: Call, q: Tensor, k_pages: Tensor, v_pages: Tensor, requests: list) -> Iterator[Request]:
    """Each request's tokens concatenated from slices of its pages."""
    size = call.param("page_size")
    for rows, cached, pages in requests:
        total = cached + rows.stop - rows.start
        keys, values = (
            torch.cat([pool[:0], *(pool[page * size : (page + 1) * size] for page in pages)])[:total]
            for pool in (_read(call, k_pages, "k_scale"), _read(call, v_pages, "v_scale"))
        )
        yield Request(rows, q[rows], keys, values, cached)


def _paged_length(call: Call) -> int:
    return max(call["block_table"].shape[1] * call.param("page_size"), call["q"].shape[-1])


def pages_hold_the_new_tokens_and_nothing_else_changes(run: Run, inputs: Inputs, params: Params) -> bool:
    """Running twice changes nothing more; a page of no request keeps its content."""
    _, k_pages, v_pages = run(inputs, params)
    _, again, _ = run({**inputs, "k_pages": k_pages, "v_pages": v_pages}, params)
    page = torch.arange(k_pages.shape[0]) // params["page_size"]
    foreign = ~torch.isin(page, inputs["block_table"].to(torch.int64))
    kept = torch.equal(k_pages[foreign], inputs["k_pages"].to(k_pages.dtype)[foreign])
    return kept and (inputs["k_pages"].dtype == _EIGHT_BITS or close(again, k_pages))


ORACLES = (
    Oracle(
        "GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp",
        _paged_prefill,
        _token_by_token,
        magnitudes=_paged_magnitude,
        length=_paged_length,
        properties=(pages_hold_the_new_tokens_and_nothing_else_changes,),
    ),
)
