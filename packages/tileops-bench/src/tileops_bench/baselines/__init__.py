"""Baselines: for each op, every known library callable by name.

Where no library has an op, a composition of torch operations lives in this package, is marked `local`, and is
run both eagerly and compiled. A baseline never sees an oracle, and its values are not checked here: a
certificate made elsewhere may reject it by digest.

>>> [b.name for b in baselines_for("RMSNormFwdOp")]
['torch-eager', 'torch-compile', 'liger', 'flashinfer']
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tileops_bench.baselines import (
    attention,
    attention_backward,
    attention_serving,
    elementwise,
    matmul,
    normalization,
    reduction,
    rope,
    routing,
)
from tileops_bench.baselines.base import Baseline, Case, Make, UnsupportedCase, compiled
from tileops_bench.errors import CandidateError

__all__ = ["Baseline", "Case", "UnsupportedCase", "baseline", "baselines_for", "ops_with_baselines"]

_FAMILIES = (
    elementwise,
    reduction,
    normalization,
    matmul,
    attention,
    attention_backward,
    attention_serving,
    rope,
    routing,
)


def _compiled(make: Make) -> Make:
    """The same callable through torch.compile, specialised to the row's shapes."""

    def make_compiled(case: Case) -> Callable[..., Any]:
        return compiled(make(case))

    make_compiled.__module__ = make.__module__
    return make_compiled


@cache
def _table() -> dict[str, tuple[Baseline, ...]]:
    table: dict[str, list[Baseline]] = {}
    for family in _FAMILIES:
        for op, make in family.EAGER.items():
            table.setdefault(op, []).append(Baseline(op, "torch-eager", make))
            table[op].append(Baseline(op, "torch-compile", _compiled(make)))
        for op, make in family.LOCAL.items():
            table.setdefault(op, []).append(Baseline(op, "composition", make, local=True))
            table[op].append(Baseline(op, "composition-compile", _compiled(make), local=True))
        for other in family.OTHERS:
            table.setdefault(other.op, []).append(other)
    return {op: tuple(entries) for op, entries in table.items()}


def baselines_for(op: str) -> tuple[Baseline, ...]:
    """All baselines of an op, installed or not; empty for an op that has none."""
    return _table().get(op, ())


def ops_with_baselines() -> tuple[str, ...]:
    """Manifest keys that have at least one baseline."""
    return tuple(sorted(_table()))


def baseline(op: str, name: str) -> Baseline:
    """One baseline by name.

    Raises:
        CandidateError: no such baseline; the message lists those that exist.
    """
    for entry in baselines_for(op):
        if entry.name == name:
            return entry
    known = ", ".join(b.name for b in baselines_for(op)) or "none"
    raise CandidateError(f"{op} has no baseline {name!r}; known: {known}")
