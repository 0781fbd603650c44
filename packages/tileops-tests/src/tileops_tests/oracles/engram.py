"""Oracles of gated memory with a causal convolution (Engram, arXiv:2601.07372), tap by tap.

Per token, over its d elements, r(x) = 1 / sqrt(mean(x^2) + eps):

    alpha = sigmoid(sum(rms_w_h * H r(H) * k r(k)) / sqrt(d));  vhat = alpha v;  n = rms_w_v * vhat r(vhat)
    Y_t = vhat_t + silu(sum_i conv_w[i] n_(t - (K - 1 - i) dilation)), n being 0 before the first token

* Forward: H, k, v, Y, vhat [M, L, d]; alpha, rrms_h = r(H), rrms_k = r(k), rrms_v = r(vhat) [M, L]; K = 4
  taps of dilation 1.
* Backward: gradients of sum(dY * Y), the values saved by the forward pass taken as they are given.
* Decode: one token, k = e_t W_K, v = e_t W_V; the cache [batch, max_conv_len, d] holds n of the tokens
  before, the newest last.

Second opinions use torch's normalisation and convolution; that of the backward pass is autograd's.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.arithmetic import accumulate, contract_as_step, mean_of
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close, doubled, doubles_with, is_causal


def _sum(x: Tensor) -> Tensor:
    """Over the last axis."""
    return accumulate(x.movedim(-1, 0))


def _reciprocal_root(x: Tensor, eps: float) -> Tensor:
    return 1 / torch.sqrt(mean_of((x * x).movedim(-1, 0)) + eps)


def _sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), from exp(-|x|), which does not overflow."""
    small = torch.exp(-torch.abs(x))
    return torch.where(x >= 0, 1 / (1 + small), small / (1 + small))


class Gate(NamedTuple):
    """Everything up to the convolution."""

    vhat: Tensor
    normalised: Tensor
    alpha: Tensor
    rrms_h: Tensor
    rrms_k: Tensor
    rrms_v: Tensor


def _gate(h: Tensor, k: Tensor, v: Tensor, weights: tuple[Tensor, Tensor], eps: float) -> Gate:
    rrms_h, rrms_k = _reciprocal_root(h, eps), _reciprocal_root(k, eps)
    terms = weights[0] * (h * rrms_h[..., None]) * (k * rrms_k[..., None])
    alpha = _sigmoid(_sum(terms) / math.sqrt(h.shape[-1]))
    vhat = alpha[..., None] * v
    rrms_v = _reciprocal_root(vhat, eps)
    return Gate(vhat, weights[1] * (vhat * rrms_v[..., None]), alpha, rrms_h, rrms_k, rrms_v)


def _gate_of(call: Call) -> Gate:
    weights = call["rms_w_h"], call["rms_w_v"]
    return _gate(call["H"], call["k"], call["v"], weights, call.param("eps"))


def _delayed(x: Tensor, tokens: int) -> Tensor:
    """x [M, L, d] some tokens later, zeros before; earlier, zeros behind, for a negative number."""
    out = torch.zeros_like(x)
    kept = x.shape[1] - abs(tokens)
    if kept > 0:
        start = max(tokens, 0)
        out[:, start : start + kept] = x[:, max(-tokens, 0) : max(-tokens, 0) + kept]
    return out


def _convolved(n: Tensor, conv_w: Tensor) -> Tensor:
    taps = conv_w.shape[0]
    return accumulate(torch.stack([conv_w[i] * _delayed(n, taps - 1 - i) for i in range(taps)]))


def _forward(call: Call) -> Outputs:
    gate = _gate_of(call)
    c = _convolved(gate.normalised, call["conv_w"])
    return gate.vhat + c * _sigmoid(c), gate.vhat, gate.alpha, gate.rrms_h, gate.rrms_k, gate.rrms_v


def _norm(x: Tensor, axis: int = -1) -> Tensor:
    """What a sum of these terms adds up, apart from the root of their number: roundoffs walk at random."""
    return torch.linalg.vector_norm(x, dim=axis)


def _spread(h: Tensor, k: Tensor, weight: Tensor, gate: Gate) -> Tensor:
    """1 + what the gate's argument adds up: how far a roundoff in there carries, relatively."""
    return 1 + _norm(weight * h * k) * (gate.rrms_h * gate.rrms_k) / math.sqrt(h.shape[-1])


def _forward_size(call: Call) -> Magnitudes:
    gate = _gate_of(call)
    spread = _spread(call["H"], call["k"], call["rms_w_h"], gate)
    vhat = torch.abs(gate.vhat) * spread[..., None]
    c = _convolved(torch.abs(gate.normalised) * spread[..., None], torch.abs(call["conv_w"]))
    return vhat + c, vhat, gate.alpha * spread, None, None, gate.rrms_v * spread


def _torch_gate(h: Tensor, k: Tensor, v: Tensor, call: Call) -> tuple[Tensor, Tensor, Tensor]:
    """alpha, vhat and n by torch's own normalisation."""
    shape, eps = h.shape[-1:], call.param("eps")
    h, k = F.rms_norm(h, shape, weight=call["rms_w_h"], eps=eps), F.rms_norm(k, shape, eps=eps)
    alpha = torch.sigmoid((h * k).sum(dim=-1) * shape[0] ** -0.5)
    vhat = torch.einsum("...,...d->...d", alpha, v)
    return alpha, vhat, F.rms_norm(vhat, shape, weight=call["rms_w_v"], eps=eps)


def _torch_convolved(n: Tensor, conv_w: Tensor, dilation: int = 1) -> Tensor:
    """A depthwise convolution, padded on the left."""
    d, taps = n.shape[-1], conv_w.shape[0]
    if n.numel() == 0:
        return n.clone()
    padded = F.pad(n.transpose(1, 2), ((taps - 1) * dilation, 0))
    return F.conv1d(padded, conv_w.T[:, None].contiguous(), groups=d, dilation=dilation).transpose(1, 2)


def _torch_forward(call: Call) -> Outputs:
    h, k, v = call["H"], call["k"], call["v"]
    alpha, vhat, n = _torch_gate(h, k, v, call)
    y = vhat + F.silu(_torch_convolved(n, call["conv_w"]))
    roots = (torch.rsqrt(x.square().mean(dim=-1) + call.param("eps")) for x in (h, k, vhat))
    return y, vhat, alpha, *roots


# Backward.


class Backward(NamedTuple):
    """Gradients on the way: of the convolution's result, of n, of vhat, and of the gate's argument."""

    normalised: Tensor
    convolved: Tensor
    n: Tensor
    vhat: Tensor
    argument: Tensor


def _through_norm(gradient: Tensor, x: Tensor, rrms: Tensor) -> Tensor:
    """Gradient by x of a gradient by x r(x): r g - r^3 x mean(g x)."""
    mean = mean_of((gradient * x).movedim(-1, 0))
    return rrms[..., None] * gradient - (rrms * rrms * rrms * mean)[..., None] * x


def _backward(call: Call) -> Backward:
    vhat, alpha, rrms_v, conv_w = call["vhat"], call["alpha"], call["rrms_v"], call["conv_w"]
    taps = conv_w.shape[0]
    n = call["rms_w_v"] * (vhat * rrms_v[..., None])
    c = _convolved(n, conv_w)
    gate = _sigmoid(c)
    dc = call["dY"] * (gate * (1 + c * (1 - gate)))
    dn = accumulate(torch.stack([conv_w[i] * _delayed(dc, i - (taps - 1)) for i in range(taps)]))
    dvhat = call["dY"] + _through_norm(dn * call["rms_w_v"], vhat, rrms_v)
    dalpha = _sum(dvhat * call["v"])
    return Backward(n, dc, dn, dvhat, dalpha * alpha * (1 - alpha) / math.sqrt(vhat.shape[-1]))


def _over_tokens(x: Tensor) -> Tensor:
    """[M, L, d] to [d]."""
    return accumulate(x.flatten(0, 1))


def _gradients(call: Call) -> Outputs:
    """dH, dk, dv, drms_w_h, drms_w_v and dconv_w."""
    h, k, weight = call["H"], call["k"], call["rms_w_h"]
    rrms_h, rrms_k = call["rrms_h"], call["rrms_k"]
    back, taps = _backward(call), call["conv_w"].shape[0]
    unit_h, unit_k = h * rrms_h[..., None], k * rrms_k[..., None]
    argument = back.argument[..., None]
    return (
        _through_norm(argument * weight * unit_k, h, rrms_h),
        _through_norm(argument * weight * unit_h, k, rrms_k),
        call["alpha"][..., None] * back.vhat,
        _over_tokens(argument * unit_h * unit_k),
        _over_tokens(back.n * (call["vhat"] * call["rrms_v"][..., None])),
        torch.stack(
            [_over_tokens(back.convolved * _delayed(back.normalised, taps - 1 - i)) for i in range(taps)]
        ),
    )


def _norm_size(gradient: Tensor, x: Tensor, rrms: Tensor) -> Tensor:
    """What `_through_norm` adds up, given magnitudes of a gradient."""
    return (
        _through_norm(gradient, torch.abs(x), rrms)
        + 2
        * (rrms**3)[..., None]
        * torch.abs(x)
        * mean_of((gradient * torch.abs(x)).movedim(-1, 0))[..., None]
    )


def _gradient_sizes(call: Call) -> Magnitudes:
    absolute = {name: None if x is None else torch.abs(x) for name, x in call.given.items()}
    sizes = Call(absolute, call.params, call.dtype)
    conv_w, taps, vhat = sizes["conv_w"], call["conv_w"].shape[0], sizes["vhat"]
    n = sizes["rms_w_v"] * vhat * sizes["rrms_v"][..., None]
    c = _convolved(n, conv_w)
    # The derivative of silu is at most 1.1, and as steep as 1/2 towards its argument.
    dc = sizes["dY"] * (1 + c)
    dn = accumulate(torch.stack([conv_w[i] * _delayed(dc, i - (taps - 1)) for i in range(taps)]))
    dvhat = sizes["dY"] + _norm_size(dn * sizes["rms_w_v"], vhat, sizes["rrms_v"])
    argument = (_norm(dvhat * sizes["v"]) * sizes["alpha"] / math.sqrt(vhat.shape[-1]))[..., None]
    unit_h, unit_k = (sizes[x] * sizes[f"rrms_{x.lower()}"][..., None] for x in ("H", "k"))
    return (
        _norm_size(argument * sizes["rms_w_h"] * unit_k, sizes["H"], sizes["rrms_h"]),
        _norm_size(argument * sizes["rms_w_h"] * unit_h, sizes["k"], sizes["rrms_k"]),
        sizes["alpha"][..., None] * dvhat,
        _norm((argument * unit_h * unit_k).flatten(0, 1), 0),
        _norm((dn * vhat * sizes["rrms_v"][..., None]).flatten(0, 1), 0),
        torch.stack([_norm((dc * _delayed(n, taps - 1 - i)).flatten(0, 1), 0) for i in range(taps)]),
    )


def _saved(value: Tensor, formula: Tensor) -> Tensor:
    """A saved value that has the gradient of the formula it came from."""
    return value + formula - formula.detach()


def _saved_root(rrms: Tensor, x: Tensor) -> Tensor:
    """rrms with the gradient of r(x), whose logarithm has the gradient -rrms^2 x / d."""
    mean = x.square().mean(dim=-1)
    return rrms * torch.exp(-(rrms**2) * (mean - mean.detach()) / 2)


def _autograd(call: Call) -> Outputs:
    names = ("H", "k", "v", "rms_w_h", "rms_w_v", "conv_w")
    leaves = {name: call[name].detach().requires_grad_() for name in names}
    with torch.enable_grad():
        h, k, v, weight_h, weight_v, conv_w = leaves.values()
        roots = _saved_root(call["rrms_h"], h) * _saved_root(call["rrms_k"], k)
        argument = torch.einsum("d,mld,mld,ml->ml", weight_h, h, k, roots) * h.shape[-1] ** -0.5
        alpha = call["alpha"]
        gate = _saved(alpha, alpha * (1 - alpha) * argument)
        vhat = _saved(call["vhat"], gate[..., None] * v)
        n = weight_v * vhat * _saved_root(call["rrms_v"], vhat)[..., None]
        y = vhat + F.silu(_torch_convolved(n, conv_w))
    found = torch.autograd.grad(y, tuple(leaves.values()), call["dY"], allow_unused=True)
    pairs = zip(found, leaves.values(), strict=True)
    return tuple(torch.zeros_like(leaf) if gradient is None else gradient for gradient, leaf in pairs)


# Decode.


def _projected(call: Call) -> tuple[Tensor, Tensor]:
    return contract_as_step(call["e_t"], call["W_K"]), contract_as_step(call["e_t"], call["W_V"])


def _taps(call: Call, newest: Tensor, state: Tensor) -> Tensor:
    """[K, batch, d]: what each row of conv_w meets, the token itself last."""
    size, taps = state.shape[1], call["conv_w"].shape[0]
    before = [state[:, size - j * call.param("dilation")] for j in range(taps - 1, 0, -1)]
    return torch.stack([*before, newest])


def _decode(call: Call) -> Outputs:
    k, v = _projected(call)
    gate = _gate(call["h_t"], k, v, (call["rms_w_h"], call["rms_w_v"]), call.param("eps"))
    state = call["conv_state"]
    c = accumulate(call["conv_w"][:, None] * _taps(call, gate.normalised, state))
    new_state = torch.cat((state[:, 1:], gate.normalised[:, None]), dim=1)
    return gate.vhat + c * _sigmoid(c), new_state


def _decode_size(call: Call) -> Magnitudes:
    """Projections err by what they add up; behind a norm that counts relatively to the token's length."""
    k, v = _projected(call)
    gate = _gate(call["h_t"], k, v, (call["rms_w_h"], call["rms_w_v"]), call.param("eps"))
    squares = call["e_t"] ** 2
    key, value = (torch.sqrt(contract_as_step(squares, call[name] ** 2)) for name in ("W_K", "W_V"))
    terms = call["rms_w_h"] * call["h_t"] * (key + torch.abs(k))
    spread = 1 + _norm(terms) * (gate.rrms_h * gate.rrms_k) / math.sqrt(k.shape[-1])
    vhat = gate.alpha[..., None] * (value + torch.abs(v)) * spread[..., None]
    newest = torch.abs(call["rms_w_v"]) * vhat * gate.rrms_v[..., None]
    state = torch.abs(call["conv_state"])
    c = accumulate(torch.abs(call["conv_w"])[:, None] * _taps(call, newest, state))
    return vhat + c, torch.cat((state[:, 1:], newest[:, None]), dim=1)


def _torch_decode(call: Call) -> Outputs:
    """The last token of a sequence that is the cache and the new token."""
    v = call["e_t"] @ call["W_V"]
    _, vhat, n = _torch_gate(call["h_t"], call["e_t"] @ call["W_K"], v, call)
    sequence = torch.cat((call["conv_state"], n[:, None]), dim=1)
    c = _torch_convolved(sequence, call["conv_w"], call.param("dilation"))[:, -1]
    return vhat + F.silu(c), sequence[:, 1:]


def ignores_the_length_of_keys(run: Run, inputs: Inputs, params: Params) -> bool:
    """Doubling a key or a hidden state leaves the gate when epsilon is negligible."""
    small = {**params, "eps": 1e-30}
    changed = {name: doubled(inputs[name]) for name in ("H", "k")}
    return close(run({**inputs, **changed}, small)[2], run(inputs, small)[2], 1.0)


def moves_the_cache_on(run: Run, inputs: Inputs, params: Params) -> bool:
    """The new cache is the old one without its first token, and one more behind."""
    new = run(inputs, params)[1]
    return close(new[:, :-1], inputs["conv_state"][:, 1:].to(new.dtype))


def _length(call: Call) -> int:
    """Elements of a token, or tokens that a weight's gradient adds up."""
    return max(call["H"].shape[-1], math.prod(call["H"].shape[:2]))


ORACLES = (
    Oracle(
        "EngramGateConvFwdOp",
        _forward,
        _torch_forward,
        magnitudes=_forward_size,
        length=_length,
        properties=(ignores_the_length_of_keys, is_causal(1)),
    ),
    Oracle(
        "EngramGateConvBwdOp",
        _gradients,
        _autograd,
        magnitudes=_gradient_sizes,
        length=_length,
        properties=(doubles_with("dY"),),
    ),
    Oracle(
        "EngramDecodeFwdOp",
        _decode,
        _torch_decode,
        magnitudes=_decode_size,
        length=lambda call: max(call["W_K"].shape),
        properties=(moves_the_cache_on,),
    ),
)
