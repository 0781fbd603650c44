"""Oracle of the running sum: y_i = x_0 + … + x_i along one axis of x of any shape."""

from __future__ import annotations

import torch
from torch import Tensor

from tileops_tests.oracles.base import Call, Inputs, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close, is_homogeneous


def _running(x: Tensor, dim: int) -> Tensor:
    """One addition after another, each rounded to the dtype."""
    if x.dim() == 0 or x.numel() == 0:
        return x.clone()
    first, *others = x.movedim(dim, 0).unbind(0)
    sums = [first]
    for term in others:
        sums.append(sums[-1] + term)
    return torch.stack(sums).movedim(0, dim)


def _program(call: Call) -> Outputs:
    return (_running(call["x"], call.param("dim")),)


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


ORACLES = (
    Oracle(
        "CumsumFwdOp",
        _program,
        lambda call: (torch.cumsum(call["x"], dim=call.param("dim")),),
        magnitudes=lambda call: (_running(torch.abs(call["x"]), call.param("dim")),),
        length=_length,
        properties=(differences_are_the_terms, is_homogeneous),
    ),
)
