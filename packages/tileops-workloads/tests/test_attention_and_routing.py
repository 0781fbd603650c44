"""Inputs of attention and routed layers have the structure that makes them worth checking."""

from __future__ import annotations

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_workloads import make_workload

MANIFEST = load_manifest()


def made(op, row="ragged", dtypes=0, **kwargs):
    entry = MANIFEST[op]
    workload = make_workload(entry, row, entry.row(row).dtypes[dtypes], **kwargs)
    return workload, workload.gen_inputs()


@pytest.mark.parametrize(
    ("op", "weighed"),
    [
        ("GroupedQueryAttentionFwdOp", ("v",)),
        ("GroupedQueryAttentionPrefillFwdOp", ("v",)),
        ("GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp", ("v_new", "v_pages")),
        ("DeepSeekSparseAttentionDecodeWithKVCacheFwdOp", ("kv",)),
        ("GroupedQueryAttentionBwdOp", ("q", "k", "v", "o", "do", "lse")),
    ],
)
def test_what_is_weighed_is_finite_and_queries_need_not_be(op, weighed):
    for dtypes in range(len(MANIFEST[op].row("ragged").dtypes)):
        _, inputs = made(op, dtypes=dtypes, distribution="adversarial")
        assert all(inputs[name].float().isfinite().all() for name in weighed)
        assert "q" in weighed or not inputs["q"].float().isfinite().all()


def test_lse_is_that_of_scores_of_unit_variance():
    _, inputs = made("GroupedQueryAttentionBwdOp")
    causal = inputs["lse"].mean(dim=(0, 1))
    assert abs(causal[0] - 0.5) < 0.2
    assert abs(causal[-1] - 4.84) < 0.2
    _, inputs = made("GroupedQueryAttentionBwdOp", params={"is_causal": False})
    assert abs(inputs["lse"].mean() - 4.84) < 0.1


def test_factors_of_packed_attention_are_positive_and_those_of_queries_large():
    _, inputs = made("GroupedQueryAttentionPrefillFwdOp", distribution="adversarial")
    assert (inputs["q_scale"] >= 4).all()
    assert (inputs["k_scale"] >= 1).all()


def test_an_indexer_names_keys_of_the_past_and_then_none():
    w, inputs = made("DeepSeekSparseAttentionDecodeWithKVCacheFwdOp", params={"q_start_index_s": 20})
    indices, stride = inputs["indices"], w.params["stride_kv"]
    for query in range(indices.shape[1]):
        visible = (20 + query + 1) // stride
        named = indices[:, query]
        assert ((named < visible) & (named >= -1)).all()
        assert ((named >= 0).sum(dim=-1) == min(visible, named.shape[-1])).all()


def test_other_distributions_name_keys_of_the_future_too():
    w, inputs = made(
        "DeepSeekSparseAttentionDecodeWithKVCacheFwdOp",
        params={"q_start_index_s": 20},
        distribution="exact",
    )
    assert (inputs["indices"] > w.binding.dims["S_kv"] // 2).any()


@pytest.mark.parametrize("with_", [(), ("correction_bias",)])
@pytest.mark.parametrize("distribution", ["normal", "adversarial"])
def test_scores_of_a_token_are_far_apart_with_and_without_bias(with_, distribution):
    _, inputs = made("FusedMoeFwdOp", with_=with_, distribution=distribution)
    scores = inputs["gating_output"].double().sigmoid()
    if with_:
        scores = scores + inputs["correction_bias"].double()
        assert inputs["correction_bias"].unique().numel() > 1
    gaps = scores.sort(dim=-1).values.diff(dim=-1)
    assert gaps.min() > 0.9 * 5 / 8 / scores.shape[-1]
    assert scores.argmax(dim=-1).unique().numel() > 3


def test_expert_maps_of_fused_experts_number_local_experts_once():
    w, inputs = made("FusedMoEExpertsNopadPersistent3WGFwdOp")
    mapped = inputs["expert_map"]
    local = mapped[mapped >= 0].sort().values
    assert torch.equal(local, torch.arange(w.params["num_experts_local"], dtype=torch.int32))


def test_a_factor_of_a_cache_is_a_power_of_two():
    _, inputs = made("GroupedQueryAttentionPrefillPagedWithKVCacheFwdOp", distribution="adversarial")
    assert torch.frexp(inputs["k_scale"])[0].abs().item() == 0.5


@pytest.mark.parametrize("op", ["GemmFp8FwdOp", "MoeGateUpFwdOp", "FusedMoeFwdOp"])
def test_structured_products_have_one_random_operand(op):
    """Rows of a structured tensor are ramps, constants and patterns; those of a random one are not."""
    _, inputs = made(op, distribution="structured")
    first, *others = (t.float() for t in inputs.values() if t is not None and t.dim() > 1)
    assert first.flatten()[:128].unique().numel() > 40
    assert any((t.reshape(-1, t.shape[-1]).diff(dim=-1) == 0).all(dim=-1).any() for t in others)


@pytest.mark.parametrize("is_causal", [True, False])
def test_gradients_of_structured_attention_are_random(is_causal):
    _, inputs = made("GroupedQueryAttentionBwdOp", params={"is_causal": is_causal}, distribution="structured")
    assert all(abs(inputs[name].float().std() - 1) < 0.1 for name in ("q", "k", "do"))


def test_adversarial_inputs_hold_nothing_that_overflows_where_that_is_undefined():
    _, inputs = made("FP8LightningIndexerFwdOp", distribution="adversarial")
    assert inputs["index_q"].isnan().any()
    assert all((x.double().abs().nan_to_num(0.0) <= 2.0**24).all() for x in inputs.values())
