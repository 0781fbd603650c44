"""What each tileops operator is: signatures, dtypes, workloads, numerics and rooflines, as evaluated data.

>>> from tileops_manifest import TensorMeta, load_manifest
>>> entry = load_manifest()["RMSNormFwdOp"]
>>> x, weight = TensorMeta((8, 4096), "float16"), TensorMeta((4096,), "float16")
>>> binding = entry.bind({"x": x, "weight": weight}, {"normalized_shape": [4096]})
>>> binding.outputs["output"], binding.packs["batch"]
(TensorMeta(shape=(8, 4096), dtype='float16'), (8,))
"""

from __future__ import annotations

from tileops_manifest.binding import Binding
from tileops_manifest.dtypes import DTYPES, DType
from tileops_manifest.entry import Case, Entry
from tileops_manifest.errors import (
    DimError,
    DtypeError,
    ExpressionError,
    ManifestError,
    MissingInputError,
    ParamError,
    Problem,
    RuleError,
    ShapeError,
    SpecError,
    UnknownInputError,
    UnknownOpError,
    UnknownRowError,
)
from tileops_manifest.loader import Manifest, load_manifest
from tileops_manifest.tensors import Domain, ParamSpec, Row, TensorMeta, TensorSpec

__version__ = "0.1.0"

__all__ = [
    "DTYPES",
    "Binding",
    "Case",
    "DType",
    "DimError",
    "Domain",
    "DtypeError",
    "Entry",
    "ExpressionError",
    "Manifest",
    "ManifestError",
    "MissingInputError",
    "ParamError",
    "ParamSpec",
    "Problem",
    "Row",
    "RuleError",
    "ShapeError",
    "SpecError",
    "TensorMeta",
    "TensorSpec",
    "UnknownInputError",
    "UnknownOpError",
    "UnknownRowError",
    "load_manifest",
]
