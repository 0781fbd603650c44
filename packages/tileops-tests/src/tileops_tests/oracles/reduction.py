"""Oracles of reductions: x of any shape, over the axes that `dim` names; `keepdim` leaves them with size 1.

`dim` None is all axes; an empty list is all axes, for `all` and `any` none.

Over the n terms x_i of a group:

* sum, mean = sum / n, prod; amax, amin: the extreme term, NaN if there is one.
* var = sum (x_i - mean)^2 / (n - correction), std its root, var_mean both.
* argmax, argmin: the least index of an extreme term, NaN being the extreme of all.
* all, any: whether every or some x_i is not 0; count_nonzero: how many are not.
* l1_norm = sum |x_i|, l2_norm = sqrt(sum x_i^2), inf_norm = max |x_i|.
* logsumexp = log(sum exp(x_i)), shifted by the largest finite term.

Source: the documentation of the torch functions that the entries mirror (`ref_api`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tileops_tests.oracles.arithmetic import accumulate, axes_of, fold, group, mean_of, ungroup
from tileops_tests.oracles.base import Call, Magnitudes, Opinion, Oracle, Outputs, Property, no_magnitudes
from tileops_tests.oracles.forms import single
from tileops_tests.oracles.properties import ignores_a_shift, ignores_order, is_homogeneous

Reduce = Callable[[Call, Tensor], Tensor]

_TRUTH = ("AllFwdOp", "AnyFwdOp")


def _elements(call: Call) -> Tensor:
    """x; a complex element, which only ops about truth take, counts as whether either part of it is not 0."""
    return (call["x"] != 0).any(-1) if call.given["x"].is_complex() else call["x"]


def _axes(call: Call, op: str) -> tuple[int, ...]:
    return axes_of(call.param("dim"), _elements(call).dim(), empty_is_all=op not in _TRUTH)


def _reduced(call: Call, op: str, reduce: Reduce) -> Tensor:
    """`reduce` applied to [terms, *kept]."""
    x, axes = _elements(call), _axes(call, op)
    if op in _TRUTH and not axes and x.dim():
        return x != 0
    return ungroup(reduce(call, group(x, axes)), axes, call.param("keepdim"))


def _length(call: Call, op: str) -> int:
    return group(_elements(call), _axes(call, op)).shape[0]


def _square_sum(terms: Tensor) -> Tensor:
    return accumulate(terms * terms)


def _root(square: Tensor) -> Tensor:
    return torch.sqrt(square)


def _deviations(terms: Tensor) -> Tensor:
    return terms - mean_of(terms)


def _variance(call: Call, terms: Tensor) -> Tensor:
    """Squared deviations from the mean, over max(0, n - correction): two passes."""
    freedom = max(terms.shape[0] - call.param("correction"), 0)
    return _square_sum(_deviations(terms)) / torch.tensor(freedom, dtype=terms.dtype, device=terms.device)


def _product(call: Call, terms: Tensor) -> Tensor:
    if terms.shape[0] == 0:
        return torch.ones(terms.shape[1:], dtype=terms.dtype, device=terms.device)
    return fold(terms, torch.mul)


def _truth(call: Call, terms: Tensor, *, of_nothing: bool) -> Tensor:
    truth = terms != 0
    if truth.shape[0] == 0:
        return torch.full(truth.shape[1:], of_nothing, device=truth.device)
    return fold(truth, torch.logical_or) if not of_nothing else fold(truth, torch.logical_and)


def _first_extreme(call: Call, terms: Tensor, extreme: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Least index at which the element is the extreme one, NaN being the extreme of all."""
    wanted = fold(terms, extreme)
    hit = (terms == wanted) | ((terms != terms) & (wanted != wanted))
    count = terms.shape[0]
    index = torch.arange(count, device=terms.device).reshape(count, *(1,) * (terms.dim() - 1))
    return fold(torch.where(hit, index, torch.full_like(index, count)), torch.minimum)


def _log_sum_exp(call: Call, terms: Tensor) -> Tensor:
    """log of the sum of exponentials, shifted by the greatest finite-or-not element; -Inf when there are
    none.
    """
    if terms.shape[0] == 0:
        return torch.full(terms.shape[1:], -math.inf, dtype=terms.dtype, device=terms.device)
    shift = _finite_shift(terms)
    return torch.log(accumulate(torch.exp(terms - shift))) + shift


def _finite_shift(terms: Tensor) -> Tensor:
    greatest = fold(terms, torch.maximum)
    return torch.where(greatest.abs() == math.inf, torch.zeros_like(greatest), greatest)


def _variance_magnitude(call: Call, terms: Tensor) -> Tensor:
    """The variance itself, and what an error of the mean adds to it: roundoffs of the mean times the spread
    where a mean is updated or merged (a relative error of 1 + |mean| / spread roundoffs, Chan, Golub and
    LeVeque 1983), and the square of sqrt(n) of them. A difference of squares has the square of that factor.
    """
    n = max(terms.shape[0], 1)
    freedom = max(n - call.param("correction"), 1)
    mean = mean_of(terms)
    spread = _square_sum(_deviations(terms)) / freedom
    updated = _root(spread) * torch.abs(mean)
    return spread + updated + 2.0**-24 * math.sqrt(n) * mean_of(torch.abs(terms)) ** 2


def _deviation_magnitude(call: Call, terms: Tensor) -> Tensor:
    """The deviation itself and the mean: near 0 the root turns a roundoff of the mean into one of the same
    size.
    """
    return _root(_square_sum(_deviations(terms)) / max(terms.shape[0], 1)) + mean_of(torch.abs(terms))


def _log_magnitude(call: Call, terms: Tensor) -> Tensor:
    """The shift, the logarithm, and 1: a relative error of the sum is an absolute one of its logarithm."""
    if terms.shape[0] == 0:
        return torch.ones(terms.shape[1:], dtype=terms.dtype, device=terms.device)
    return torch.abs(_finite_shift(terms)) + torch.abs(_log_sum_exp(call, terms)) + 1


def _oracle(
    op: str,
    reduce: Reduce,
    opinion: Callable[[Call], Tensor],
    *properties: Property,
    magnitude: Reduce | None = None,
    summed: bool = True,
) -> Oracle:
    def magnitudes(call: Call) -> Magnitudes:
        return (_reduced(call, op, magnitude),)

    return Oracle(
        op,
        lambda call: (_reduced(call, op, reduce),),
        _single(opinion),
        magnitudes=no_magnitudes if magnitude is None else magnitudes,
        length=(lambda call: _length(call, op)) if summed else (lambda call: 1),
        properties=properties,
    )


def _single(opinion: Callable[[Call], Tensor]) -> Opinion:
    def outputs(call: Call) -> Outputs:
        return (opinion(call),)

    return outputs


def _torch(function: Callable[..., Tensor], *names: str) -> Callable[[Call], Tensor]:
    """`function(x, dim=…, keepdim=…)` with the other params named; dim=() as the entry means it, all axes."""

    def opinion(call: Call) -> Tensor:
        dim = call.param("dim")
        return function(
            call["x"],
            dim=tuple(range(call["x"].dim())) if dim == () or dim is None else dim,
            keepdim=call.param("keepdim"),
            **{name: call.param(name) for name in names},
        )

    return opinion


def _torch_truth(function: Callable[..., Tensor]) -> Callable[[Call], Tensor]:
    def opinion(call: Call) -> Tensor:
        x, dim = call.given["x"], call.param("dim")
        named = tuple(range(x.dim())) if dim is None else dim
        return function(x, dim=named, keepdim=call.param("keepdim")).to(torch.bool)

    return opinion


def _torch_index(function: Callable[..., Tensor]) -> Callable[[Call], Tensor]:
    return lambda call: function(call["x"], dim=call.param("dim"), keepdim=call.param("keepdim"))


def _var_mean(call: Call) -> Outputs:
    op = "VarMeanFwdOp"
    return _reduced(call, op, _variance), _reduced(call, op, lambda _, terms: mean_of(terms))


def _torch_var_mean(call: Call) -> Outputs:
    x, dim = call["x"], call.param("dim")
    axes, keepdim = tuple(range(x.dim())) if dim in ((), None) else dim, call.param("keepdim")
    var, mean = torch.var_mean(x, axes, correction=call.param("correction"), keepdim=keepdim)
    # torch updates the mean element by element, which gives NaN after an infinite one.
    return var, torch.where(mean.isnan(), torch.mean(x, axes, keepdim=keepdim), mean)


def _var_mean_magnitudes(call: Call) -> Magnitudes:
    op = "VarMeanFwdOp"
    means = _reduced(call, op, lambda _, terms: mean_of(torch.abs(terms)))
    return _reduced(call, op, _variance_magnitude), means


def _count_nonzero(call: Call) -> Tensor:
    x = _elements(call)
    return accumulate((group(x, axes_of(call.param("dim"), x.dim())) != 0).to(torch.int64))


ORACLES = (
    _oracle(
        "SumFwdOp",
        lambda call, terms: accumulate(terms),
        _torch(torch.sum),
        ignores_order,
        is_homogeneous,
        magnitude=lambda call, terms: accumulate(torch.abs(terms)),
    ),
    _oracle(
        "MeanFwdOp",
        lambda call, terms: mean_of(terms),
        _torch(torch.mean),
        ignores_order,
        is_homogeneous,
        magnitude=lambda call, terms: mean_of(torch.abs(terms)),
    ),
    _oracle(
        "AmaxFwdOp",
        lambda call, terms: fold(terms, torch.maximum),
        _torch(torch.amax),
        ignores_order,
        is_homogeneous,
        summed=False,
    ),
    _oracle(
        "AminFwdOp",
        lambda call, terms: fold(terms, torch.minimum),
        _torch(torch.amin),
        ignores_order,
        is_homogeneous,
        summed=False,
    ),
    _oracle("ProdFwdOp", _product, _torch_index(torch.prod), ignores_order),
    _oracle(
        "VarFwdOp",
        _variance,
        _torch(torch.var, "correction"),
        ignores_a_shift,
        magnitude=_variance_magnitude,
    ),
    _oracle(
        "StdFwdOp",
        lambda call, terms: _root(_variance(call, terms)),
        _torch(torch.std, "correction"),
        ignores_a_shift,
        is_homogeneous,
        magnitude=_deviation_magnitude,
    ),
    Oracle(
        "VarMeanFwdOp",
        _var_mean,
        _torch_var_mean,
        magnitudes=_var_mean_magnitudes,
        length=lambda call: _length(call, "VarMeanFwdOp"),
        properties=(ignores_a_shift,),
    ),
    _oracle(
        "ArgmaxFwdOp",
        lambda call, terms: _first_extreme(call, terms, torch.maximum),
        _torch_index(torch.argmax),
        summed=False,
    ),
    _oracle(
        "ArgminFwdOp",
        lambda call, terms: _first_extreme(call, terms, torch.minimum),
        _torch_index(torch.argmin),
        summed=False,
    ),
    _oracle(
        "AllFwdOp",
        lambda call, terms: _truth(call, terms, of_nothing=True),
        _torch_truth(torch.all),
        ignores_order,
        summed=False,
    ),
    _oracle(
        "AnyFwdOp",
        lambda call, terms: _truth(call, terms, of_nothing=False),
        _torch_truth(torch.any),
        ignores_order,
        summed=False,
    ),
    single(
        "CountNonzeroFwdOp",
        _count_nonzero,
        lambda call: torch.count_nonzero(call.given["x"], dim=call.param("dim")),
        ignores_order,
    ),
    _oracle(
        "L1NormFwdOp",
        lambda call, terms: accumulate(torch.abs(terms)),
        _torch(torch.linalg.vector_norm, "ord"),
        ignores_order,
        is_homogeneous,
    ),
    _oracle(
        "InfNormFwdOp",
        lambda call, terms: fold(torch.abs(terms), torch.maximum),
        _torch(torch.linalg.vector_norm, "ord"),
        ignores_order,
        is_homogeneous,
        summed=False,
    ),
    _oracle(
        "L2NormFwdOp",
        lambda call, terms: _root(_square_sum(terms)),
        _torch(torch.linalg.vector_norm, "ord"),
        ignores_order,
        is_homogeneous,
    ),
    _oracle(
        "LogSumExpFwdOp",
        _log_sum_exp,
        _torch(torch.logsumexp),
        ignores_order,
        magnitude=_log_magnitude,
    ),
)
