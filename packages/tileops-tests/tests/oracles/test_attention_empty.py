"""Attention oracles keep the entry's shape when nothing is asked: no requests, no queries."""

from __future__ import annotations

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_tests.oracles import get_oracle

OPS = ("MultiHeadAttentionFwdOp", "GroupedQueryAttentionFwdOp", "GroupedQueryAttentionSlidingWindowFwdOp")


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("batch", "length"), [(0, 0), (0, 3), (2, 0)])
def test_output_without_queries_has_the_shape_of_the_queries(op: str, batch: int, length: int) -> None:
    key_heads = 6 if op.startswith("MultiHead") else 2
    q, k = torch.zeros(batch, length, 6, 5), torch.zeros(batch, length, key_heads, 5)
    params = load_manifest()[op].canonical_params({})
    (out,) = get_oracle(op).ref_program({"q": q, "k": k, "v": k}, params)
    assert out.shape == q.shape
