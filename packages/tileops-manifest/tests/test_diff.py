"""Each change is named for what it does to users."""

from __future__ import annotations

from pathlib import Path

import pytest

from tileops_manifest import load_manifest
from tileops_manifest.diff import diff_manifests, next_version, worst

CHANGES = {
    "op removed": ("ScaleFwdOp:", "OtherFwdOp:", "breaking", "op: removed"),
    "op added": ("ScaleFwdOp:", "OtherFwdOp:", "additive", "op: added"),
    "dtype gained": (
        "float16 | float32",
        "float16 | float32 | bfloat16",
        "additive",
        "inputs.x.dtype: now also bfloat16",
    ),
    "shape": (
        'index: {dtype: int32, shape: "[H]"',
        'index: {dtype: int32, shape: "[1]"',
        "breaking",
        "inputs.index.shape",
    ),
    "became required": ("optional: true, ", "", "breaking", "inputs.index.optional: became required"),
    "values": (
        "kind: range, high: H",
        "kind: sorted, high: H",
        "breaking",
        "inputs.index.values: range low=0 high=H became",
    ),
    "optional input at the end": (
        "    outputs:\n",
        '      z: {dtype: T, shape: "[H]", optional: true}\n    outputs:\n',
        "additive",
        "inputs.z: added",
    ),
    "required input": (
        "    outputs:\n",
        '      z: {dtype: T, shape: "[H]"}\n    outputs:\n',
        "breaking",
        "inputs.z: added",
    ),
    "optional input in the middle": (
        "      weight:",
        '      z: {dtype: T, shape: "[H]", optional: true}\n      weight:',
        "breaking",
        "inputs.z: added",
    ),
    "output added": (
        "    params:\n",
        '      o2: {dtype: T, shape: "[H]"}\n    params:\n',
        "breaking",
        "outputs.o2: added",
    ),
    "default": ("default: 1.0", "default: 2.0", "breaking", "params.factor.default: 1.0 became 2.0"),
    "param type widened": ("{type: float,", "{type: float | None,", "additive", "params.factor.type"),
    "param type takes None": ("{type: str,", "{type: str | None,", "additive", "params.mode.type"),
    "param became positional": (", kw_only: true", "", "additive", "params.mode.kw_only: became positional"),
    "choice gained": ("[fast, slow]", "[fast, slow, eager]", "additive", "params.mode.choices"),
    "choice lost": ("[fast, slow]", "[fast]", "breaking", "params.mode.choices"),
    "rule added": (
        "    rules:\n",
        '    rules:\n      - {expr: "H > 1", message: more}\n',
        "breaking",
        "rules: added `H > 1`",
    ),
    "rule removed": (
        '    rules:\n      - {expr: "factor > 0", message: factor must be positive}\n',
        "",
        "additive",
        "rules: removed `factor > 0`",
    ),
    "rule reworded": ("factor must be positive", "be positive", "neutral", "reworded"),
    "domain narrowed": ("min: 1}", "min: 2}", "breaking", "dims.H: domain became min 2"),
    "domain widened": ("min: 1}", "min: 0}", "additive", "dims.H: domain became min 0"),
    "numerics": ("accumulate: float32", "accumulate: float64", "breaking", "numerics: "),
    "rounding allowed": (
        "nan: propagate}",
        "nan: propagate, intermediates: {probabilities: T}}",
        "breaking",
        "numerics: ",
    ),
    "roofline": ("prod(batch) * H", "2 * prod(batch) * H", "neutral", "roofline: "),
    "summary": ("Rows scaled", "Rows multiplied", "neutral", "summary: "),
    "row added": (
        "      - {label: small",
        "      - {label: tiny, dims: {batch: [], H: 1}, dtypes: [float16]}\n      - {label: small",
        "additive",
        "workloads.tiny: added",
    ),
    "row renamed": ("label: small", "label: smaller", "breaking", "workloads.small: removed"),
    "row changed": ("H: 8}", "H: 9}", "breaking", "workloads.small: changed"),
    "row dtype lost": (
        "[float16, float32]",
        "[float16]",
        "breaking",
        "workloads.small: dtypes became float16",
    ),
}


@pytest.fixture
def load(tmp_path: Path):
    def run(text: str, name: str):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return load_manifest(path)

    return run


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_classified(load, base, name):
    old_text, new_text, kind, message = CHANGES[name]
    assert old_text in base
    old, new = load(base, "old.yaml"), load(base.replace(old_text, new_text, 1), "new.yaml")
    changes = diff_manifests(old.entries, new.entries)
    assert any(change.kind == kind and message in str(change) for change in changes), [
        (change.kind, str(change)) for change in changes
    ]


@pytest.mark.parametrize(
    ("wide", "narrow", "message"),
    [
        ("{type: str | None,", "{type: str,", "params.mode.type"),
        ("float16 | float32 | bfloat16", "float16 | float32", "inputs.x.dtype: no longer bfloat16"),
        (
            "factor: {type: float, default: 1.0}",
            "factor: {type: float}",
            "params.factor.default: became required",
        ),
    ],
)
def test_accepting_less_is_breaking(load, base, wide, narrow, message):
    text = base.replace("H: 8}", "H: 8}, params: {factor: 2.0}")
    known = narrow if narrow in text else wide
    old, new = (
        load(text.replace(known, variant, 1), f"{i}.yaml") for i, variant in enumerate((wide, narrow))
    )
    changes = diff_manifests(old.entries, new.entries)
    assert {change.kind for change in changes} == {"breaking"}
    assert any(message in str(change) for change in changes)


def test_equal_manifests_have_no_changes(load, base):
    commented = "# only a comment\n" + base
    assert diff_manifests(load(base, "old.yaml").entries, load(commented, "new.yaml").entries) == ()


def test_the_worst_change_sets_the_version():
    assert worst(()) is None
    assert next_version("0.1.0", None) == "0.1.0"
    assert [next_version("0.1.4", kind) for kind in ("breaking", "additive", "neutral")] == [
        "0.2.0",
        "0.1.5",
        "0.1.5",
    ]
    assert [next_version("1.2.3", kind) for kind in ("breaking", "additive", "neutral")] == [
        "2.0.0",
        "1.3.0",
        "1.2.4",
    ]
