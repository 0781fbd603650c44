"""Digests and import closures: they change with what a verdict rests on, and with nothing else."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tileops_manifest import load_manifest
from tileops_tests import closure, digests
from tileops_tests.closure import PACKAGE, digest_files, implementation_files, import_closure
from tileops_tests.oracles import get_oracle
from tileops_tests.sandbox import package_folder

FILES = {
    "__init__.py": "",
    "errors.py": "",
    "ops/__init__.py": "from tileops_kernels.ops.base import Op",
    "ops/base.py": "from .. import errors",
    "ops/flows/__init__.py": "",
    "ops/flows/norm.py": "from tileops_kernels.kernels.norm import NormKernel\nOPS = {'NormOp': NormKernel}",
    "ops/flows/other.py": "from tileops_kernels.kernels import other\nOPS = {'OtherOp': other.OtherKernel}",
    "kernels/__init__.py": "",
    "kernels/shared.py": "",
    "kernels/norm.py": "from . import shared\nclass NormKernel: ...",
    "kernels/other.py": "class OtherKernel: ...",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / PACKAGE
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def names(files: frozenset[Path], root: Path) -> set[str]:
    return {file.relative_to(root).as_posix() for file in files}


def entry(op: str, kernel: str) -> SimpleNamespace:
    return SimpleNamespace(name=op, kernel_map={"default": kernel})


def test_closure_holds_the_ops_flow_and_kernel_and_not_anothers(package: Path) -> None:
    found = names(implementation_files(entry("NormOp", "NormKernel"), package, "cpu"), package)
    assert {"ops/base.py", "errors.py", "ops/flows/norm.py", "kernels/norm.py", "kernels/shared.py"} <= found
    assert not {"ops/flows/other.py", "kernels/other.py"} & found


def test_a_flow_that_puts_names_together_is_found_by_its_kernel_class(package: Path) -> None:
    flow = (
        "from tileops_kernels.kernels.other import OtherKernel\nOPS = {f'{x}Op': OtherKernel for x in 'AB'}"
    )
    (package / "ops" / "flows" / "many.py").write_text(flow)
    found = names(implementation_files(entry("AOp", "OtherKernel"), package, "cpu"), package)
    assert {"ops/flows/many.py", "kernels/other.py"} <= found
    assert not {"ops/flows/norm.py", "kernels/norm.py"} & found


def test_a_header_beside_a_followed_file_counts(package: Path) -> None:
    (package / "kernels" / "support.h").write_text("")
    (package / "docs").mkdir()
    (package / "docs" / "notes.txt").write_text("")
    found = names(implementation_files(entry("NormOp", "NormKernel"), package, "cpu"), package)
    assert "kernels/support.h" in found
    assert "docs/notes.txt" not in found


def test_an_op_that_cannot_be_traced_depends_on_everything(package: Path) -> None:
    assert names(implementation_files(entry("NewOp", "NewKernel"), package, "cpu"), package) == set(FILES)


TARGETS = {
    "targets/__init__.py": "from .api import compile",
    "targets/api.py": "from .base import Program\nfrom .cpu import make\nfrom .cuda import build",
    "targets/base.py": "",
    "targets/cpu/__init__.py": "from .printer import write",
    "targets/cpu/printer.py": "",
    "targets/cpu/support.h": "",
    "targets/cuda/__init__.py": "from ..base import Program",
    "kernels/norm.py": "from tileops_kernels.targets.api import compile\nclass NormKernel: ...",
}


@pytest.fixture
def targets(package: Path) -> Path:
    for name, text in TARGETS.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return package


def test_a_target_depends_on_its_own_code_generator(targets: Path) -> None:
    norm = entry("NormOp", "NormKernel")
    cpu, cuda = (names(implementation_files(norm, targets, t), targets) for t in ("cpu", "cuda"))
    own = {"targets/cpu/__init__.py", "targets/cpu/printer.py", "targets/cpu/support.h"}
    assert cpu - cuda == own
    assert cuda - cpu == {"targets/cuda/__init__.py"}
    assert {"targets/api.py", "targets/base.py"} <= cpu & cuda


def test_another_targets_file_counts_where_it_is_used_and_not_chosen(targets: Path) -> None:
    (targets / "targets" / "cuda" / "__init__.py").write_text("from ..cpu.printer import write")
    found = names(implementation_files(entry("NormOp", "NormKernel"), targets, "cuda"), targets)
    assert "targets/cpu/printer.py" in found


def test_installed_targets_leave_each_other_alone() -> None:
    root = package_folder(PACKAGE)
    relu = load_manifest()["ReluFwdOp"]
    for target, other in (("cpu", "cuda"), ("cuda", "cpu")):
        found = names(implementation_files(relu, root, target), root)
        assert any(name.startswith(f"targets/{target}/") for name in found)
        assert not any(name.startswith(f"targets/{other}/") for name in found)


def test_digest_follows_content_and_names(package: Path) -> None:
    files = sorted(package.rglob("*.py"))
    before = digest_files(files, package)
    assert digest_files(reversed(files), package) == before
    (package / "errors.py").write_text("x = 1")
    assert digest_files(files, package) != before


def test_relative_imports_and_packages_are_followed(package: Path) -> None:
    found = names(import_closure([package / "kernels" / "norm.py"], package, PACKAGE), package)
    assert found == {"__init__.py", "kernels/__init__.py", "kernels/norm.py", "kernels/shared.py"}


def test_closure_of_the_installed_implementation_imports_nothing() -> None:
    root = package_folder(PACKAGE)
    loaded = PACKAGE in sys.modules
    files = implementation_files(load_manifest()["ReluFwdOp"], root, "cpu")
    assert root / "ops" / "base.py" in files
    assert (PACKAGE in sys.modules) == loaded


def test_oracle_digest_speaks_of_the_oracles_own_file() -> None:
    softmax, gemm = (digests.oracle_digest(get_oracle(op)) for op in ("SoftmaxFwdOp", "GemmFwdOp"))
    assert softmax != gemm
    assert softmax == digests.oracle_digest(get_oracle("LogSoftmaxFwdOp"))


def test_oracle_digest_speaks_of_the_listing_file_where_a_shared_form_makes_the_program() -> None:
    mish, pow_ = get_oracle("MishFwdOp"), get_oracle("PowFwdOp")
    assert mish.program.__module__ == pow_.program.__module__ == "tileops_tests.oracles.forms"
    assert digests.oracle_digest(mish) != digests.oracle_digest(pow_)
    unlisted = dataclasses.replace(mish, op="MineFwdOp")
    assert digests.oracle_digest(unlisted) not in (digests.oracle_digest(mish), digests.oracle_digest(pow_))


def test_every_digest_is_there_and_every_version_known() -> None:
    found = digests.digests_of(load_manifest()["ReluFwdOp"], get_oracle("ReluFwdOp"), None, "cpu")
    assert set(found) == {"manifest", "workload", "oracle", "tolerance", "checker", "implementation"}
    assert all(len(value) == 64 for value in found.values())
    assert {"python", "torch"} <= set(digests.versions())
    assert closure.PACKAGE == "tileops_kernels"


def test_versions_name_releases_and_no_local_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests.metadata, "version", lambda dist: "2.13.0+local")
    assert digests.versions()["torch"] == "2.13.0"
