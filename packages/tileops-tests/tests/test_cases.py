"""Case generation: generic, complete over dtypes and branches, and without doubles."""

from __future__ import annotations

import pytest
import torch

from tileops_manifest import load_manifest
from tileops_tests.cases import AFFORDABLE, dtype_assignments, plan
from tileops_tests.errors import UsageError

SAMPLE = [
    "RMSNormFwdOp",
    "GemmFwdOp",
    "AddFwdOp",
    "SumFwdOp",
    "GroupedQueryAttentionDecodePagedWithKVCacheFwdOp",
]


@pytest.mark.parametrize("name", SAMPLE)
def test_names_are_unique_and_smoke_is_part_of_full(name: str) -> None:
    entry = load_manifest()[name]
    smoke, full = ([case.id for case in plan(entry, tier=tier)] for tier in ("smoke", "full"))
    assert len(smoke) == len(set(smoke)) > 10
    assert len(full) == len(set(full)) > len(smoke)


@pytest.mark.parametrize("name", SAMPLE)
def test_every_declared_dtype_is_judged(name: str) -> None:
    entry = load_manifest()[name]
    wanted = {(variable, dtype) for variable, dtypes in entry.dtypes.items() for dtype in dtypes}
    found = {item for case in plan(entry, tier="full") for item in case.binding.dtypes.items()}
    assert wanted <= found
    assert len(dtype_assignments(entry)) >= max(len(dtypes) for dtypes in entry.dtypes.values())


def test_params_of_free_shapes_are_part_of_the_name() -> None:
    transposed = {
        case.binding.params["trans_a"] for case in plan(load_manifest()["GemmFwdOp"]) if case.spec.row is None
    }
    assert transposed == {True, False}


def test_smoke_takes_the_ragged_row() -> None:
    assert any(case.id.startswith("ragged-") for case in plan(load_manifest()["RMSNormFwdOp"]))


def own_sizes(name: str, tier: str, target: str = "cuda") -> list[int]:
    cases = plan(load_manifest()[name], target=target, tier=tier)
    return [case.binding.flops for case in cases if case.spec.row is not None and case.spec.scale is None]


@pytest.mark.parametrize("name", SAMPLE)
def test_smoke_on_cuda_takes_the_least_and_the_most_work_at_its_own_size(name: str) -> None:
    smoke, full = own_sizes(name, "smoke"), own_sizes(name, "full")
    assert 1 <= len(smoke) <= 3
    assert (min(smoke), max(smoke)) == (min(full), max(full))
    assert own_sizes(name, "smoke", "cpu") == []


def test_rows_at_their_own_size_are_judged_on_cuda_where_the_oracle_can_afford_them() -> None:
    entry = load_manifest()["RMSNormFwdOp"]
    on_cuda, on_cpu = (
        {case.spec.scale for case in plan(entry, target=target, tier="full") if case.spec.row is not None}
        for target in ("cuda", "cpu")
    )
    assert on_cuda == {"cpu", None}
    assert on_cpu == {"cpu"}
    sizes = [
        sum(torch.Size(m.shape).numel() for m in case.binding.inputs.values())
        for case in plan(entry, target="cuda", tier="full")
    ]
    assert max(sizes) <= AFFORDABLE["cuda"][1]


def test_another_seed_gives_other_values_in_the_same_shapes() -> None:
    case = plan(load_manifest()["RMSNormFwdOp"])[0]
    one, two = (case.spec.workload(seed).gen_inputs()["x"] for seed in (0, 1))
    assert one.shape == two.shape
    assert bool((one != two).any())


def test_a_plan_can_be_narrowed() -> None:
    entry = load_manifest()["RMSNormFwdOp"]
    assert {case.spec.distribution for case in plan(entry, distributions=["exact"])} == {"exact"}
    assert {case.id for case in plan(entry, only=["ragged-*"])} < {case.id for case in plan(entry)}
    with pytest.raises(UsageError, match="distribution is 'gaussian'"):
        plan(entry, distributions=["gaussian"])
    with pytest.raises(UsageError, match="tier is 'medium'"):
        plan(entry, tier="medium")
