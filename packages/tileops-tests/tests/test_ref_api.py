"""Entries that mirror a torch function agree with its real signature: names, order, defaults.

What differs is listed, in the entry: a param's `deviation`, or a word of `deviations`. An entry has its
tensors before its params, so each of the two keeps torch's order by itself.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tileops_manifest import Entry, load_manifest

MANIFEST = load_manifest()
MIRRORS = [name for name, entry in MANIFEST.items() if entry.ref_api != "none" and name.endswith("FwdOp")]
REQUIRED = inspect.Parameter.empty

Signature = dict[str, Any]  # argument -> default, in order

# The operator behind torch.linalg.vector_norm is linalg_vector_norm.
PREFIXES = ("", "linalg_", "fft_")
# What no op here takes: results have the dtype that the entry says; internals of torch.
NOT_OURS = {"dtype", "_stacklevel"}
# Names of tensors that these ops share with other libraries; the first one is often just x.
RENAMED = {
    "MultiHeadAttentionFwdOp": {"q": "query", "k": "key", "v": "value"},
    "GroupedQueryAttentionFwdOp": {"q": "query", "k": "key", "v": "value"},
    "GemmFwdOp": {"a": "input", "b": "other"},
    "BmmFwdOp": {"a": "input", "b": "mat2"},
    "TopkSelectorFwdOp": {"index_score": "input", "topk": "k"},
}
# Defaults that torch's schemas write as None; its documentation says the value.
SAID_AS_NONE = {"correction": 1}


def signatures(ref_api: str) -> list[Signature]:
    """The overloads of a public function: Python's signature, or the schemas of the operator behind it."""
    function: Any = torch
    for part in ref_api.split(".")[1:]:
        function = getattr(function, part)
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:
        found = ()
    if found and all(parameter.kind is not parameter.VAR_POSITIONAL for parameter in found):
        return [{parameter.name: parameter.default for parameter in found}]
    leaf = ref_api.rsplit(".", 1)[1]
    schemas = [
        schema
        for prefix in PREFIXES
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{prefix}{leaf}")
        if not schema.overload_name.endswith("out")
    ]
    return [
        {
            "input" if argument.name == "self" else argument.name: (
                argument.default_value if argument.has_default_value() else REQUIRED
            )
            for argument in schema.arguments
        }
        for schema in schemas
    ]


def differences(entry: Entry) -> Iterator[str]:
    """What the entry neither shares with its `ref_api` nor lists as a deviation."""
    overloads = signatures(entry.ref_api)
    renamed = RENAMED.get(entry.name, {"x": "input"})
    inputs = [renamed.get(name, name) for name in entry.inputs]
    params = {renamed.get(name, name): spec for name, spec in entry.params.items()}
    torchs = max(overloads, key=lambda overload: len(overload.keys() & {*inputs, *params}))
    listed = set(re.findall(r"\w+", " ".join(entry.model.deviations)))

    for name in inputs:
        if name not in torchs and name not in listed:
            yield f"torch has no tensor {name}"
    for name, spec in params.items():
        default = REQUIRED if spec.required else spec.default
        left_out = any(name not in overload for overload in overloads)
        same = name in torchs and same_default(name, default, torchs[name], left_out=left_out)
        if spec.deviation is not None and same and not spec.required:
            yield f"{name} is said to deviate and does not"
        elif spec.deviation is None and not same and name not in listed:
            yield f"{name} has the default {default!r}, torch has {torchs.get(name, 'no such param')!r}"
    for name in torchs:
        if name not in inputs and name not in params and name not in NOT_OURS | listed:
            yield f"torch has {name}"
    for names in (inputs, params):
        ours, theirs = in_both(names, torchs), in_both(torchs, names)
        if ours != theirs:
            yield f"the order is {ours}, torch has {theirs}"


def in_both(names: Iterable[str], others: Iterable[str]) -> list[str]:
    return [name for name in names if name in set(others)]


def same_default(name: str, ours: Any, theirs: Any, *, left_out: bool) -> bool:
    """Equal, as torch writes it: one int for a list of equal ones, nothing for an empty list, an overload of
    its own for an argument that is left out.
    """
    if isinstance(theirs, list):
        return ours is None if not theirs else ours in (theirs[0], tuple(theirs))
    if theirs is REQUIRED and left_out:
        return ours in (None, 0)
    return (
        (ours is theirs)
        if theirs is REQUIRED
        else ours == theirs or (theirs is None and ours == SAID_AS_NONE.get(name))
    )


@pytest.mark.parametrize("op", MIRRORS)
def test_an_entry_agrees_with_the_function_that_it_mirrors(op: str) -> None:
    assert list(differences(MANIFEST[op])) == []


TOY = """\
grammar: 1
family: toy
ops:
  ToyFwdOp:
    summary: toy
    ref_api: torch.nn.functional.softplus
    dtypes: {T: float16}
    inputs:
      input: {dtype: T, shape: "[N]"}
    outputs:
      output: {dtype: T, shape: "[N]"}
    params:
      beta: {type: number, default: 1}
      threshold: {type: number, default: 20}
    numerics: {accumulate: none, nan: propagate}
    roofline: {flops: N}
    workloads:
      - {label: one, dims: {N: 3}, dtypes: [float16]}
"""


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("toy\n    ref", "toy\n    ref", []),
        ("default: 20", "default: 10", ["threshold has the default 10, torch has 20"]),
        ("default: 20}", "default: 10, deviation: smaller}", []),
        ("default: 20}", "default: 20, deviation: none}", ["threshold is said to deviate and does not"]),
        ("      input:", "      other:", ["torch has no tensor other", "torch has input"]),
        ("      threshold: {type: number, default: 20}\n", "", ["torch has threshold"]),
        (
            "      threshold: {type: number, default: 20}\n",
            "      limit: {type: number, default: 20}\n",
            ["limit has the default 20, torch has 'no such param'", "torch has threshold"],
        ),
        (
            "beta: {type: number, default: 1}\n      threshold: {type: number, default: 20}",
            "threshold: {type: number, default: 20}\n      beta: {type: number, default: 1}",
            ["the order is ['threshold', 'beta'], torch has ['beta', 'threshold']"],
        ),
        ("    ref_api", "    deviations: [no threshold here]\n    ref_api", []),
    ],
)
def test_a_difference_is_found(tmp_path: Path, old: str, new: str, found: list[str]) -> None:
    assert old in TOY
    path = tmp_path / "toy.yaml"
    path.write_text(TOY.replace(old, new), encoding="utf-8")
    assert list(differences(load_manifest(path)["ToyFwdOp"])) == found


@pytest.mark.parametrize(
    "ref_api", ["torch.add", "torch.nn.functional.max_pool2d", "torch.linalg.vector_norm"]
)
def test_functions_without_a_python_signature_have_their_schemas(ref_api: str) -> None:
    overloads = signatures(ref_api)
    assert overloads
    assert all("args" not in overload and len(overload) > 1 for overload in overloads)
