"""Timing of tileops operators against independent baselines.

Runs candidate and baselines in a process of their own, computes every statistic outside of it, and says of
each row FAST, SAME, SLOW, AMBIGUOUS or INVALID with reason codes. See `docs/benchmark.md`.
"""

from __future__ import annotations

from tileops_bench.base import BenchmarkBase, BenchmarkReport
from tileops_bench.errors import BenchError
from tileops_bench.records import Code, Contender, Header, Problem, Row, Status
from tileops_bench.stats import Verdict
from tileops_bench.store import Results, read_results
from tileops_bench.summary import Summary, summarise_results

__version__ = "0.1.0"

__all__ = [
    "BenchError",
    "BenchmarkBase",
    "BenchmarkReport",
    "Code",
    "Contender",
    "Header",
    "Problem",
    "Results",
    "Row",
    "Status",
    "Summary",
    "Verdict",
    "read_results",
    "summarise_results",
]
