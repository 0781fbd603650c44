"""What the elementwise flow decides on the host; values are judged by the test stage."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tileops_kernels.errors import NotImplementedOpError
from tileops_kernels.kernels.elementwise import ElementwiseKernel
from tileops_kernels.kernels.elementwise_expressions import EXPRESSIONS
from tileops_kernels.ops import get_op
from tileops_kernels.ops.flows import elementwise

X = torch.zeros(3)


class Asked(Exception):
    """Ends a call where its program would be compiled; holds what was asked for."""


@pytest.fixture
def ask(monkeypatch):
    """`ask(op, *inputs, **params)` -> the static arguments of the program that a call asks for."""

    def compiled(device, **static):
        raise Asked(static)

    monkeypatch.setattr(ElementwiseKernel, "compiled", compiled)

    def ask(op, *inputs, **params):
        with pytest.raises(Asked) as caught:
            get_op(op)(**params)(*inputs)
        return caught.value.args[0]

    return ask


@pytest.mark.parametrize("decimals", [11, -11])
def test_more_decimals_than_float32_can_scale_by_are_refused(decimals):
    with pytest.raises(
        NotImplementedOpError, match=f"decimals is {decimals}, expected at most 10 in magnitude"
    ):
        get_op("RoundFwdOp")(decimals=decimals)(X)


@pytest.mark.parametrize(
    ("decimals", "expression"), [(0, "round"), (10, "round_up_scaled"), (-1, "round_down_scaled")]
)
def test_rounding_by_where_the_last_digit_stands(ask, decimals, expression):
    assert ask("RoundFwdOp", X, decimals=decimals)["expression"] == expression


@pytest.mark.parametrize(
    ("bounds", "expression"), [((X, X), "clamp"), ((X, None), "maximum"), ((None, X), "minimum")]
)
def test_a_missing_bound_is_no_operand(ask, bounds, expression):
    static = ask("ClampFwdOp", X, *bounds)
    assert static["expression"] == expression
    assert len(static["dtypes"]) == 1 + sum(bound is not None for bound in bounds)


def test_a_fill_value_has_the_dtype_of_the_input(ask, monkeypatch):
    monkeypatch.setattr(elementwise.StridedElementwiseKernel, "compiled", ElementwiseKernel.compiled)
    static = ask("MaskedFillScalarFwdOp", X.to(torch.int8), X > 0, value=1.0)
    assert static["dtypes"] == ("int8", "bool", "int8")


@pytest.mark.parametrize(
    ("operands", "device", "megabytes", "read_once"),
    [
        (2, "cuda", 48, True),
        (2, "cuda", 65, False),
        (3, "cuda", 64, True),
        (1, "cuda", 48, False),
        (2, "cpu", 48, False),
    ],
)
def test_several_operands_leave_the_cache_to_a_result_that_fits(operands, device, megabytes, read_once):
    tensors = [SimpleNamespace(device=torch.device(device))] * operands
    kernel = elementwise._flat_kernel(tensors, megabytes << 20)
    assert (kernel is elementwise.ReadOnceElementwiseKernel) == read_once


def test_every_expression_is_asked_for_by_an_op():
    named = {flow._expression for flow in elementwise.OPS.values() if isinstance(flow._expression, str)}
    others = {"gelu", "gelu_tanh", "div", "div_trunc", "div_floor"} | {
        "round",
        "round_up_scaled",
        "round_down_scaled",
    }
    assert set(EXPRESSIONS) == named | others
