"""Oracles of convolutions (cross-correlations) over the last n axes of input [N, C_in, *spatial].

output[b, o, i] = bias[o] + sum over the channels c of o's group and the places t of the filter of
weight[o, c, t] * input[b, c, i * stride + t * dilation - padding], elements outside the input being 0; weight
[C_out, C_in / groups, *kernel], bias [C_out] optional. padding='valid' is 0; 'same' adds dilation * (kernel -
1) zeros in all, the smaller half in front (https://docs.pytorch.org/docs/stable/nn.functional.html).

Source: the documentation of the torch functions that the entries mirror (`ref_api`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tileops_tests.oracles.arithmetic import contract_as_step
from tileops_tests.oracles.base import Call, Inputs, Magnitudes, Oracle, Outputs, Params
from tileops_tests.oracles.properties import Run, close, doubled


class Operands(NamedTuple):
    """Zero-padded input [N, G, C / G, *spatial], weight [G, C_out / G, C / G, *kernel], bias [C_out] or None,
    and the steps between windows and between their elements.
    """

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def magnitudes(self) -> Operands:
        """The same with magnitudes in place of numbers."""
        bias = None if self.bias is None else torch.abs(self.bias)
        return self._replace(x=torch.abs(self.x), weight=torch.abs(self.weight), bias=bias)


def _each(value: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else value


def _ends(padding: int | tuple[int, ...] | str, reaches: list[int]) -> list[tuple[int, int]]:
    """Zeros before and behind each axis; `reaches` are dilation * (kernel - 1)."""
    if padding == "same":
        return [(reach // 2, reach - reach // 2) for reach in reaches]
    sizes = (0,) * len(reaches) if padding == "valid" else _each(padding, len(reaches))
    return [(size, size) for size in sizes]


def _operands(call: Call) -> Operands:
    x, weight, groups = call["input"], call["weight"], call.param("groups")
    kernel = weight.shape[2:]
    stride, dilation = (_each(call.param(name), len(kernel)) for name in ("stride", "dilation"))
    reaches = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
    ends = _ends(call.param("padding"), reaches)
    padded = F.pad(x, [amount for pair in reversed(ends) for amount in pair])
    return Operands(
        padded.reshape(x.shape[0], groups, x.shape[1] // groups, *padded.shape[2:]),
        weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:]),
        call.get("bias"),
        stride,
        dilation,
    )


def _taps(operands: Operands) -> Iterator[tuple[Tensor, Tensor]]:
    """Per place of the filter its weights [G, C_out / G, C / G] and the elements that they meet [N, G, C / G,
    *windows].
    """
    sizes, kernel = operands.x.shape[3:], operands.weight.shape[3:]
    steps = list(zip(sizes, kernel, operands.stride, operands.dilation, strict=True))
    for place in product(*map(range, kernel)):
        # The window that begins at the end of the padded axis less its reach is the last.
        met = tuple(
            slice(t * dilation, size - dilation * (width - 1 - t), stride)
            for t, (size, width, stride, dilation) in zip(place, steps, strict=True)
        )
        yield operands.weight[(..., *place)], operands.x[(slice(None), slice(None), slice(None), *met)]


def _correlated(operands: Operands) -> Tensor:
    total: Tensor | None = None
    for weight, met in _taps(operands):
        term = contract_as_step(weight[None], met.flatten(3))
        total = term if total is None else total + term
    # [N, G, C_out / G, windows] as [N, C_out, *windows]
    output = total.reshape(total.shape[0], total.shape[1] * total.shape[2], *met.shape[3:])
    bias = operands.bias
    return output if bias is None else output + bias.reshape(-1, *(1,) * (output.dim() - 2))


def _length(call: Call) -> int:
    return math.prod(call["weight"].shape[1:]) + 1


def is_linear_in_input_and_bias(run: Run, inputs: Inputs, params: Params) -> bool:
    """Doubling input and bias doubles the output."""
    changed = {name: doubled(inputs[name]) for name in ("input", "bias") if inputs.get(name) is not None}
    return close(run({**inputs, **changed}, params)[0], run(inputs, params)[0] * 2)


def ones_sum_the_filters(run: Run, inputs: Inputs, params: Params) -> bool:
    """Without padding, an input of ones gives each filter's sum plus its bias everywhere."""
    ones = torch.ones_like(inputs["input"], dtype=torch.float64)
    weight = inputs["weight"].to(torch.float64)
    (output,) = run({"input": ones, "weight": weight, "bias": None}, {**params, "padding": 0})
    expected = weight.flatten(1).sum(dim=1).reshape(-1, *(1,) * (output.dim() - 2)).expand_as(output)
    return close(output, expected, weight.abs().flatten(1).sum())


def an_impulse_answers_with_the_filter(run: Run, inputs: Inputs, params: Params) -> bool:
    """An input that is 1 at one place of channel 0 meets every weight of that channel once, when all windows
    are taken and padding is wide enough.
    """
    kernel = inputs["weight"].shape[2:]
    weight = inputs["weight"].to(torch.float64)
    impulse = torch.zeros(1, inputs["input"].shape[1], *(1,) * len(kernel), dtype=torch.float64)
    impulse[0, 0] = 1
    alone = {"stride": 1, "dilation": 1, "padding": tuple(size - 1 for size in kernel)}
    (output,) = run({"input": impulse, "weight": weight, "bias": None}, {**params, **alone})
    own_group = weight.shape[0] // params["groups"]
    answered = weight[:own_group, 0].flip(tuple(range(1, 1 + len(kernel))))
    return close(output[0, :own_group], answered) and not bool(output[0, own_group:].any())


def _torch(n: int) -> Callable[[Call], Outputs]:
    function = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[n]
    return lambda call: (function(call["input"], call["weight"], call.get("bias"), **call.params),)


def _program(call: Call) -> Outputs:
    return (_correlated(_operands(call)),)


def _magnitudes(call: Call) -> Magnitudes:
    return (_correlated(_operands(call).magnitudes()),)


ORACLES = tuple(
    Oracle(
        f"Conv{n}dFwdOp",
        _program,
        _torch(n),
        magnitudes=_magnitudes,
        length=_length,
        properties=(
            is_linear_in_input_and_bias,
            ones_sum_the_filters,
            an_impulse_answers_with_the_filter,
        ),
    )
    for n in (1, 2, 3)
)
