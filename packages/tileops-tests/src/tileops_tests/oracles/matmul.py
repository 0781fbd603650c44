"""Oracles of matrix products: d[m, n] = sum over k of a[m, k] * b[k, n].

Gemm: a [M, K], or [K, M] with trans_a; b [K, N], or [N, K] with trans_b. Bmm: a [B, M, K], b [B, K, N].

Source: the documentation of torch.matmul and torch.bmm.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import contract
from tileops_tests.oracles.base import Call, Inputs, Oracle, Params
from tileops_tests.oracles.properties import Run, close, doubled

Operands = Callable[[Call], tuple[Tensor, Tensor]]


def _gemm_operands(call: Call) -> tuple[Tensor, Tensor]:
    a, b = call["a"], call["b"]
    return a.mT if call.param("trans_a") else a, b.mT if call.param("trans_b") else b


def _bmm_operands(call: Call) -> tuple[Tensor, Tensor]:
    return call["a"], call["b"]


def is_linear_in_a(run: Run, inputs: Inputs, params: Params) -> bool:
    """Doubling a doubles the product."""
    changed = {**inputs, "a": doubled(inputs["a"])}
    return close(run(changed, params)[0], run(inputs, params)[0] * 2)


def identity_reproduces(run: Run, inputs: Inputs, params: Params) -> bool:
    """With the identity for b the product is a (transposed when stored so), wherever a row of it is
    finite.
    """
    a = inputs["a"]
    transposed = params.get("trans_a", False)
    rows = a.mT if transposed else a
    eye = torch.eye(rows.shape[-1], dtype=a.dtype)
    (product,) = run({"a": a, "b": eye.expand(*a.shape[:-2], *eye.shape)}, params)
    finite = rows.isfinite().all(dim=-1)
    return close(product[finite], rows.to(product.dtype)[finite])


def _oracle(op: str, operands: Operands, opinion: Callable[[Tensor, Tensor], Tensor]) -> Oracle:
    return Oracle(
        op,
        lambda call: (contract(*operands(call)),),
        lambda call: (opinion(*operands(call)),),
        magnitudes=lambda call: (contract(*(torch.abs(x) for x in operands(call))),),
        length=lambda call: operands(call)[0].shape[-1],
        properties=(is_linear_in_a, identity_reproduces),
    )


ORACLES = (
    _oracle("GemmFwdOp", _gemm_operands, torch.matmul),
    _oracle("BmmFwdOp", _bmm_operands, torch.bmm),
)
