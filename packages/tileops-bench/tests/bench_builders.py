"""Records for the tests, built from a few numbers."""

from __future__ import annotations

from tileops_bench.records import Conditions, Contender, Header, Row, Status
from tileops_bench.stats import Verdict, compare, summarise


def samples_around(median: float, n: int = 30, spread: float = 0.004) -> tuple[int, ...]:
    """Evenly spread samples with the given median, shuffled so that they do not drift."""
    values = [round(median * (1 + spread * (2 * i / (n - 1) - 1))) for i in range(n)]
    return tuple(values[::2] + values[1::2][::-1])


def contender(name: str, median: float | None = 1000.0, status: Status = Status.OK, **fields) -> Contender:
    """A contender with samples around a median, or without any."""
    if median is None:
        return Contender(name=name, status=status, **fields)
    samples = fields.pop("samples", samples_around(median))
    return Contender(name=name, status=status, samples=samples, summary=summarise(samples), **fields)


def make_header(declared: tuple[str, ...] = (), **conditions) -> Header:
    """A header as a CPU run writes it."""
    facts = {
        "device": "Test CPU", "target": "cpu", "timer": "perf_counter", "threads": 2, "affinity": (0, 1),
        "cache_scrub_bytes": 1 << 20, "platform": "Linux", "python": "3.11.7",
        "versions": {"torch": "2.13.0"},
    }  # fmt: skip
    return Header(
        created="2026-11-30T12:00:00+00:00",
        command=("tileops-bench", "run"),
        candidate="tileops",
        declared=declared,
        conditions=Conditions(**{**facts, **conditions}),
    )


def make_row(
    row_id: str, own: float = 1000.0, other: float = 1500.0, digests: dict[str, str] | None = None, **fields
) -> Row:
    """A valid row with one baseline; keyword arguments replace any field."""
    candidate, baseline = contender("candidate", own), contender("torch-eager", other)
    comparison = compare(candidate.samples, baseline.samples)
    record = {
        "id": row_id, "op": row_id.split("/")[0], "label": "small", "dtypes": {"T": "float32"}, "params": {},
        "inputs": {"x": "float32[8]"}, "flops": 100, "bytes": 1000, "created": "2026-11-30T12:00:00+00:00",
        "seconds": 1.0, "timer": "perf_counter", "digests": digests or {"entry": "e"},
        "verdict": comparison.verdict,
        "candidate": candidate, "baselines": (baseline,), "against": "torch-eager", "comparison": comparison,
    }  # fmt: skip
    return Row(**{**record, **fields})


def invalid(row_id: str, *problems) -> Row:
    """An INVALID row with the given problems."""
    return make_row(row_id, verdict=Verdict.INVALID, problems=tuple(problems))
