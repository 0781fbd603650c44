"""The backward of batch normalisation is the gradient of its forward oracle."""

from __future__ import annotations

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_tests.oracles import get_oracle
from tileops_workloads import make_workload

FORWARD, BACKWARD = get_oracle("BatchNormFwdOp"), get_oracle("BatchNormBwdOp")
EPS = 1e-5


def operands(*spatial: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    workload = make_workload(
        load_manifest()["BatchNormFwdOp"], None, "float32", dims={"N": 3, "C": 2, "spatial": spatial}
    )
    inputs = workload.gen_inputs()
    return tuple(inputs[name].double().requires_grad_() for name in ("x", "weight", "bias"))


def normalised(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    running = {"running_mean": torch.zeros(2), "running_var": torch.ones(2)}
    params = {"training": True, "momentum": 0.1, "eps": EPS}
    return FORWARD.ref_program({"x": x, **running, "weight": weight, "bias": bias}, params)[0]


@pytest.mark.parametrize("spatial", [(), (4,), (2, 3)])
def test_the_forward_oracle_has_the_derivatives_that_finite_differences_give(spatial):
    assert torch.autograd.gradcheck(normalised, operands(*spatial))


@pytest.mark.parametrize("spatial", [(), (4,), (2, 3)])
def test_the_backward_oracle_is_the_gradient_of_the_forward_oracle(spatial):
    x, weight, bias = operands(*spatial)
    y = normalised(x, weight, bias)
    grad_out = torch.linspace(-1, 2, y.numel(), dtype=torch.float64).reshape(y.shape).sin()
    expected = torch.autograd.grad(y, (x, weight, bias), grad_out)
    axes = (0, *range(2, x.dim()))
    with torch.no_grad():
        mean, rstd = x.mean(axes), torch.rsqrt(x.var(axes, correction=0) + EPS)
        given = {"grad_out": grad_out, "x": x, "weight": weight, "mean": mean, "rstd": rstd}
        found = BACKWARD.ref_program(given, {})
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_running_statistics_are_results_in_training_alone():
    entry = load_manifest()["BatchNormFwdOp"]
    for training, count in ((True, 3), (False, 1)):
        workload = make_workload(entry, "ragged", "float32", params={"training": training})
        assert len(FORWARD.ref_program(workload.gen_inputs(), workload.params)) == count
