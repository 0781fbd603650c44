"""Dims given at construction hold for every call."""

from __future__ import annotations

import pytest
import torch

from tileops_kernels.errors import InputTypeError, ParamError, ShapeError


def test_dim_is_checked_in_every_call(probes):
    op = probes.gemm.op(K=4, N=3)
    assert op(torch.ones(2, 4), torch.ones(3, 4)).shape == (2, 3)
    assert op(torch.ones(5, 4), torch.ones(3, 4)).shape == (5, 3)
    with pytest.raises(ShapeError, match=r"b.shape is \(6, 4\), expected N = \(3,\)"):
        op(torch.ones(2, 4), torch.ones(6, 4))


def test_instances_with_and_without_a_commitment_share_no_plan(probes):
    a, b = torch.ones(2, 4), torch.ones(6, 4)
    probes.gemm.op()(a, b)
    with pytest.raises(ShapeError):
        probes.gemm.op(N=3)(a, b)


def test_params_decide_where_a_dim_stands(probes):
    assert probes.gemm.op(trans_a=True, M=2)(torch.ones(4, 2), torch.ones(3, 4)).shape == (2, 3)
    with pytest.raises(ShapeError, match="expected M"):
        probes.gemm.op(trans_a=True, M=4)(torch.ones(4, 2), torch.ones(3, 4))


@pytest.mark.parametrize("batch", [[2], (2,)])
def test_pack_of_unknown_length_is_found_beside_a_known_one(probes, batch):
    op = probes.rows.op([8], batch=batch)
    assert op(torch.ones(2, 8), torch.ones(8)).shape == (2, 8)
    with pytest.raises(ShapeError, match="expected batch"):
        op(torch.ones(3, 8), torch.ones(8))


@pytest.mark.parametrize("value", [-1, 2.0, True, "4", [4]])
def test_a_commitment_is_a_size(probes, value):
    with pytest.raises(ParamError, match="K is"):
        probes.gemm.op(K=value)


def test_a_pack_that_cannot_be_located_is_refused(probes):
    with pytest.raises(InputTypeError, match="no argument 'Q'"):
        probes.gemm.op(Q=4)


def test_commitment_holds_under_compile(probes):
    op = probes.gemm.op(N=3)
    compiled = torch.compile(op, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(2, 4), torch.ones(3, 4)).shape == (2, 3)
    with pytest.raises(Exception, match="expected N"):
        compiled(torch.ones(2, 4), torch.ones(6, 4))
