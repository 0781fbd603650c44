"""Oracles of quantised products and routed layers against public functions and each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tileops_tests.oracles import get_oracle


def test_the_8_bit_product_is_that_of_torch_to_a_rounding(ragged):
    """`torch._scaled_mm` takes one factor for each operand."""
    workload = ragged("GemmFp8FwdOp", dims={"K": 336, "N": 128, "rows_a": 1, "rows_b": 1, "blocks": 1})[0]
    inputs = {**workload.gen_inputs(), "bias": None}
    (ours,) = get_oracle("GemmFp8FwdOp").ref_program(inputs, workload.params)
    scales = {f"scale_{name}": inputs[f"scale_{name}"].reshape(1, 1) for name in "ab"}
    theirs = torch._scaled_mm(inputs["a"], inputs["b"].t(), **scales, out_dtype=torch.bfloat16)
    assert ((theirs.double() - ours).abs() <= 2.0**-7 * ours.abs() + 1e-3 * ours.abs().max()).all()


def test_weights_of_4_bits_are_taken_low_half_first():
    x = torch.eye(4, dtype=torch.float16)
    inputs = {
        "activation": x,
        "packed_weight": torch.tensor([[0x21, 0x43]], dtype=torch.uint8),
        "weight_scale": torch.tensor([[2.0, 10.0]]),
        "weight_zero": torch.tensor([[0, 1]], dtype=torch.uint8),
    }
    (out,) = get_oracle("GemmW4A16FwdOp").ref_program(inputs, {"group_size": 2})
    assert out[:, 0].tolist() == [2, 4, 20, 30]


def test_a_grouped_product_with_one_group_is_a_product(ragged):
    a, b = torch.randn(5, 3, dtype=torch.float64), torch.randn(1, 4, 3, dtype=torch.float64)
    sizes, starts = torch.tensor([5]), torch.tensor([0])
    inputs = {"a": a, "b": b, "batch_sizes": sizes, "batch_offsets": starts}
    (out,) = get_oracle("GroupedGemmFwdOp").ref_program(inputs, {"transpose_a": False, "transpose_b": True})
    torch.testing.assert_close(out, a @ b[0].T)


def test_permuting_then_unpermuting_weighs_every_token_by_its_sum(ragged):
    permute = ragged("MoePermuteNopadFwdOp")[0]
    inputs = permute.gen_inputs()
    rows, _, _, _, place = get_oracle("MoePermuteNopadFwdOp").ref_program(inputs, permute.params)
    tokens, top_k = inputs["topk_ids"].shape
    weights = torch.rand(tokens, top_k)
    back = {"mm2_pad": rows, "fwd_idx": place, "topk_weights": weights}
    params = {"total_tokens": tokens, "top_k": top_k, "hidden_size": rows.shape[1]}
    (out,) = get_oracle("MoeUnpermuteFwdOp").ref_program(back, params)
    total = (weights.double() * (place.reshape(tokens, top_k) >= 0)).sum(dim=-1, keepdim=True)
    torch.testing.assert_close(out, inputs["hidden_states"].double() * total)


def test_a_fused_layer_is_its_router_and_then_its_experts(ragged):
    workload = ragged("FusedMoeFwdOp")[0]
    inputs, params = workload.gen_inputs(), workload.params
    scores = inputs["gating_output"].double().sigmoid()
    ids = (scores + inputs["correction_bias"].double()).topk(params["top_k"], dim=-1).indices
    weights = F.normalize(scores.gather(1, ids), p=1, dim=-1)
    shared = {name: inputs[name] for name in ("hidden_states", "w_gate_up", "w_down")}
    experts = get_oracle("FusedMoEExpertsNopadPersistent3WGFwdOp")
    routed = {**shared, "topk_weights": weights, "topk_ids": ids, "expert_map": None}
    (out,) = get_oracle("FusedMoeFwdOp").ref_program(inputs, params)
    torch.testing.assert_close(out, experts.ref_program(routed, params)[0])


def test_experts_that_a_bias_rules_out_come_last_and_once_each(ragged):
    """More experts are asked for than have a finite score: the lowest of the others follow."""
    workload = ragged("FusedMoeFwdOp")[0]
    oracle, inputs, params = get_oracle("FusedMoeFwdOp"), workload.gen_inputs(), workload.params
    only = torch.full_like(inputs["correction_bias"], -torch.inf)
    only[4] = 0.0
    plain = torch.zeros_like(only)
    plain[[4, 0, 1]] = 10.0
    (out,) = oracle.ref_program({**inputs, "correction_bias": only}, params)
    assert params["top_k"] == 3
    torch.testing.assert_close(out, oracle.ref_program({**inputs, "correction_bias": plain}, params)[0])
    torch.testing.assert_close(out, oracle.second_opinion({**inputs, "correction_bias": only}, params)[0])


def test_experts_on_two_machines_add_up_to_all_of_them(ragged):
    """Each half of the experts with its own map: the outputs add up."""
    workload = ragged("FusedMoEExpertsNopadPersistent3WGFwdOp")[0]
    oracle, params = get_oracle(workload.entry.name), workload.params
    inputs = workload.gen_inputs()
    experts, local = params["num_experts"], params["num_experts_local"]
    everyone = {
        name: torch.randn(experts, *inputs[name].shape[1:], generator=torch.Generator().manual_seed(1))
        for name in ("w_gate_up", "w_down")
    }
    parts = []
    for first, last in ((0, local), (local, experts)):
        here = torch.arange(first, last)
        mapped = torch.full((experts,), -1, dtype=torch.int32)
        mapped[here] = torch.arange(last - first, dtype=torch.int32)
        mine = {name: weights[here] for name, weights in everyone.items()}
        parts.append(oracle.ref_program({**inputs, **mine, "expert_map": mapped}, params)[0])
    (whole,) = oracle.ref_program({**inputs, **everyone, "expert_map": None}, params)
    torch.testing.assert_close(sum(parts), whole)
