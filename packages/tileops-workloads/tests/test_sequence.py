"""Sequence ops: states stay bounded, decays are decays, and what a forward pass saved fits its inputs."""

from __future__ import annotations

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_workloads import DISTRIBUTIONS, make_workload, workload_class
from tileops_workloads.registry import _CLASSES
from tileops_workloads.sequence import SequenceWorkload

MANIFEST = load_manifest()
OPS = sorted(op for op in _CLASSES if issubclass(workload_class(op), SequenceWorkload))
DELTA_RULES = [op for op in OPS if "DeltaNet" in op]


def ragged(op, distribution="normal", **arguments):
    entry = MANIFEST[op]
    row = entry.row("ragged")
    return make_workload(entry, row, row.dtypes[0], distribution=distribution, **arguments).gen_inputs()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("op", OPS)
def test_no_value_is_large(op, distribution):
    for name, tensor in ragged(op, distribution).items():
        if tensor is not None and tensor.is_floating_point():
            assert tensor.abs().max() <= (16 if name == "dA_cumsum" else 8), name


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("op", DELTA_RULES)
def test_a_delta_rule_does_not_stretch_its_state(op, distribution):
    """Along a key the state is multiplied by 1 - beta |k|^2, which lies in [-1, 1]."""
    inputs = ragged(op, distribution)
    stretch = inputs["beta"].double() * inputs["k"].double().square().sum(dim=-1)
    assert stretch.min() >= 0
    assert stretch.max() <= 2
    assert stretch.mean() > (0.1 if distribution == "normal" else 0.001)


DECAYS = [(op, name) for op in OPS for name in ("g", "gk") if name in MANIFEST[op].inputs]


@pytest.mark.parametrize(("op", "name"), DECAYS)
def test_decays_forget_but_not_at_once(op, name):
    g = ragged(op)[name].double()
    assert g.max() <= 0
    assert -0.1 < g.mean() < -0.02


@pytest.mark.parametrize("op", ["SSDChunkStateFwdOp", "SSDChunkScanFwdOp"])
def test_decay_exponents_fall_along_a_chunk(op):
    sums = ragged(op)["dA_cumsum"]
    steps = sums.diff(dim=-1)
    assert steps.max() <= 0
    assert -0.05 < steps.mean() < -0.02


def test_requests_are_packed_in_order_and_end_within_chunks():
    numbers = ragged("SSDChunkStateFwdOp")["seq_idx"]
    steps = numbers.diff(dim=-1)
    assert steps.min() == 0
    assert 1 <= steps.ne(0).sum(dim=-1).min() <= steps.ne(0).sum(dim=-1).max() <= 3


@pytest.mark.parametrize(("softplus", "low", "high"), [(True, -8, 0), (False, 0, 0.25)])
def test_raw_steps_are_short_after_their_softplus(softplus, low, high):
    dt = ragged("Mamba2FwdOp", params={"dt_softplus": softplus})["dt"]
    assert low <= dt.min() < dt.max() <= high


def test_saved_terms_are_those_of_the_keys_values_and_betas():
    """(I + M) Aw = I in each chunk, M the part of beta_i k_i.k_j below the diagonal."""
    inputs = {name: tensor.double() for name, tensor in ragged("DeltaNetBwdOp").items()}
    for start, stop in ((0, 32), (32, 64), (64, 77)):
        part = {name: tensor[:, :, start:stop] for name, tensor in inputs.items() if name != "S"}
        k, v, beta, size = part["k"], part["v"], part["beta"][..., None], stop - start
        system = torch.eye(size, dtype=torch.float64) + (beta * (k @ k.mT)).tril(-1)
        inverse = part["Aw"][..., :size]
        assert not part["Aw"][..., size:].any()
        assert torch.equal(part["Au"], part["Aw"])
        assert (system @ inverse - torch.eye(size, dtype=torch.float64)).abs().max() < 2.0**-9
        assert (system @ part["w"] - beta * k).abs().max() < 2.0**-8
        assert (system @ part["u"] - beta * v).abs().max() < 2.0**-6


@pytest.mark.parametrize("distribution", ["normal", "structured"])
def test_gates_of_a_memory_are_neither_all_open_nor_all_closed(distribution):
    inputs = {name: x.double() for name, x in ragged("EngramGateConvFwdOp", distribution).items()}
    unit = {name: inputs[name] / inputs[name].square().mean(dim=-1, keepdim=True).sqrt() for name in "Hk"}
    argument = (unit["H"] * unit["k"] * inputs["rms_w_h"]).sum(dim=-1) / inputs["H"].shape[-1] ** 0.5
    assert 0.2 < (argument > 0).double().mean() < 0.8
    assert argument.abs().median() < 3
