"""Which named keys a query sees: both opinions of the oracle ask one function."""

from __future__ import annotations

import torch

from tileops_tests.oracles import get_oracle

OP = "DeepSeekSparseAttentionDecodeWithKVCacheFwdOp"


def test_a_named_key_that_a_causal_query_must_not_see_counts_as_none(ragged) -> None:
    """A key stands for whole strides: a query at position p sees the first (p + 1) // stride of them."""
    for workload in ragged(OP):
        inputs, params = workload.gen_inputs(), workload.params
        assert params["is_causal"]
        queries, keys = inputs["indices"].shape[1], inputs["kv"].shape[1]
        for start in (0, 1, params["stride_kv"] * keys // 2):
            positions = start + torch.arange(queries)
            first = (positions + 1) // params["stride_kv"]
            hidden = inputs["indices"] >= first[:, None, None]
            assert hidden.any()
            assert not hidden.all() or start < params["stride_kv"]
            known = {**inputs, "indices": inputs["indices"].masked_fill(hidden, -1)}
            oracle, asked = get_oracle(OP), {**params, "q_start_index_s": start}
            (causal,) = oracle.ref_program(inputs, asked)
            (named,) = oracle.ref_program(known, {**asked, "is_causal": False})
            assert torch.equal(causal.nan_to_num(), named.nan_to_num())
