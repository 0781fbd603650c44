"""Inputs for operators, derived from their manifest entries: the same bytes on every machine.

>>> from tileops_manifest import load_manifest
>>> workload = make_workload(load_manifest()["SumFwdOp"], None, {"T": "float32"}, dims={"A": (4, 8)})
>>> workload.gen_inputs()["x"].shape
torch.Size([4, 8])
"""

from __future__ import annotations

from . import attention, constants, routing, sequence, structured
from .base import WorkloadBase
from .boundary import BoundaryReport, boundary_dims, boundary_report
from .centred import CENTRED
from .distributions import DISTRIBUTIONS
from .dtypes import torch_dtype
from .errors import (
    DomainError,
    LayoutError,
    ScaleError,
    UnknownNameError,
    UnsupportedDtypeError,
    WorkloadError,
)
from .fixtures import FixtureBase, FixtureMeta
from .layouts import LAYOUTS
from .params import param_dims
from .protocols import BenchmarkWorkload, InputGeneratingWorkload, ShapeDtypeWorkload
from .registry import make_workload, register, workload_class
from .scale import SCALES

__version__ = "0.1.0"

__all__ = [
    "CENTRED",
    "DISTRIBUTIONS",
    "LAYOUTS",
    "SCALES",
    "BenchmarkWorkload",
    "BoundaryReport",
    "DomainError",
    "FixtureBase",
    "FixtureMeta",
    "InputGeneratingWorkload",
    "LayoutError",
    "ScaleError",
    "ShapeDtypeWorkload",
    "UnknownNameError",
    "UnsupportedDtypeError",
    "WorkloadBase",
    "WorkloadError",
    "attention",
    "boundary_dims",
    "boundary_report",
    "constants",
    "make_workload",
    "param_dims",
    "register",
    "routing",
    "sequence",
    "structured",
    "torch_dtype",
    "workload_class",
]
