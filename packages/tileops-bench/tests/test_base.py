"""`BenchmarkBase`: the seed's names, on a real row."""

from __future__ import annotations

import pytest

from tileops_bench import BenchmarkBase
from tileops_bench.errors import UsageError
from tileops_manifest import load_manifest
from tileops_workloads import BenchmarkWorkload, WorkloadBase, make_workload

ENTRY = load_manifest()["RMSNormFwdOp"]
CASE = next(c for c in ENTRY.cases() if c.row.label == "llama-8b-decode")


def workload(**options) -> WorkloadBase:
    return make_workload(ENTRY, CASE.row, CASE.dtypes, scale="cpu", **options)


def test_flops_and_memory_come_from_the_manifest():
    w = workload()
    bench = BenchmarkBase[BenchmarkWorkload](w)
    assert bench.calculate_flops() == w.binding.flops
    assert bench.calculate_memory() == w.binding.bytes


def test_profile_measures_in_another_process_and_reports(candidate_file):
    honest = candidate_file(
        """
        import torch.nn.functional as F

        def run(x, weight, normalized_shape, eps):
            return F.rms_norm(x, tuple(normalized_shape), weight, eps)
        """
    )
    report = BenchmarkBase(workload(), honest).profile(
        budget_s=0.05, baselines=["torch-eager"], alone=False, confirm=False
    )
    assert report.row.op == "RMSNormFwdOp"
    assert report.row.candidate.summary.n >= 7
    assert (report.speedup is None) == (report.row.verdict == "INVALID")
    assert report.row.id in report.to_html()


def test_a_workload_without_a_row_cannot_be_made_again_elsewhere():
    free = make_workload(ENTRY, None, {"T": "float16"}, dims={"batch": (2,), "norm": (8,)})
    with pytest.raises(UsageError, match="no manifest row"):
        BenchmarkBase(free)
