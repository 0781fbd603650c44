"""Every mistake in a manifest file is named with its position, and all of them at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tileops_manifest import Domain, ManifestError, load_manifest
from tileops_manifest.loader import validate_path
from tileops_manifest.validate import check_values


def position(text: str, needle: str, skip: int = 0) -> tuple[int, int]:
    """Line and column (1-based) of the first occurrence of ``needle``, moved right by ``skip``."""
    before = text[: text.index(needle)]
    return before.count("\n") + 1, len(before) - before.rfind("\n") + skip


def test_the_base_of_these_tests_is_valid(check):
    report = check()
    assert report.problems == ()
    assert (report.entries, report.rows, report.rules, report.evaluated) == (1, 1, 1, 2)


MISTAKES = {
    "unknown field": (
        "summary: Rows",
        "sumary: x\n    summary: Rows",
        "sumary",
        0,
        "did you mean 'summary'?",
    ),
    "unknown nested field": ("min: 1}", "mim: 1}", "mim", 0, "did you mean 'min'?"),
    "unknown row field": ("label: small, dims", "label: small, dimz", "dimz", 0, "did you mean 'dims'?"),
    "missing field": ("    ref_api: none\n", "", "ScaleFwdOp", 0, "field 'ref_api' is missing"),
    "wrong type": ("optional: true", "optional: 3", "optional: 3", 10, "valid boolean, got 3"),
    "yaml 1.1 words are strings": ("optional: true", "optional: yes", "optional: yes", 10, "got 'yes'"),
    "another grammar": ("grammar: 1", "grammar: 2", "grammar: 2", 9, "Input should be 1"),
    "op name": ("ScaleFwdOp", "scale_fwd", "scale_fwd", 0, "String should match pattern"),
    "enumeration": ("nan: propagate", "nan: maybe", "maybe", 0, "Input should be 'propagate'"),
    "unbound name in a rule": (
        "factor > 0",
        "fctor > 0",
        "fctor > 0",
        0,
        "name 'fctor' is not bound; did you",
    ),
    "position inside an expression": ("factor > 0", "1 + factr > 0", "factr > 0", 0, "'factr' is not bound"),
    "unbound name in an output": (
        'output: {dtype: T, shape: "[*batch, H]"}',
        'output: {dtype: T, shape: "[K]"}',
        "K]",
        0,
        "name 'K' is not bound",
    ),
    "unbound name in the roofline": ("prod(batch) * H", "prod(batch) * W", "W", 0, "name 'W' is not bound"),
    "unknown function": ("prod(batch) *", "prd(batch) *", "prd", 0, "did you mean 'prod'?"),
    "intermediate value that the grammar does not know": (
        "nan: propagate}",
        "nan: propagate, intermediates: {probs: T}}",
        "probs: T",
        7,
        "Input should be 'probabilities'",
    ),
    "intermediate value of an unbound dtype": (
        "nan: propagate}",
        "nan: propagate, intermediates: {probabilities: W}}",
        "W}",
        0,
        "name 'W' is not bound",
    ),
    "intermediate value of two dtypes": (
        "nan: propagate}",
        "nan: propagate, intermediates: {probabilities: float16 | float32}}",
        "float16 | float32}}",
        0,
        "an intermediate has one dtype",
    ),
    "unknown dtype": ("float16 | float32", "float17 | float32", "float17", 0, "'float17' is not bound"),
    "dtype twice": (
        "float16 | float32",
        "float16 | float16",
        "float16 | float16",
        0,
        "union of distinct dtypes",
    ),
    "syntax error": ("factor > 0", "factor >", "factor >", 8, "invalid syntax"),
    "attribute": ("factor > 0", "x.ndim > 0", "x.ndim", 0, "attributes are not part of the language"),
    "tensor used as a value": ("factor > 0", "x > 0", "x > 0", 0, "'x' is a tensor"),
    "dim that is in no shape": ("H: {doc", "W: {}, H: {doc", "W: {}", 0, "in no input's shape"),
    "pack without its star": ('"*batch": leading', "batch: leading", "leading", 0, "write it *batch"),
    "dim with a star": ("H: {doc: row, min: 1}", '"*H": rows', "rows", 0, "write it H"),
    "rank of a dim": ("min: 1", "min_rank: 1", "H: {doc: row", 0, "belong to packs"),
    "default of another type": (
        "default: 1.0",
        "default: one",
        "default: one",
        9,
        "default 'one' is not of type float",
    ),
    "default that is no choice": ("default: fast", "default: quick", "quick", 0, "not one of the choices"),
    "choice of another type": ("[fast, slow]", "[fast, 3]", "choices: [fast", 0, "are not all of type str"),
    "unknown param type": ("type: float,", "type: flaot,", "flaot", 0, "did you mean 'float'?"),
    "binds nothing": (
        "default: 1.0",
        "default: 1.0, binds: W",
        "binds: W",
        7,
        "'W' is not a dim, pack or dtype variable",
    ),
    "size bound by a dtype": (
        "default: 1.0",
        "default: 1.0, binds: T",
        "binds: T",
        7,
        "'T' is a dtype variable, a param of type float cannot equal it",
    ),
    "dtype bound by a size": (
        "mode: {type: str, default: fast, choices: [fast, slow]",
        "mode: {type: dtype, default: float16, binds: H",
        "binds: H",
        7,
        "'H' is a size, a param of type dtype cannot equal it",
    ),
    "name used twice": (
        "factor: {type",
        "x: {type",
        "x: {type: float",
        0,
        "name 'x' is already used in inputs",
    ),
    "param named as a dtype": (
        "factor: {type",
        "int32: {type",
        "int32: {type: float",
        0,
        "name 'int32' is a dtype",
    ),
    "dim named as a param": (
        "factor: {type: float, default: 1.0}",
        "batch: {type: int, default: 1}",
        "batch: {type: int,",
        0,
        "'batch' is also a dim",
    ),
    "required param after an optional one": (
        "mode: {type: str, default: fast, choices: [fast, slow], kw_only: true}",
        "mode: {type: str}",
        "mode: {type: str}",
        0,
        "follows one with a default",
    ),
    "positional param after a keyword one": (
        "factor: {type: float, default: 1.0}",
        "factor: {type: float, default: 1.0, kw_only: true}\n      other: {type: int, default: 1}",
        "other: {type: int",
        0,
        "follows a keyword-only one",
    ),
    "values missing": (
        ", values: {kind: range, high: H}",
        "",
        "index: {dtype: int32",
        0,
        "declares its legal values",
    ),
    "values without a bound": (
        "kind: range, high: H",
        "kind: range",
        "values: {kind: range",
        0,
        "need `high`",
    ),
    "values with a foreign bound": (
        "kind: range, high: H",
        "kind: range, high: H, total: 3",
        "3}",
        0,
        "take no `total`",
    ),
    "values above a stranger": (
        "high: H",
        "high: H, above: indx",
        "indx",
        0,
        "not another input; did you mean 'index'?",
    ),
    "starts of a stranger": (
        "kind: range, high: H",
        "kind: starts, of: indx",
        "indx",
        0,
        "not another input; did you mean 'index'?",
    ),
    "starts of what is no parts": (
        "kind: range, high: H",
        "kind: starts, of: weight",
        "of: weight",
        4,
        "'weight' is not an input whose values are parts",
    ),
    "filler of a range": (
        "kind: range, high: H",
        "kind: range, high: H, filler: -1",
        "filler: -1",
        8,
        "take no `filler`",
    ),
    "mutated of a strange type": (
        'weight: {dtype: T, shape: "[H]"}',
        'weight: {dtype: T, shape: "[H]", mutated: 3}',
        "3}",
        0,
        "expected true, false or an expression",
    ),
    "alias of an input that is not written": (
        'output: {dtype: T, shape: "[*batch, H]"}',
        'output: {dtype: T, shape: "[*batch, H]", alias: x}',
        "x}",
        0,
        "'x' is not a mutated input",
    ),
    "output with a union": (
        "output: {dtype: T",
        "output: {dtype: float16 | float32",
        "float16 | float32, shape",
        0,
        "an output has one dtype",
    ),
    "promotion of an input": (
        "weight: {dtype: T",
        "weight: {dtype: 'promote(x, x)'",
        "'promote",
        0,
        "is for outputs",
    ),
    "same_as an optional input": (
        "weight: {dtype: T",
        "weight: {dtype: same_as(index)",
        "same_as",
        0,
        "optional input",
    ),
    "shape that is no list": (
        'weight: {dtype: T, shape: "[H]"}',
        "weight: {dtype: T, shape: H}",
        "H}",
        0,
        "a list of dims such as",
    ),
    "unquoted shape": ('shape: "[H]"}', "shape: [H]}", "shape: [H]}", 0, "Input should be a valid string"),
    "shape that reads a dim in its condition": (
        'shape: "[H]"}',
        'shape: "[H] if H > 1 else [1]"}',
        "H > 1",
        0,
        "reads params only",
    ),
    "values in a rule": ("factor > 0", "sum_of(index) > 0", "index) > 0", 0, "known to the roofline only"),
    "no workloads": (
        "      - {label: small, dims: {batch: [2], H: 8}, dtypes: [float16, float32]}\n",
        "      []\n",
        "workloads:",
        0,
        "at least 1 item",
    ),
    "label twice": (
        "      - {label: small",
        "      - {label: small, dims: {batch: [], H: 1}, dtypes: [float16]}\n      - {label: small",
        "small, dims: {batch: [2]",
        0,
        "label 'small' is used twice",
    ),
    "row without a dim": ("batch: [2], H: 8", "batch: [2]", "small", 0, "needs a size for H"),
    "row with an unknown dim": ("H: 8", "H: 8, Hx: 1", "small", 0, "unknown dim 'Hx'"),
    "row with a negative size": ("H: 8", "H: -8", "-8", 0, "integers >= 0"),
    "row with a list for a dim": ("H: 8", "H: [8]", "small", 0, "expected one size"),
    "row below the domain": ("H: 8", "H: 0", "small", 0, "at least 1"),
    "row that breaks a rule": (
        "H: 8}",
        "H: 8}, params: {factor: -1.0}",
        "small",
        0,
        "factor must be positive",
    ),
    "row with an unknown param": (
        "H: 8}",
        "H: 8}, params: {facto: 2.0}",
        "small",
        0,
        "did you mean 'factor'?",
    ),
    "row in a dtype of none": ("[float16, float32]", "[float64]", "float64]", 0, "T is float64, expected"),
    "row with an unknown dtype variable": (
        "[float16, float32]",
        "[{U: float16}]",
        "{U: float16}]",
        0,
        "unknown dtype variable 'U'",
    ),
    "row giving a required input": ("H: 8}", "H: 8}, with: [x]", "small", 0, "not an optional input"),
    "row with values out of the domain": (
        "H: 8}",
        "H: 8}, with: [index], values: {index: 8}",
        "small",
        0,
        "8 is outside [0, 8)",
    ),
    "row with too few values": (
        "H: 8}",
        "H: 8}, with: [index], values: {index: [1, 2]}",
        "small",
        0,
        "2 values for 8 elements",
    ),
    "row with values of an input it lacks": (
        "H: 8}",
        "H: 8}, values: {index: 1}",
        "small",
        0,
        "not an input",
    ),
    "flops of zero": ("prod(batch) * H", "0 * H", "small", 0, "roofline.flops is 0"),
    "negative flops": ("prod(batch) * H", "0 - H", "small", 0, "roofline.flops is -8"),
    "flops that are no integer": ("prod(batch) * H", "factor * H", "small", 0, "roofline.flops is 8.0"),
    "bytes of zero": ('H"}\n', 'H", bytes: 0}\n', "small", 0, "roofline.bytes is 0"),
    "division": ("prod(batch) * H", "H / 2", "/ 2", -1, "use // or ceil_div"),
    "rule that is no condition": ("factor > 0", "factor", "small", 0, "is not a condition"),
    "rule without a value": ("factor > 0", "batch[3] > 0", "small", 0, "cannot be evaluated"),
    "bad YAML": ("summary: Rows", "summary: [Rows", "ref_api: none", 7, "bad YAML"),
    "tab": ("    ref_api", "\tref_api", "\tref_api", 0, "bad YAML"),
    "duplicate key": (
        "    ref_api: none",
        "    ref_api: none\n    ref_api: torch.mul",
        "ref_api: torch",
        0,
        "duplicate key 'ref_api' (first in line 6)",
    ),
    "foreign tag": (
        "ref_api: none",
        "ref_api: !!python/name:os.system none",
        "!!python",
        0,
        "bad YAML|not allowed",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_its_position(check, base, mistake):
    old, new, needle, skip, message = MISTAKES[mistake]
    report = check((old, new))
    text = base.replace(old, new, 1)
    assert report.problems, mistake
    places = [(problem.line, problem.column) for problem in report.problems]
    texts = [problem.message for problem in report.problems]
    assert any(option in found for found in texts for option in message.split("|")), texts
    assert position(text, needle, skip) in places, (places, position(text, needle, skip), texts)


@pytest.mark.parametrize(
    ("domain", "fixed", "message"),
    [
        (Domain("offsets", total=9, longest=4), (0, 4, 9), "by at most 4"),
        (Domain("parts", total=9), (4, 6), "at most 9, got 10"),
        (Domain("parts", total=9), 5, "at most 9, got 10"),
        (Domain("parts", total=9), (10, -1), "at most 9"),
        (Domain("starts", of="sizes"), (0, 4), "starts follow from sizes"),
    ],
)
def test_fixed_values_of_a_row_fit_their_domain(domain, fixed, message):
    assert message in check_values(domain, fixed, 2 + (domain.kind == "offsets"))


def test_all_problems_are_reported_at_once_in_file_order(check):
    report = check(
        ("optional: true", "optional: 3"), ("nan: propagate", "nan: maybe"), ("summary:", "sumary:")
    )
    assert len(report.problems) == 4  # the misspelt summary is unknown and missing
    assert [problem.line for problem in report.problems] == sorted(
        problem.line for problem in report.problems
    )


def test_sound_entries_of_a_file_are_still_checked_when_another_is_malformed(check, base):
    second = base.split("ops:\n", 1)[1].replace("ScaleFwdOp", "OtherFwdOp").replace("factor > 0", "fctor > 0")
    report = check(("optional: true", "optional: 3"), text=base + second)
    messages = "\n".join(problem.message for problem in report.problems)
    assert "ScaleFwdOp: inputs.index.optional" in messages
    assert "OtherFwdOp: name 'fctor'" in messages


def test_an_op_in_two_files_is_a_problem_naming_the_first(tmp_path: Path, base: str):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(base, encoding="utf-8")
    _, report = validate_path(tmp_path)
    (problem,) = report.problems
    assert problem.file.endswith("b.yaml")
    assert (problem.line, problem.column) == (4, 3)
    assert "already an entry in" in problem.message
    assert problem.message.endswith("a.yaml:4")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"a: 1\n---\nb: 1\n", "bad YAML: but found another document"),
        (b"grammar: 1\nfamily: toy\nops: &ops {AFwdOp: *ops}\n", "an alias stands inside its own anchor"),
        (b"[" * 20000, "bad YAML"),
        (b"- 1\n", "a manifest file is a mapping"),
        (b"\xff\xfe", "cannot be read"),
        (b"grammar: 1\nfamily: toy\nops: {[1, 2]: 3}\n", "a key must be a plain name"),
    ],
)
def test_a_file_that_is_no_manifest_is_a_problem(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        load_manifest(path)
    assert any(message in problem.message for problem in caught.value.problems)


def test_a_path_that_does_not_exist_and_an_empty_folder_are_problems(tmp_path: Path):
    with pytest.raises(ManifestError, match="no such file or folder"):
        load_manifest(tmp_path / "nowhere")
    with pytest.raises(ManifestError, match=r"holds no \*\.yaml file"):
        load_manifest(tmp_path)


def test_positions_are_the_same_without_the_c_parser(check, monkeypatch):
    change = ("factor > 0", "1 + factr > 0")
    fast = check(change)
    monkeypatch.setattr("tileops_manifest.source._Loader", yaml.SafeLoader)
    assert check(change) == fast


def test_anchors_are_shared_not_copied(check):
    laughs = "".join(
        f"      a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]\n" for i in range(30)
    )
    report = check(("    rules:\n", f"    let:\n{laughs}    rules:\n"))
    assert len(report.problems) == 30  # each is reported once; expanded they would be 9 ** 29 values


def test_scalars_follow_the_core_schema(check):
    report = check(("default: 1.0", "default: 1e-6"))
    assert report.problems == ()  # YAML 1.1 reads 1e-6 as a string
