"""Oracles of products of matrices that are stored in fewer bits than they are multiplied in.

* 8-bit batches: d [B, M, N] = scale_a * scale_b * a b; a [B, M, K], b [B, K, N] (KN) or [B, N, K] (NK).
* 8-bit (arXiv:2412.19437, section 3.3): d [M, N] = a b^T + bias; a [M, K] and b [N, K] are scaled by one
  factor each, or row by row and block of 128 columns by block, the last block being what is left.
* 4-bit weights (arXiv:2306.00978): output [M, N] = activation w^T; w[n, k] = (nibble - weight_zero[n, g]) *
  weight_scale[n, g] with g = k // group_size; byte k // 2 holds even k in its low half.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import contract_as_step
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close

_BLOCK = 128

Operands = Callable[[Call], tuple[Tensor, Tensor]]


def _batches_kn(call: Call) -> tuple[Tensor, Tensor]:
    return call["a"], call["b"]


def _batches_nk(call: Call) -> tuple[Tensor, Tensor]:
    return call["a"], call["b"].mT


def _bmm(call: Call, operands: Operands) -> Outputs:
    return (contract_as_step(*operands(call)) * (call["scale_a"] * call["scale_b"]),)


def _bmm_by_scaled_operands(call: Call, operands: Operands) -> Outputs:
    a, b = operands(call)
    return (torch.bmm(a * call["scale_a"], b * call["scale_b"]),)


def _bmm_magnitude(call: Call, operands: Operands) -> Magnitudes:
    a, b = operands(call)
    return (torch.bmm(a.abs(), b.abs()) * (call["scale_a"] * call["scale_b"]).abs(),)


def _spread(scale: Tensor, like: Tensor) -> Tensor:
    """The factor of each element: one, or [rows, blocks] with each block repeated along its columns."""
    if scale.numel() == 1:
        return scale.expand(like.shape)
    return scale.repeat_interleave(_BLOCK, dim=1)[:, : like.shape[1]]


def _gemm(call: Call) -> Outputs:
    """Block after block of columns, each sum scaled by the factors of its rows; one block if there is one
    factor.
    """
    a, b, scale_a, scale_b = (call[name] for name in ("a", "b", "scale_a", "scale_b"))
    blocks = scale_a.shape[1]
    width = _BLOCK if blocks > 1 else max(a.shape[1], 1)
    total = torch.zeros((a.shape[0], b.shape[0]), dtype=a.dtype, device=a.device)
    for i in range(blocks):
        columns = slice(i * width, (i + 1) * width)
        part = contract_as_step(a[:, columns], b[:, columns].mT)
        total = total + part * scale_a[:, i, None] * scale_b[:, i]
    bias = call.get("bias")
    return (total if bias is None else total + bias,)


def _gemm_by_scaled_operands(call: Call) -> Outputs:
    a, b = (call[name] * _spread(call[f"scale_{name}"], call[name]) for name in "ab")
    product = torch.matmul(a, b.mT)
    bias = call.get("bias")
    return (product if bias is None else product + bias,)


def _gemm_magnitude(call: Call) -> Magnitudes:
    a, b = ((call[name] * _spread(call[f"scale_{name}"], call[name])).abs() for name in "ab")
    product, bias = torch.matmul(a, b.mT), call.get("bias")
    return (product if bias is None else product + bias.abs(),)


def _nibbles(call: Call) -> Tensor:
    """[N, K] int64: low halves at even k, high halves at odd k."""
    packed = call["packed_weight"].to(torch.int64)
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(1)


def _weights(call: Call) -> Tensor:
    """[N, K], group after group."""
    size, nibbles = call.param("group_size"), _nibbles(call)
    zero, scale = call["weight_zero"].to(torch.int64), call["weight_scale"]
    out = torch.zeros(nibbles.shape, dtype=scale.dtype, device=scale.device)
    for g in range(scale.shape[1]):
        columns = slice(g * size, (g + 1) * size)
        steps = (nibbles[:, columns] - zero[:, g, None]).to(scale.dtype)
        out[:, columns] = steps * scale[:, g, None]
    return out


def _w4a16(call: Call) -> Outputs:
    return (contract_as_step(call["activation"], call.rounded("dequantized", _weights(call)).mT),)


def _w4a16_by_groups(call: Call) -> Outputs:
    """Sums of each group over integers, the zero taken out of the sum, scaled last."""
    x, size = call["activation"], call.param("group_size")
    groups = x.shape[1] // size
    grouped = x.reshape(x.shape[0], groups, size)
    steps = _nibbles(call).reshape(call["packed_weight"].shape[0], groups, size).to(x.dtype)
    sums = torch.einsum("mgk,ngk->mng", grouped, steps)
    sums = sums - grouped.sum(dim=-1)[:, None] * call["weight_zero"].to(x.dtype)
    return ((sums * call["weight_scale"]).sum(dim=-1),)


def _w4a16_magnitude(call: Call) -> Magnitudes:
    """The second opinion adds and takes away the zero: 15 steps of weight at most."""
    size, scale = call.param("group_size"), call["weight_scale"].abs()
    largest = (15 * scale).repeat_interleave(size, dim=1)
    return (torch.matmul(call["activation"].abs(), largest.mT),)


def is_linear_in_scale_a(run: Run, inputs: Inputs, params: Params) -> bool:
    """Without bias, doubling scale_a doubles the product."""
    plain = {**inputs, "bias": None} if "bias" in inputs else inputs
    twice = {**plain, "scale_a": inputs["scale_a"].to(torch.float64) * 2}
    return close(run(twice, params)[0], run(plain, params)[0] * 2)


def equal_factors_are_one_factor(run: Run, inputs: Inputs, params: Params) -> bool:
    """With all factors of blocks equal the product is that of one factor."""
    one = torch.full((1, 1), 0.5)
    single = {**inputs, "scale_a": one, "scale_b": one}
    equal = {**inputs, **{name: torch.full_like(inputs[name], 0.5) for name in ("scale_a", "scale_b")}}
    size = inputs["a"].float().abs().nan_to_num(0, 0, 0).sum().item()
    return close(run(equal, params)[0], run(single, params)[0], size)


def a_weight_at_its_zero_is_zero(run: Run, inputs: Inputs, params: Params) -> bool:
    """With every nibble equal to its zero the product is 0."""
    zero = torch.full_like(inputs["weight_zero"], 9)
    packed = torch.full_like(inputs["packed_weight"], 9 + 16 * 9)
    x = inputs["activation"]
    finite = torch.where(x.isfinite(), x, torch.zeros_like(x))
    scale = torch.ones_like(inputs["weight_scale"])
    changed = {"activation": finite, "packed_weight": packed, "weight_zero": zero, "weight_scale": scale}
    (product,) = run(changed, params)
    return bool((product == 0).all())


def _bmm_oracle(op: str, operands: Operands) -> Oracle:
    return Oracle(
        op,
        lambda call: _bmm(call, operands),
        lambda call: _bmm_by_scaled_operands(call, operands),
        magnitudes=lambda call: _bmm_magnitude(call, operands),
        length=lambda call: call["a"].shape[-1],
        properties=(is_linear_in_scale_a,),
    )


ORACLES = (
    _bmm_oracle("BmmFp8KNFwdOp", _batches_kn),
    _bmm_oracle("BmmFp8NKFwdOp", _batches_nk),
    Oracle(
        "GemmFp8FwdOp",
        _gemm,
        _gemm_by_scaled_operands,
        magnitudes=_gemm_magnitude,
        length=lambda call: call["a"].shape[-1],
        properties=(is_linear_in_scale_a, equal_factors_are_one_factor),
    ),
    Oracle(
        "GemmW4A16FwdOp",
        _w4a16,
        _w4a16_by_groups,
        magnitudes=_w4a16_magnitude,
        length=lambda call: call["activation"].shape[-1],
        properties=(a_weight_at_its_zero_is_zero,),
    ),
)
