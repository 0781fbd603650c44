"""What a consumer may ask of a workload, as capabilities: a benchmark names the one that it needs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch


@runtime_checkable
class ShapeDtypeWorkload(Protocol):
    """Knows the shape and dtype of its leading input."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...


@runtime_checkable
class InputGeneratingWorkload(Protocol):
    """Can make its inputs, by name and in the entry's order; an optional input that is not given is None."""

    def gen_inputs(self) -> dict[str, torch.Tensor | None]: ...


@runtime_checkable
class BenchmarkWorkload(ShapeDtypeWorkload, InputGeneratingWorkload, Protocol):
    """Both: all that a benchmark needs."""
