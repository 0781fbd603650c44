"""Oracles of pooling over the last n axes of input [N, C, *spatial].

A window is a set of elements, `Axis` by axis: which places it holds and which of those lie in the input.
Padding is no element.

* avg_pool: sum over the window's elements, divided by the number of places up to the end of the padded input,
  or of elements with count_include_pad=False, or by divisor_override. Windows begin at i * stride - padding.
* max_pool: the greatest element and its place in the flattened spatial axes; of equal ones the first, of
  NaNs the last. Elements of a window are `dilation` apart.
* adaptive pools: window i of n along a size holds the places floor(i size / n) up to ceil((i + 1) size / n).

With ceil_mode there are as many windows as cover the padded input, without it as many as fit; a window never
begins behind the input (https://docs.pytorch.org/docs/stable/nn.functional.html).

Source: the documentation of the torch functions that the entries mirror (`ref_api`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close, is_homogeneous


class Axis(NamedTuple):
    """Windows along one axis of length `size`: places [windows, places], which of them are in the input, and
    how many each window counts with padding (int64).
    """

    size: int
    place: Tensor
    inside: Tensor
    counted: Tensor


class Tap(NamedTuple):
    """The same place of every window: its element, whether there is one, and where that lies."""

    value: Tensor
    inside: Tensor
    position: Tensor


Axes = Callable[[Call], list[Axis]]


def _each(value: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else value


def _windows(call: Call) -> list[Axis]:
    sizes = call["input"].shape[2:]
    n = len(sizes)
    kernel = _each(call.param("kernel_size"), n)
    stride = kernel if call.param("stride") is None else _each(call.param("stride"), n)
    padding, dilation = _each(call.param("padding"), n), _each(call.params.get("dilation", 1), n)
    given = zip(sizes, kernel, stride, padding, dilation, strict=True)
    return [_axis(*one, call.param("ceil_mode"), call["input"].device) for one in given]


def _axis(
    size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool, device: torch.device
) -> Axis:
    padded, reach = size + 2 * padding, dilation * (kernel - 1)
    if ceil_mode:
        # One more while the window before it leaves the last place out.
        starts = [t for t in range(0, size + padding, stride) if t - stride + reach < padded - 1]
    else:
        starts = [t for t in range(0, padded, stride) if t + reach < padded]
    start = torch.tensor(starts, dtype=torch.int64, device=device)[:, None] - padding
    place = start + dilation * torch.arange(kernel, device=device)
    return Axis(size, place, (place >= 0) & (place < size), (place < size + padding).sum(dim=1))


def _adaptive(call: Call) -> list[Axis]:
    x, asked = call["input"], call.param("output_size")
    sizes = x.shape[2:]
    wanted = asked if isinstance(asked, tuple) else (asked,) * len(sizes)
    return [
        _adaptive_axis(size, size if count is None else count, x.device)
        for size, count in zip(sizes, wanted, strict=True)
    ]


def _adaptive_axis(size: int, count: int, device: torch.device) -> Axis:
    i = torch.arange(count, device=device)
    start, end = i * size // count, -(-(i + 1) * size // count)
    place = start[:, None] + torch.arange(int((end - start).max()), device=device)
    inside = place < end[:, None]
    return Axis(size, place, inside, inside.sum(dim=1))


def _taps(x: Tensor, axes: list[Axis]) -> Iterator[Tap]:
    """Every place of the windows, the last axis fastest; `value` is [N, C, *windows]."""
    for places in product(*(range(axis.place.shape[1]) for axis in axes)):
        value, inside = x, torch.ones((), dtype=torch.bool, device=x.device)
        position = torch.zeros((), dtype=torch.int64, device=x.device)
        for number, (axis, j) in enumerate(zip(axes, places, strict=True)):
            place = axis.place[:, j].clamp(0, axis.size - 1)
            value = value.index_select(2 + number, place)
            inside = inside[..., None] & axis.inside[:, j]
            position = position[..., None] * axis.size + place
        yield Tap(value, inside, position)


def _over_axes(numbers: list[Tensor]) -> Tensor:
    """The product of one number per window and axis: [*windows]."""
    total = numbers[0]
    for number in numbers[1:]:
        total = total[..., None] * number
    return total


def _divisor(call: Call, axes: list[Axis]) -> Tensor:
    override = call.params.get("divisor_override")
    if override is not None:
        return torch.tensor(override, device=call["input"].device)
    padded = call.params.get("count_include_pad", True)
    return _over_axes([axis.counted if padded else axis.inside.sum(dim=1) for axis in axes])


def _sum(x: Tensor, axes: list[Axis]) -> Tensor:
    total: Any = 0
    for tap in _taps(x, axes):
        total = total + torch.where(tap.inside, tap.value, torch.zeros_like(tap.value))
    return total


def _mean(call: Call, axes: list[Axis]) -> Tensor:
    return _sum(call["input"], axes) / _divisor(call, axes)


def _mean_magnitude(call: Call, axes: list[Axis]) -> Tensor:
    return _sum(torch.abs(call["input"]), axes) / torch.abs(_divisor(call, axes))


def _greatest(call: Call, axes: list[Axis]) -> tuple[Tensor, Tensor]:
    """The greatest element of each window and its position; the first element wins against none."""
    best: Any = None
    for tap in _taps(call["input"], axes):
        if best is None:
            best, where = tap.value, tap.position.expand(tap.value.shape)
            found = tap.inside.expand(tap.value.shape)
            continue
        wins = tap.inside & (~found | (tap.value > best) | (tap.value != tap.value))
        best = torch.where(wins, tap.value, best)
        where = torch.where(wins, tap.position, where)
        found = found | tap.inside
    return best, where


def _torch_avg(call: Call) -> Outputs:
    x, params = call["input"], dict(call.params)
    function = {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}[x.dim()]
    return (function(x, **params),)


def _torch_max(call: Call, indices: bool) -> Outputs:
    x = call["input"]
    function = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}[x.dim()]
    result = function(x, **call.params, return_indices=indices)
    return tuple(result) if indices else (result,)


def _torch_adaptive_max(call: Call, indices: bool) -> Outputs:
    result = F.adaptive_max_pool2d(call["input"], _torch_size(call), return_indices=indices)
    return tuple(result) if indices else (result,)


def _torch_size(call: Call) -> Any:
    asked = call.param("output_size")
    return (None, None) if asked is None else asked


def keeps_a_constant(run: Run, inputs: Inputs, params: Params) -> bool:
    """The mean of ones over elements alone is 1."""
    alone = {"count_include_pad": False, "divisor_override": None}
    asked = {name: alone.get(name, value) for name, value in params.items()}
    (mean,) = run({"input": torch.ones_like(inputs["input"], dtype=torch.float64)}, asked)
    return close(mean, torch.ones_like(mean))


def commutes_with_order(run: Run, inputs: Inputs, params: Params) -> bool:
    """The greatest of rising functions of elements is that function of the greatest: here x + x |x|."""

    def rising(x: Tensor) -> Tensor:
        return x + x * torch.abs(x)

    x = inputs["input"].to(torch.float64)
    return close(run({"input": rising(x)}, params)[0], rising(run({"input": x}, params)[0]))


def indices_point_at_the_values(run: Run, inputs: Inputs, params: Params) -> bool:
    """The element at an index is the output, up to NaN, which both are."""
    values, indices = run(inputs, params)
    at = inputs["input"].flatten(2).gather(2, indices.flatten(2)).to(values.dtype)
    return close(at, values.flatten(2))


def _average(op: str, axes: Axes, opinion: Callable[[Call], Outputs]) -> Oracle:
    def magnitudes(call: Call) -> Magnitudes:
        return (_mean_magnitude(call, axes(call)),)

    return Oracle(
        op,
        lambda call: (_mean(call, axes(call)),),
        opinion,
        magnitudes=magnitudes,
        length=lambda call: math.prod(axis.place.shape[1] for axis in axes(call)),
        properties=(is_homogeneous, keeps_a_constant),
    )


def _maximum(op: str, axes: Axes, opinion: Callable[[Call, bool], Outputs]) -> Oracle:
    indices = "Indices" in op
    return Oracle(
        op,
        lambda call: _greatest(call, axes(call))[: 1 + indices],
        lambda call: opinion(call, indices),
        magnitudes=lambda call: (None,) * (1 + indices),
        properties=(commutes_with_order, *((indices_point_at_the_values,) if indices else ())),
    )


ORACLES = (
    *(_average(f"AvgPool{n}dFwdOp", _windows, _torch_avg) for n in (1, 2, 3)),
    *(_maximum(f"MaxPool{n}dFwdOp", _windows, _torch_max) for n in (1, 2, 3)),
    *(_maximum(f"MaxPool{n}dIndicesFwdOp", _windows, _torch_max) for n in (1, 2, 3)),
    _average(
        "AdaptiveAvgPool2dFwdOp",
        _adaptive,
        lambda call: (F.adaptive_avg_pool2d(call["input"], _torch_size(call)),),
    ),
    _maximum("AdaptiveMaxPool2dFwdOp", _adaptive, _torch_adaptive_max),
    _maximum("AdaptiveMaxPool2dIndicesFwdOp", _adaptive, _torch_adaptive_max),
)
