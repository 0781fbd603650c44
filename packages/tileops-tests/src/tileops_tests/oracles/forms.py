"""Oracles of ops with one output: of a whole call, of the tensor `input`, of `input` and another one."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tileops_tests.oracles.base import Call, Magnitudes, Oracle, Property, no_magnitudes


def single(
    op: str,
    program: Callable[[Call], Tensor],
    opinion: Callable[[Call], Tensor],
    *properties: Property,
    magnitudes: Callable[[Call], Magnitudes] = no_magnitudes,
) -> Oracle:
    """An op of one output."""
    return Oracle(
        op,
        lambda call: (program(call),),
        lambda call: (opinion(call),),
        magnitudes=magnitudes,
        properties=properties,
    )


def unary(
    op: str, program: Callable[[Tensor], Tensor], opinion: Callable[[Tensor], Tensor], *properties: Property
) -> Oracle:
    """An op of the tensor `input` alone."""
    return single(op, lambda call: program(call["input"]), lambda call: opinion(call["input"]), *properties)


def binary(
    op: str,
    program: Callable[[Tensor, Tensor], Tensor],
    opinion: Callable[[Tensor, Tensor], Tensor],
    *properties: Property,
    other: str = "other",
) -> Oracle:
    """An op of `input` and another tensor, broadcast together."""
    return single(
        op,
        lambda call: program(call["input"], call[other]),
        lambda call: opinion(call["input"], call[other]),
        *properties,
    )
