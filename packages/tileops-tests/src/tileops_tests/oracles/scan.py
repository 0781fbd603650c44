"""Oracles of running sums and products along one axis of x of any shape: y_i is made of x_0 to x_i.

Source: the documentation of torch.cumsum and torch.cumprod.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Inputs, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close, is_homogeneous


def _running(x: Tensor, dim: int, combine: Callable[[Tensor, Tensor], Tensor] = torch.add) -> Tensor:
    """One step after another, each rounded to the dtype."""
    if x.dim() == 0 or x.numel() == 0:
        return x.clone()
    first, *others = x.movedim(dim, 0).unbind(0)
    results = [first]
    for term in others:
        results.append(combine(results[-1], term))
    return torch.stack(results).movedim(0, dim)


def _program(call: Call) -> Outputs:
    return (_running(call["x"], call.param("dim")),)


def _product_program(call: Call) -> Outputs:
    return (_running(call["x"], call.param("dim"), torch.mul),)


def _length(call: Call) -> int:
    return call["x"].shape[call.param("dim")] if call["x"].dim() else 1


def differences_are_the_terms(run: Run, inputs: Inputs, params: Params) -> bool:
    """y_i - y_(i-1) = x_i wherever the sums are finite."""
    (y,), x, dim = run(inputs, params), inputs["x"], params["dim"]
    if x.dim() == 0 or x.shape[dim] < 2:
        return True
    steps, terms = y.diff(dim=dim), x.narrow(dim, 1, x.shape[dim] - 1).to(y.dtype)
    finite = steps.isfinite()
    return close(steps[finite], terms[finite], y.abs()[y.isfinite()].max() if y.isfinite().any() else 1.0)


def steps_multiply(run: Run, inputs: Inputs, params: Params) -> bool:
    """y_i = y_(i-1) x_i, from y_0 = x_0 on."""
    (y,), x, dim = run(inputs, params), inputs["x"], params["dim"]
    if x.dim() == 0 or x.shape[dim] == 0:
        return True
    count = x.shape[dim]
    terms = x.to(y.dtype)
    start = close(y.narrow(dim, 0, 1), terms.narrow(dim, 0, 1))
    return start and close(
        y.narrow(dim, 1, count - 1), y.narrow(dim, 0, count - 1) * terms.narrow(dim, 1, count - 1)
    )


ORACLES = (
    Oracle(
        "CumsumFwdOp",
        _program,
        lambda call: (torch.cumsum(call["x"], dim=call.param("dim")),),
        magnitudes=lambda call: (_running(torch.abs(call["x"]), call.param("dim")),),
        length=_length,
        properties=(differences_are_the_terms, is_homogeneous),
    ),
    Oracle(
        "CumprodFwdOp",
        _product_program,
        lambda call: (torch.cumprod(call["x"], dim=call.param("dim")),),
        length=_length,
        properties=(steps_multiply,),
    ),
)
