"""Oracles of manifold-constrained hyper-connections (mHC, arXiv:2512.24880).

A token x holds n streams x_i of c elements.

* Reading: z = x phi / sqrt(mean(x^2) + eps), n^2 + 2 n numbers; pre = sigmoid(alpha_pre z[:n] + b[:n]);
  R = exp(alpha_res z[2n:] + b[2n:]) as an n x n matrix, made nearly doubly stochastic by Sinkhorn's rounds:
  each column divided by its sum + sinkhorn_eps, then each row by its sum + sinkhorn_eps.
  x_layer = sum_i pre_i x_i [batch, c]; x_res_i = sum_j R_ij x_j [batch, n c].
* Writing: stream i of x_out is stream i of x_res + h_post_i x_layer_out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.arithmetic import accumulate, contract_as_step, mean_of
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close


class Mix(NamedTuple):
    """Per token the weights of its streams: pre [batch, n] and R [batch, n, n]."""

    pre: Tensor
    res: Tensor


def _streams(call: Call) -> int:
    """n of n^2 + 2 n columns."""
    columns = call["phi"].shape[1]
    return next(n for n in range(1, columns) if n * n + 2 * n == columns)


def _projections(call: Call) -> Tensor:
    """z [batch, n^2 + 2 n]."""
    x = call["x"]
    root = torch.sqrt(mean_of((x * x).T) + call.param("eps"))
    return contract_as_step(x, call["phi"]) / root[:, None]


def _mix(call: Call) -> Mix:
    z, b, n = _projections(call), call["b"], _streams(call)
    pre = 1 / (1 + torch.exp(-(call.param("alpha_pre") * z[:, :n] + b[:n])))
    res = torch.exp(call.param("alpha_res") * z[:, 2 * n :] + b[2 * n :]).reshape(z.shape[0], n, n)
    eps = call.param("sinkhorn_eps")
    for _ in range(call.param("sinkhorn_repeat")):
        res = res / (accumulate(res.movedim(1, 0)) + eps)[:, None, :]
        res = res / (accumulate(res.movedim(2, 0)) + eps)[:, :, None]
    return Mix(pre, res)


def _mixed(mix: Mix, x: Tensor) -> Outputs:
    n = mix.pre.shape[-1]
    streams = x.reshape(x.shape[0], n, x.shape[1] // n)
    layer = contract_as_step(mix.pre[:, None, :], streams)[:, 0]
    return contract_as_step(mix.res, streams).flatten(1), layer


def _pre(call: Call) -> Outputs:
    return _mixed(_mix(call), call["x"])


def _pre_size(call: Call) -> Magnitudes:
    """Errors of exponents are relative errors of weights; each round of Sinkhorn passes them on."""
    squares = call["x"] ** 2
    root = torch.sqrt(mean_of(squares.T) + call.param("eps"))
    z = torch.sqrt(contract_as_step(squares, call["phi"] ** 2)).amax(dim=-1) / root
    factor = max(abs(call.param("alpha_pre")), abs(call.param("alpha_res")))
    worst = (1 + factor * z + torch.abs(call["b"]).amax())[:, None]
    res, layer = _mixed(_mix(call), torch.abs(call["x"]))
    return res * worst * (1 + call.param("sinkhorn_repeat")), layer * worst


def _pre_as_einsum(call: Call) -> Outputs:
    x, n = call["x"], _streams(call)
    z = F.rms_norm(x, x.shape[-1:], eps=call.param("eps")) @ call["phi"]
    scaled = z * call.param("alpha_pre") + call["b"]
    pre = torch.sigmoid(scaled[:, :n])
    exponents = (z * call.param("alpha_res") + call["b"])[:, 2 * n :].unflatten(1, (n, n))
    eps, matrix = call.param("sinkhorn_eps"), exponents.exp()
    # Rows and columns of one matrix are scaled; the matrix itself is never changed.
    rows, columns = torch.ones_like(matrix[:, :, 0]), torch.ones_like(matrix[:, 0])
    for _ in range(call.param("sinkhorn_repeat")):
        columns = columns / (torch.einsum("bi,bij,bj->bj", rows, matrix, columns) + eps)
        rows = rows / (torch.einsum("bi,bij,bj->bi", rows, matrix, columns) + eps)
    streams = x.unflatten(1, (n, x.shape[1] // n))
    res = torch.einsum("bi,bij,bj,bjc->bic", rows, matrix, columns, streams)
    return res.flatten(1), torch.einsum("bi,bic->bc", pre, streams)


def _post(call: Call) -> Outputs:
    gates, layer = call["h_post"], call["x_layer_out"]
    return (call["x_res"] + (gates[:, :, None] * layer[:, None, :]).flatten(1),)


def _post_size(call: Call) -> Magnitudes:
    return _post(Call({name: torch.abs(call[name]) for name in call.given}, call.params, call.dtype))


def _post_stream_by_stream(call: Call) -> Outputs:
    gates, layer = call["h_post"], call["x_layer_out"]
    size = layer.shape[-1]
    streams = [
        torch.addcmul(call["x_res"][:, i * size : (i + 1) * size], gates[:, i, None], layer)
        for i in range(gates.shape[-1])
    ]
    return (torch.cat(streams, dim=1) if streams else call["x_res"].clone(),)


def equal_streams_stay_equal(run: Run, inputs: Inputs, params: Params) -> bool:
    """Without sinkhorn_eps rows of R sum to 1, so that streams that are all alike are left as they are."""
    n = next(n for n in range(1, inputs["b"].numel()) if n * n + 2 * n == inputs["b"].numel())
    stream = inputs["x"].reshape(inputs["x"].shape[0], n, -1)[:, 0].to(torch.float64)
    alike = stream.repeat(1, n)
    exact = {**params, "sinkhorn_eps": 0.0, "sinkhorn_repeat": max(params["sinkhorn_repeat"], 1)}
    return close(run({**inputs, "x": alike}, exact)[0], alike, 1.0)


def nothing_written_changes_nothing(run: Run, inputs: Inputs, params: Params) -> bool:
    """h_post = 0 leaves x_res."""
    (out,) = run({**inputs, "h_post": torch.zeros_like(inputs["h_post"])}, params)
    return close(out, inputs["x_res"].to(out.dtype))


ORACLES = (
    Oracle(
        "MHCPreFwdOp",
        _pre,
        _pre_as_einsum,
        magnitudes=_pre_size,
        length=lambda call: call["x"].shape[-1],
        properties=(equal_streams_stay_equal,),
    ),
    Oracle(
        "MHCPostFwdOp",
        _post,
        _post_stream_by_stream,
        magnitudes=_post_size,
        length=lambda call: 2,
        properties=(nothing_written_changes_nothing,),
    ),
)
