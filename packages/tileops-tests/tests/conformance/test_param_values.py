"""Params at the edge of what entries allow: results follow the definition, or the call is refused."""

from __future__ import annotations

import math

import pytest
import torch

from tileops_kernels.ops import get_function, get_op
from tileops_manifest import RuleError, load_manifest
from tileops_tests.test_base import TestBase

MANIFEST = load_manifest()
DECODE = "GroupedQueryAttentionDecodeWithKVCacheFwdOp"

EDGES = [
    ("RMSNormFwdOp", {"eps": 0.0}),
    ("RMSNormFwdOp", {"eps": 1e300}),
    ("LayerNormFwdOp", {"eps": math.inf}),
    ("GroupNormFwdOp", {"eps": 1e-60}),
    ("RopeNeoxFwdOp", {"base": 1.0}),
    ("RopeNonNeoxFwdOp", {"base": 1e300}),
    ("RopeLlama31FwdOp", {"scale_factor": math.inf}),
    ("RopeYarnFwdOp", {"beta_slow": 5e-324}),
    ("RopeYarnFwdOp", {"beta_fast": 1.7e308}),
    ("RopeYarnFwdOp", {"scale": 1.0}),
    ("ClampScalarFwdOp", {"min": math.nan}),
    ("ClampScalarFwdOp", {"min": -1.0, "max": math.nan}),
    ("LeakyReluFwdOp", {"negative_slope": -1e38}),
    (DECODE, {"softcap": 3e38}),
    (DECODE, {"softcap": 1e300}),
]


@pytest.mark.parametrize(("op", "params"), EDGES, ids=str)
def test_extreme_params_give_what_the_definition_gives(op, params):
    entry = MANIFEST[op]
    given = {**entry.row("ragged").params, **params}
    test = TestBase.at(entry, "ragged", dtypes="float32", params=given, scale="cpu")
    result = get_op(op)(**test.params)(*test.inputs.values())
    test.check(*(result if isinstance(result, tuple) else (result,)))


X = torch.ones(2, 3, 4)
ONES = torch.ones(4)
# Calls on constant rows or channels, by eps.
CONSTANT = {
    "rms_norm": lambda eps: (0 * X, ONES, [4], eps),
    "layer_norm": lambda eps: (X, ONES, 0 * ONES, [4], eps),
    "fused_add_rms_norm": lambda eps: (X, -X, ONES, eps),
    "fused_add_layer_norm": lambda eps: (X, X, ONES, 0 * ONES, eps),
    "ada_layer_norm": lambda eps: (X, X, 0 * X, eps),
    "ada_layer_norm_zero": lambda eps: (X, X, 0 * X, X, eps),
    "group_norm": lambda eps: (X, None, None, 3, eps),
    "instance_norm": lambda eps: (X, None, None, None, None, True, 0.1, eps),
    "batch_norm": lambda eps: (X, *torch.zeros(2, 3), torch.ones(3), torch.zeros(3), True, 0.1, eps),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_an_eps_below_every_float32_keeps_what_is_constant_at_zero(name):
    result = get_function(name)(*CONSTANT[name](1e-60))
    output = result[0] if isinstance(result, tuple) else result
    assert torch.equal(output, torch.zeros_like(output))


@pytest.mark.parametrize("eps", [-1e-5, math.nan, -math.inf])
@pytest.mark.parametrize("name", CONSTANT)
def test_an_eps_that_is_negative_or_no_number_is_refused(name, eps):
    with pytest.raises(RuleError, match=rf"eps must not be negative.* eps = {eps}"):
        get_function(name)(*CONSTANT[name](eps))
