"""What an oracle says that an element accumulates is what its bound rests on: too much excuses errors."""

from __future__ import annotations

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_tests.oracles import get_oracle

WIDE = torch.tensor([[3.0, -2.0, 0.5, 4.0, 0.25, -8.0]])


@pytest.mark.parametrize("op", ["GeluAndMulFwdOp", "GeluTanhAndMulFwdOp"])
def test_a_gated_product_accumulates_the_product_of_its_halves(op: str) -> None:
    for x in (WIDE, WIDE.expand(2, 3, 1, 6)):
        (scale,) = get_oracle(op).scale({"x": x}, load_manifest()[op].canonical_params({}))
        assert torch.equal(scale, torch.tensor([12.0, 0.5, 4.0]).double().expand(*x.shape[:-1], 3))


def test_a_matrix_product_accumulates_the_products_of_magnitudes() -> None:
    a, b = torch.tensor([[1.0, -2.0]]), torch.tensor([[3.0, -4.0], [-5.0, 6.0]])
    params = load_manifest()["GemmFwdOp"].canonical_params({"trans_a": False, "trans_b": False})
    (scale,) = get_oracle("GemmFwdOp").scale({"a": a, "b": b}, params)
    assert scale.tolist() == [[13.0, 16.0]]


def test_a_sum_accumulates_the_sum_of_magnitudes() -> None:
    params = load_manifest()["SumFwdOp"].canonical_params({"dim": -1})
    (scale,) = get_oracle("SumFwdOp").scale({"x": torch.tensor([[1.0, -2.0, 4.0]])}, params)
    assert scale.flatten().tolist() == [7.0]
