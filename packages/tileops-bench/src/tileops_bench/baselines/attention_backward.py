"""Attention's gradients: the backward half of every SDPA backend, as autograd calls it, and a composition.

The backends' own operators take the output and the log-sum-exp as the op does, so that nothing but the
backward pass is timed. What else their forward pass hands over (random states, sizes) is made once, outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from tileops_bench.baselines.base import CUDA, Baseline, Case, Make, UnsupportedCase

_OPS = ("MultiHeadAttentionBwdOp", "GroupedQueryAttentionBwdOp")
_aten = torch.ops.aten


def _by_head(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(batch, sequence, heads, head_dim) as SDPA takes it, and back: views."""
    return tuple(t.transpose(1, 2) for t in tensors)


def _forward(case: Case, forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What a backend's forward pass hands to its backward pass."""
    try:
        return forward(*_by_head(*(case.inputs[n] for n in "qkv")), *args, **options)
    except RuntimeError as error:
        raise UnsupportedCase(str(error).splitlines()[0]) from error


def _require_16_bits(case: Case) -> None:
    if case.inputs["q"].dtype == torch.float32:
        raise UnsupportedCase("16-bit floats only")


def _flash(case: Case) -> Callable[..., Any]:
    causal = case.params["is_causal"]
    _require_16_bits(case)
    _, _, *sizes, seed, offset, _ = _forward(case, _aten._scaled_dot_product_flash_attention, 0.0, causal)

    def call(q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any) -> Any:
        q, k, v, o, do = _by_head(q, k, v, o, do)
        return _by_head(
            *_aten._scaled_dot_product_flash_attention_backward(
                do, q, k, v, o, lse, *sizes, 0.0, causal, seed, offset
            )
        )

    return call


def _cudnn(case: Case) -> Callable[..., Any]:
    causal = case.params["is_causal"]
    _require_16_bits(case)
    _, saved, *sizes, seed, offset, _ = _forward(
        case, _aten._scaled_dot_product_cudnn_attention, None, True, 0.0, causal
    )

    def call(q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any) -> Any:
        q, k, v, o, do = _by_head(q, k, v, o, do)
        return _by_head(
            *_aten._scaled_dot_product_cudnn_attention_backward(
                do, q, k, v, o, lse.view(saved.shape), seed, offset, None, *sizes, 0.0, causal
            )
        )

    return call


def _efficient(case: Case) -> Callable[..., Any]:
    """The backend keeps rows of lse padded."""
    causal = case.params["is_causal"]
    if case.inputs["q"].shape[2] != case.inputs["k"].shape[2]:
        raise UnsupportedCase("no query heads that share a key head")
    _, saved, seed, offset = _forward(
        case, _aten._scaled_dot_product_efficient_attention, None, True, 0.0, causal
    )
    missing = saved.shape[-1] - case.inputs["lse"].shape[-1]

    def call(q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any) -> Any:
        q, k, v, o, do = _by_head(q, k, v, o, do)
        *gradients, _ = _aten._scaled_dot_product_efficient_attention_backward(
            do, q, k, v, None, o, F.pad(lse, (0, missing), value=math.inf), seed, offset, 0.0,
            [True, True, True, False], causal,
        )  # fmt: skip
        return _by_head(*gradients)

    return call


def _composition(case: Case) -> Callable[..., Any]:
    """Scores, probabilities and their gradients as whole matrices, products in the inputs' dtype."""
    causal = case.params["is_causal"]

    def call(q: Any, k: Any, v: Any, o: Any, do: Any, lse: Any) -> Any:
        (batch, length, heads, dim), kv_heads = q.shape, k.shape[2]
        shape = (batch, kv_heads, heads // kv_heads, length)
        q, o, do = (t.transpose(1, 2).reshape(*shape, dim) for t in (q, o, do))
        k, v = (t.transpose(1, 2).unsqueeze(2) for t in (k, v))
        scores = (q @ k.mT).float() * dim**-0.5
        p = torch.exp(scores - lse.reshape(*shape, 1))
        if causal:
            p = p.tril()
        own = (do.float() * o.float()).sum(dim=-1, keepdim=True)
        ds = (p * ((do @ v.mT).float() - own)).to(q.dtype)
        dq = (ds @ k) * dim**-0.5
        dk = (ds.mT @ q).sum(dim=2) * dim**-0.5
        dv = (p.to(q.dtype).mT @ do).sum(dim=2)
        return _by_head(dq.reshape(batch, heads, length, dim), dk, dv)

    return call


EAGER: dict[str, Make] = {}
LOCAL: dict[str, Make] = dict.fromkeys(_OPS, _composition)
_BACKENDS: dict[str, Make] = {"sdpa-flash": _flash, "sdpa-cudnn": _cudnn, "sdpa-efficient": _efficient}
OTHERS: tuple[Baseline, ...] = tuple(
    Baseline(op, name, make, targets=CUDA) for op in _OPS for name, make in _BACKENDS.items()
)
