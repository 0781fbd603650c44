"""Every kernel becomes machine code for Ampere and Hopper without spills. Needs nvcc, no GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tileops_kernels.kernels import get_kernel, list_kernels
from tileops_kernels.kernels.attention_backward_hopper import AttentionBackwardHopperConfig
from tileops_kernels.resources import KernelResources, measure
from tileops_kernels.targets.cuda import artifact, toolkit
from tileops_kernels.targets.cuda.lowering import CudaSource

ARCHS = ("sm_80", "sm_90a")


needs_nvcc = pytest.mark.usefixtures("nvcc")


def problems(records: list[KernelResources]) -> list[str]:
    return [
        f"{r.kernel} {dict(r.sample)} {r.arch}: {r.error or f'{r.spill_bytes} bytes spilled'}"
        for r in records
        if r.error or r.spill_bytes
    ]


def test_every_kernel_names_samples() -> None:
    assert [name for name in list_kernels() if not get_kernel(name).samples()] == []


@needs_nvcc
@pytest.mark.parametrize("name", list_kernels())
def test_kernel_compiles_for_ampere_and_hopper_without_spills(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernel = get_kernel(name)
    first = kernel.samples()[:1]
    monkeypatch.setattr(kernel, "samples", classmethod(lambda _: first))
    hosts, lower = [], artifact.lower

    def recorded(*args: object) -> CudaSource:
        code = lower(*args)
        hosts.append(code.host)
        return code

    monkeypatch.setattr(artifact, "lower", recorded)
    records = list(measure([name], ARCHS, jobs=2))
    assert problems(records) == []
    assert all(r.registers > 0 for r in records)
    assert len(hosts) == len(records)
    for host in hosts:  # what launches the kernel: its grid is an expression of the sizes
        (tmp_path / "launch.cpp").write_text(host)
        toolkit.compile_host(tmp_path / "launch.cpp", tmp_path / "launch.so")


@needs_nvcc
@pytest.mark.slow
def test_every_sample_compiles_without_spills() -> None:
    assert problems(list(measure(archs=ARCHS, jobs=os.cpu_count() or 1))) == []


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GemmKernel", {"wgmma", "tma"}),
        ("AttentionForwardKernel", {"wgmma", "tma"}),
        ("GemmHopperKernel", {"wgmma", "tma", "mbarrier", "setmaxnreg"}),
        ("GroupedGemmHopperKernel", {"wgmma", "tma", "mbarrier", "setmaxnreg"}),
        ("AttentionHopperKernel", {"wgmma", "tma", "mbarrier", "setmaxnreg"}),
        ("LatentDecodeHopperKernel", {"wgmma", "tma", "mbarrier", "setmaxnreg"}),
        ("AttentionKeyGradientKernel", {"wgmma", "tma", "mbarrier", "setmaxnreg"}),
        ("AttentionGradientHopperKernel", {"wgmma", "tma", "mbarrier", "setmaxnreg"}),
    ],
)
def test_matrix_kernels_use_hopper_instructions(name: str, expected: set[str]) -> None:
    found = get_kernel(name).lower("sm_90a", **get_kernel(name).samples()[0])
    assert expected <= found.instructions


@needs_nvcc
@pytest.mark.parametrize(
    ("name", "config", "serialised"),
    [
        ("AttentionHopperKernel", None, False),
        ("AttentionGradientHopperKernel", None, False),
        ("AttentionGradientHopperKernel", AttentionBackwardHopperConfig(128, 64, 3), True),
        ("GroupedGemmHopperKernel", None, False),
    ],
)
def test_products_under_way_fit_the_registers(
    name: str, config: object, serialised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ptxas waits for every instruction of the tensor cores. It says so, but is silent in builds."""
    printed = []
    run = toolkit.Toolkit.run

    def keep(self: toolkit.Toolkit, arguments: list[str], source: str) -> str:
        printed.append(run(self, [flag for flag in arguments if flag != "-w"], source))
        return printed[-1]

    monkeypatch.setattr(toolkit.Toolkit, "run", keep)
    get_kernel(name).lower("sm_90a", config, **get_kernel(name).samples()[0])
    assert ("instructions are serialized" in "".join(printed)) is serialised
    assert "registers" in "".join(printed)


@pytest.mark.parametrize("expression", ["log1p", "softplus"])
def test_log1p_is_the_librarys(expression: str) -> None:
    """Written out, `(1 + x) - 1` becomes `x` on the way to CUDA, and with it the correction of log(1 + x)."""
    static = {"expression": expression, "dtypes": ("float32",), "out_dtype": "float32", "vec": 4}
    assert "log1pf(" in get_kernel("ElementwiseKernel").lower("sm_90a", **static).source
