"""Which ops are judged far from 0: those whose result stays when their data moves, as oracles say it does."""

from __future__ import annotations

import torch

from tileops_manifest import load_manifest
from tileops_tests.cases import plan
from tileops_tests.oracles import get_oracle, list_oracles
from tileops_workloads import CENTRED, make_workload

MANIFEST = load_manifest()

# They subtract the greatest element; `adversarial` values show who does not.
SUBTRACT_A_MAXIMUM = {"SoftmaxFwdOp", "LogSoftmaxFwdOp"}

# Its mean comes from elsewhere, and is subtracted from x alone.
GIVEN_THE_MEAN = {"BatchNormBwdOp"}


def ignores_a_shift_of_its_data(op: str) -> bool:
    """Whether the first output depends on the first input, but not on 1 added to all of it."""
    entry, oracle = MANIFEST[op], get_oracle(op)
    workload = make_workload(entry, "ragged", entry.row("ragged").dtypes[0], scale="cpu")
    inputs = {
        name: x.double() if x is not None and x.is_floating_point() else x
        for name, x in workload.gen_inputs().items()
    }
    name = next(iter(inputs), None)
    if name is None or not inputs[name].is_floating_point() or entry.numerics.exact:
        return False
    x = inputs[name]
    before, moved, reversed_ = (
        oracle.ref_program({**inputs, name: value}, workload.params)[0]
        for value in (x, x + 1, x.flatten().flip(0).reshape(x.shape))
    )
    return torch.allclose(before, moved, rtol=0, atol=1e-9) and not torch.allclose(before, reversed_)


def test_every_op_that_subtracts_a_mean_is_judged_far_from_zero() -> None:
    found = {op for op in list_oracles() if ignores_a_shift_of_its_data(op)}
    assert found == set(CENTRED) - GIVEN_THE_MEAN | SUBTRACT_A_MAXIMUM


def test_the_plan_has_shifted_cases_of_those_ops_alone_in_every_dtype() -> None:
    for op, entry in MANIFEST.items():
        cases = [case for case in plan(entry) if case.spec.distribution == "shifted"]
        assert bool(cases) == (op in CENTRED), op
        if cases:
            wanted = set(next(iter(entry.dtypes.values())))
            assert {case.binding.dtypes[next(iter(entry.dtypes))] for case in cases} == wanted, op
