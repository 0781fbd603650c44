"""Flows, one module per flow. Each module declares `OPS`, a mapping from op name to `Flow` instance."""

from __future__ import annotations

from tileops_kernels.ops.flows.base import Flow, Run

__all__ = ["Flow", "Run"]
