"""A commented entry to start from; it loads as it is."""

from __future__ import annotations

import re

from tileops_manifest.model import GRAMMAR, OP_NAME

_TEMPLATE = """\
grammar: {grammar}
family: my_family                      # one family per file
ops:
  {name}:
    summary: One line that says what is computed.
    source: ""                         # paper or document that defines the op
    ref_api: none                      # dotted name of the public function it mirrors, or none
    dtypes: {{T: float16 | bfloat16 | float32}}   # dtype variables: same variable, same dtype
    dims:                              # meaning and domain of the names in shapes; *name: any number of dims
      "*batch": leading dims
      H: {{doc: size of a row, min: 1}}
    inputs:                            # in order; also: optional, mutated, values (integer inputs)
      x: {{dtype: T, shape: "[*batch, H]"}}
      weight: {{dtype: T, shape: "[H]"}}
    outputs:
      output: {{dtype: T, shape: "[*batch, H]"}}
    params:                            # in order; without a default a param is required
      eps: {{type: float, default: 1.0e-6}}
    rules:                             # conditions on every call, evaluated on every row below
      - {{expr: "eps >= 0", message: eps must not be negative}}
    numerics: {{accumulate: float32, nan: propagate}}
    roofline: {{flops: "4 * prod(batch) * H"}}   # bytes follow from the inputs and outputs
    kernel_map: {{}}                     # dispatch key: kernel class, once there is one
    status: {{cpu: spec-only, cuda: spec-only}}
    workloads:
      - {{label: typical, dims: {{batch: [2048], H: 4096}}, dtypes: [float16, bfloat16]}}
      - {{label: ragged, dims: {{batch: [3, 7], H: 331}}, dtypes: [float16, bfloat16, float32]}}
"""


def skeleton(name: str) -> str:
    """YAML of a new entry. Raises ValueError for a name that no entry may have."""
    if not re.match(OP_NAME, name):
        raise ValueError(
            f"{name!r} is not an op name: write CamelCase ending in FwdOp or BwdOp, as RMSNormFwdOp"
        )
    return _TEMPLATE.format(name=name, grammar=GRAMMAR)
