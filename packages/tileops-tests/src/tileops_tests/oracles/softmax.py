"""Oracles of softmax and its logarithm: x of any shape, along one axis.

`dim` None is torch's implicit axis: 0 for tensors of rank 0, 1 and 3, else 1.

Source: the documentation of the torch functions that the entries mirror (`ref_api`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.arithmetic import exponentials
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close, ignores_a_shift


def _axis(call: Call) -> int:
    dim, rank = call.param("dim"), call["x"].dim()
    if dim is None:
        return 0 if rank in (0, 1, 3) else 1
    return dim % max(rank, 1)


def _at_least_1d(call: Call) -> Tensor:
    return call["x"].reshape(-1) if call["x"].dim() == 0 else call["x"]


def _length(call: Call) -> int:
    return _at_least_1d(call).shape[_axis(call)]


def _softmax(call: Call) -> Outputs:
    x = _at_least_1d(call)
    _, powers, total = exponentials(x, _axis(call))
    return ((powers / total if x.numel() else x.clone()).reshape(call["x"].shape),)


def _log_softmax(call: Call) -> Outputs:
    x = _at_least_1d(call)
    shifted, _, total = exponentials(x, _axis(call))
    return ((shifted - torch.log(total) if x.numel() else x.clone()).reshape(call["x"].shape),)


def _softmax_magnitude(call: Call) -> Magnitudes:
    """The output, as many times as a roundoff of its exponent is worth: 1 + |exponent|."""
    x = _at_least_1d(call)
    shifted, powers, total = exponentials(x, _axis(call))
    if not x.numel():
        return (None,)
    return ((powers / total * (1 + torch.abs(shifted).nan_to_num(0, 0, 0))).reshape(call["x"].shape),)


def _log_softmax_magnitude(call: Call) -> Magnitudes:
    """Both terms of the difference, and 1 for the sum inside the logarithm."""
    x = _at_least_1d(call)
    shifted, _, total = exponentials(x, _axis(call))
    if not x.numel():
        return (None,)
    return ((torch.abs(shifted) + torch.abs(torch.log(total)) + 1).reshape(call["x"].shape),)


def sums_to_one(run: Run, inputs: Inputs, params: Params) -> bool:
    """The outputs along the axis sum to 1, or are all NaN."""
    call = Call(inputs, params, torch.float64)
    (y,) = run(inputs, params)
    total = (y.reshape(-1) if y.dim() == 0 else y).sum(dim=_axis(call))
    return close(total, torch.where(total.isnan(), total, torch.ones_like(total)))


def exponentials_sum_to_one(run: Run, inputs: Inputs, params: Params) -> bool:
    """The exponentials of the outputs do."""
    return sums_to_one(lambda i, p: (torch.exp(run(i, p)[0]),), inputs, params)


ORACLES = (
    Oracle(
        "SoftmaxFwdOp",
        _softmax,
        lambda call: (F.softmax(call["x"], dim=_axis(call)),),
        magnitudes=_softmax_magnitude,
        length=_length,
        properties=(sums_to_one, ignores_a_shift),
    ),
    Oracle(
        "LogSoftmaxFwdOp",
        _log_softmax,
        lambda call: (F.log_softmax(call["x"], dim=_axis(call)),),
        magnitudes=_log_softmax_magnitude,
        length=_length,
        properties=(exponentials_sum_to_one, ignores_a_shift),
    ),
)
