"""Reductions, softmax, scan and argmax: torch's own functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tileops_bench.baselines.base import Baseline, Case, Make

# op → (torch callable, params passed by keyword as they are)
_TORCH: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "SumFwdOp": (torch.sum, ("dim", "keepdim")),
    "MeanFwdOp": (torch.mean, ("dim", "keepdim")),
    "VarFwdOp": (torch.var, ("dim", "correction", "keepdim")),
    "StdFwdOp": (torch.std, ("dim", "correction", "keepdim")),
    "VarMeanFwdOp": (torch.var_mean, ("dim", "correction", "keepdim")),
    "CountNonzeroFwdOp": (torch.count_nonzero, ("dim",)),
    "ArgmaxFwdOp": (torch.argmax, ("dim", "keepdim")),
    "ArgminFwdOp": (torch.argmin, ("dim", "keepdim")),
    "L1NormFwdOp": (torch.linalg.vector_norm, ("ord", "dim", "keepdim")),
    "L2NormFwdOp": (torch.linalg.vector_norm, ("ord", "dim", "keepdim")),
    "InfNormFwdOp": (torch.linalg.vector_norm, ("ord", "dim", "keepdim")),
    "LogSumExpFwdOp": (torch.logsumexp, ("dim", "keepdim")),
    "CumsumFwdOp": (torch.cumsum, ("dim",)),
}
_HALVES = (torch.float16, torch.bfloat16)
# These take no `dim=None`: reducing over everything is written as all dims.
_ALL_DIMS: dict[str, Callable[..., Any]] = {
    "AmaxFwdOp": torch.amax,
    "AminFwdOp": torch.amin,
    "AllFwdOp": torch.all,
    "AnyFwdOp": torch.any,
}
_SOFTMAX: dict[str, Callable[..., Any]] = {"SoftmaxFwdOp": F.softmax, "LogSoftmaxFwdOp": F.log_softmax}


def _torch(op: str) -> Make:
    function, names = _TORCH[op]

    def make(case: Case) -> Callable[..., Any]:
        return partial(function, **{name: case.params[name] for name in names})

    return make


def _prod(case: Case) -> Callable[..., Any]:
    """On the CPU torch keeps running products in the input's 16 bits, which is another op; it is asked for
    float32, rounded once. On CUDA it does that by itself."""
    dim, keepdim = case.params["dim"], case.params["keepdim"]
    dtype = case.inputs["x"].dtype
    if case.target == "cpu" and dtype in _HALVES:
        return lambda x: torch.prod(x, dim, keepdim, dtype=torch.float32).to(dtype)
    return partial(torch.prod, dim=dim, keepdim=keepdim)


def _cumprod(case: Case) -> Callable[..., Any]:
    """In float32 where torch would keep running products of a CPU in 16 bits, as in `_prod`."""
    dim, dtype = case.params["dim"], case.inputs["x"].dtype
    if case.target == "cpu" and dtype in _HALVES:
        return lambda x: torch.cumprod(x, dim, dtype=torch.float32).to(dtype)
    return partial(torch.cumprod, dim=dim)


def _all_dims(op: str) -> Make:
    function = _ALL_DIMS[op]

    def make(case: Case) -> Callable[..., Any]:
        dim = case.params["dim"]
        if dim is None:
            dim = tuple(range(case.inputs["x"].ndim))
        return partial(function, dim=dim, keepdim=case.params["keepdim"])

    return make


def softmax_dim(dim: int | None, ndim: int) -> int:
    """The dim that torch's softmax takes when none is given: 0 for 0, 1 and 3 dims, else 1."""
    if dim is not None:
        return dim
    return 0 if ndim in (0, 1, 3) else 1


def _softmax(op: str) -> Make:
    function = _SOFTMAX[op]

    def make(case: Case) -> Callable[..., Any]:
        return partial(function, dim=softmax_dim(case.params["dim"], case.inputs["x"].ndim))

    return make


def _liger_softmax(case: Case) -> Callable[..., Any]:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    from tileops_bench.baselines.base import UnsupportedCase

    ndim = case.inputs["x"].ndim
    if softmax_dim(case.params["dim"], ndim) % ndim != ndim - 1:
        raise UnsupportedCase("softmax over the last dim only")
    return LigerSoftmaxFunction.apply


EAGER: dict[str, Make] = (
    {op: _torch(op) for op in _TORCH}
    | {"ProdFwdOp": _prod, "CumprodFwdOp": _cumprod}
    | {op: _all_dims(op) for op in _ALL_DIMS}
    | {op: _softmax(op) for op in _SOFTMAX}
)
LOCAL: dict[str, Make] = {}
OTHERS: tuple[Baseline, ...] = (
    Baseline("SoftmaxFwdOp", "liger", _liger_softmax, "liger-kernel", "liger_kernel", ("cuda",)),
)
