"""Programs that switch off TileLang's guards touch nothing outside their tensors, whatever the block shapes.

On a GPU nothing would keep them from it; the CPU target, asked to be strict, ends the launch. Every such
kernel runs small and ragged cases of an op that has it, in the block shapes of a CPU and in those of a GPU.
"""

from __future__ import annotations

import pytest
import torch

from tileops_kernels import targets
from tileops_kernels.kernels.base import ConfigTable
from tileops_kernels.ops import get_op
from tileops_kernels.ops.registry import FLOWS
from tileops_kernels.targets import TargetError
from tileops_manifest import load_manifest
from tileops_tests.cases import plan

UNGUARDED = "tl.disable_safe_memory_legalize"
CASES, MOST_FLOPS = 4, 1 << 22


def ops_that_use_every_unguarded_kernel() -> list[str]:
    manifest, seen, found = load_manifest(), set(), []
    for op in sorted(FLOWS, key=lambda op: (-len(manifest[op].inputs), op)):
        kernels = {k.__name__ for k in FLOWS[op].kernels if k.PASS_CONFIGS.get(UNGUARDED)}
        if kernels - seen:
            found.append(op)
            seen |= kernels
    return found


def ragged_cases(op: str) -> list[object]:
    """The smallest cases of different rows."""
    rows = {}
    for case in sorted(plan(load_manifest()[op], target="cpu"), key=lambda case: case.binding.flops):
        if case.numeric and case.binding.flops <= MOST_FLOPS:
            rows.setdefault((case.spec.row.label, case.spec.scale), case)
    return list(rows.values())[:CASES]


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Compile what is unguarded strictly; returns the programs."""
    compiled, compile_program = [], targets.compile_program

    def strictly(func, target, *, pass_configs=None, **options):
        unguarded = bool((pass_configs or {}).get(UNGUARDED))
        compiled.extend([func] * unguarded)
        return compile_program(func, target, pass_configs=pass_configs, strict=unguarded, **options)

    monkeypatch.setattr(targets, "compile_program", strictly)
    for kernel in {kernel for flow in FLOWS.values() for kernel in flow.kernels}:
        monkeypatch.setattr(kernel, "_memo", type(kernel._memo)())
    return compiled


@pytest.mark.parametrize("shapes_of", ["cpu", "sm_90a"])
@pytest.mark.parametrize("op", ops_that_use_every_unguarded_kernel())
def test_nothing_outside_a_tensor_is_touched(op, shapes_of, strict, monkeypatch):
    if shapes_of != "cpu":
        pick = ConfigTable.pick
        monkeypatch.setattr(
            ConfigTable, "pick", lambda table, _t, _a, sizes: pick(table, "cuda", shapes_of, sizes)
        )
    monkeypatch.setattr(get_op(op)._runtime, "plans", type(get_op(op)._runtime.plans)())
    cases = ragged_cases(op)
    assert cases
    for case in cases:
        inputs = case.spec.workload(0, "cpu").gen_inputs()
        get_op(op)(**case.binding.params)(*inputs.values())
    assert strict


def test_a_program_without_its_mask_is_found(strict, monkeypatch):
    """Scale the rows that the kernel believes in: one more than there are."""
    from tileops_kernels.kernels.rms_norm import RMSNormKernel

    x, weight = torch.ones(3, 32), torch.ones(32)
    program = RMSNormKernel.compiled(torch.device("cpu"), vectors=4, vec=8, dtype="float32", residual=False)
    flat = [x.view(-1), weight, torch.empty(96)]
    program.launcher(*flat, 3, 4, 1e-6)
    with pytest.raises(TargetError, match="outside the tensor"):
        program.launcher(*flat, 4, 4, 1e-6)
