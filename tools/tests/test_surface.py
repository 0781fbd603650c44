"""Classes, entries, labels and units: each check fails on what it guards against."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pydantic import ValidationError

from boundary import codeowners, entries, surface
from boundary.model import StageTable, Surface
from tileops_manifest import ManifestError, load_manifest

ROOT = Path(__file__).resolve().parents[2]


def plant(root: Path, table: StageTable, stage: str, source: str, name: str = "planted.py") -> Path:
    found = table.stages[stage]
    path = root / found.folder / "src" / found.module / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return path


def seen(root: Path, table: StageTable, wanted: Surface) -> str:
    return "\n".join(map(str, surface.check_surface(root, dataclasses.replace(table, surface=(wanted,)))))


BASE = Surface("WorkloadBase", "workloads", members=("gen_inputs",), without=("ref_program",))


def test_this_tree_has_every_named_class(table: StageTable) -> None:
    assert surface.check_surface(ROOT, table) == []
    assert surface.check_units(table) == surface.check_subclasses(ROOT, table) == []


def test_a_class_as_it_should_be_holds(repository: Path, table: StageTable) -> None:
    plant(repository, table, "workloads", "class WorkloadBase:\n    def gen_inputs(self): ...\n")
    assert seen(repository, table, BASE) == ""


def test_a_missing_class_is_found(repository: Path, table: StageTable) -> None:
    assert "is not defined" in seen(repository, table, BASE)


def test_a_class_without_a_member_is_found(repository: Path, table: StageTable) -> None:
    plant(repository, table, "workloads", "class WorkloadBase: ...\n")
    assert "lacks gen_inputs" in seen(repository, table, BASE)


def test_a_class_with_a_member_that_it_must_not_have_is_found(repository: Path, table: StageTable) -> None:
    source = "class WorkloadBase:\n    def gen_inputs(self): ...\n    def ref_program(self): ...\n"
    plant(repository, table, "workloads", source)
    assert "must not have ref_program" in seen(repository, table, BASE)


def test_a_class_in_another_stage_is_found(repository: Path, table: StageTable) -> None:
    plant(repository, table, "workloads", "class WorkloadBase:\n    def gen_inputs(self): ...\n")
    plant(repository, table, "bench", "class WorkloadBase: ...\n")
    assert "bench: WorkloadBase: belongs to workloads" in seen(repository, table, BASE)


def test_a_class_without_its_base_is_found(repository: Path, table: StageTable) -> None:
    plant(repository, table, "tests", "class TestBase: ...\n")
    wanted = Surface("TestBase", "tests", bases=("WorkloadBase",))
    assert "does not derive from WorkloadBase" in seen(repository, table, wanted)


def test_workloads_without_subclasses_are_found(repository: Path, table: StageTable) -> None:
    plant(repository, table, "workloads", "class WorkloadBase: ...\n")
    assert surface.check_subclasses(repository, table) != []


def test_workloads_as_a_unit_of_their_own_are_found(table: StageTable) -> None:
    stages = table.stages | {"workloads": dataclasses.replace(table.stages["workloads"], change="workloads")}
    findings = surface.check_units(dataclasses.replace(table, stages=stages, alone=frozenset()))
    assert [f.place for f in findings] == ["stage workloads", "change", "change"]


ENTRY = {"grammar": 1, "family": "x", "ops": {}}


def write_entry(root: Path, table: StageTable, text: str) -> Path:
    return plant(root, table, "manifest", text, "ops/normalization.yaml")


@pytest.mark.parametrize("text", ["grammar: 1\nops: {A: {}}\n", "inputs: {x: 1}\noutputs: {y: 1}\n"])
def test_an_entry_outside_the_manifest_is_found(repository: Path, table: StageTable, text: str) -> None:
    assert entries.check_entries(repository, table) == []
    plant(repository, table, "kernels", text, "mine.yaml")
    assert "mine.yaml" in str(entries.check_entries(repository, table)[0])


ROWS = (
    "grammar: 1\n"
    "ops: {A: {status: {cpu: implemented}, kernel_map: {default: AKernel}, workloads: [{label: llama-8b}]}}\n"
)


def test_a_workload_known_by_name_is_found(repository: Path, table: StageTable) -> None:
    write_entry(repository, table, ROWS)
    assert entries.check_labels(repository, table) == []
    plant(repository, table, "kernels", "FAST = {'llama-8b': 3}\n")
    assert "knows the workload 'llama-8b'" in str(entries.check_labels(repository, table)[0])


def test_a_registered_kernel_that_does_not_exist_is_found(repository: Path, table: StageTable) -> None:
    write_entry(repository, table, ROWS)
    assert "AKernel" in str(entries.check_registered(repository, table)[0])
    plant(repository, table, "kernels", "class AKernel: ...\n")
    assert entries.check_registered(repository, table) == []


FORBIDDEN = {
    "kernel internals": "    block_m: 128\n",
    "dispatch strategy": "    kernel_map: {default: [FastKernel, SlowKernel]}\n",
    "test logic": "    tolerance: {float16: 0.001}\n",
}
VALID = """grammar: 1
family: normalization
ops:
  ScaleFwdOp:
    summary: "x times two."
    ref_api: none
    dtypes: {T: float16}
    inputs: {x: {dtype: T, shape: "[M]"}}
    outputs: {output: {dtype: T, shape: "[M]"}}
    dims: {M: elements}
    numerics: {accumulate: none, nan: propagate}
    roofline: {flops: M}
    workloads: [{label: small, dims: {M: 64}, dtypes: [float16]}]
"""


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_grammar_refuses_what_an_entry_must_not_hold(tmp_path: Path, what: str) -> None:
    path = tmp_path / "normalization.yaml"
    path.write_text(VALID)
    assert load_manifest(path)["ScaleFwdOp"]
    path.write_text(VALID + FORBIDDEN[what])
    with pytest.raises(ManifestError):
        load_manifest(path)


def test_an_entry_cannot_be_changed_by_its_reader() -> None:
    entry = load_manifest()["SoftmaxFwdOp"]
    with pytest.raises((ValidationError, AttributeError, TypeError)):
        entry.model.status.cpu = "spec-only"
    with pytest.raises((AttributeError, TypeError)):
        entry.name = "Mine"
    with pytest.raises(TypeError):
        entry.model.kernel_map["default"] = "MineKernel"


OWNERS = "/packages/tileops-manifest/ @spec\n/packages/tileops-kernels/ @kernels\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (OWNERS + "/packages/ @kernels\n", "expected ['@spec'] alone"),
        (OWNERS.replace("@kernels", "@kernels @spec"), "who own packages/tileops-manifest apart"),
        ("/packages/ @kernels\n", "no owners of its own"),
    ],
)
def test_manifest_owned_by_somebody_else_is_found(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / ".github").mkdir()
    (tmp_path / ".github/CODEOWNERS").write_text(text)
    files = ["packages/tileops-manifest/RULES.md", "packages/tileops-kernels/RULES.md"]
    found = codeowners.check_apart(tmp_path, "packages/tileops-manifest", files)
    assert named in "\n".join(map(str, found))
