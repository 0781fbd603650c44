"""Each boundary check holds on a clean tree and fails on a planted violation."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from boundary import alone, codeowners, declarations, imports, installed, layers, scope, wheels
from boundary.model import Finding, StageTable, declared, load_table

ROOT = Path(__file__).resolve().parents[2]


def plant(repository: Path, table: StageTable, stage: str, source: str, name: str = "planted.py") -> None:
    found = table.stages[stage]
    (repository / found.folder / "src" / found.module / name).write_text(source, encoding="utf-8")


def messages(findings: list[Finding]) -> str:
    return "\n".join(str(f) for f in findings)


def test_this_repository_holds_its_static_boundaries(table: StageTable) -> None:
    findings = [
        *declarations.check_declarations(ROOT, table),
        *declarations.check_rules(ROOT, table),
        *declarations.check_environments(ROOT, table),
        *imports.check_imports(ROOT, table),
        *codeowners.check_codeowners(ROOT),
        *codeowners.check_apart(ROOT, "packages/tileops-manifest"),
    ]
    assert messages(findings) == ""


@pytest.mark.parametrize(
    ("stage", "source", "named"),
    [
        ("bench", "from tileops_tests import oracles", "tileops_tests"),
        ("bench", "def late():\n    import tileops_tests.oracles", "tileops_tests"),
        ("bench", "import importlib\nimportlib.import_module('tileops_tests.oracles')", "tileops_tests"),
        ("bench", "m = __import__('tileops_tests')", "tileops_tests"),
        ("kernels", "import tileops_workloads", "tileops_workloads"),
        ("workloads", "from tileops_kernels import ops", "tileops_kernels"),
        ("manifest", "import torch", "torch"),
        ("manifest", "if False:\n    import tilelang", "tilelang"),
        ("workloads", "import numpy", "numpy"),
        ("tests", "import tileops_bench", "tileops_bench"),
    ],
)
def test_import_of_something_undeclared_is_found(
    repository: Path, table: StageTable, stage: str, source: str, named: str
) -> None:
    assert imports.check_imports(repository, table) == []
    plant(repository, table, stage, source)
    found = messages(imports.check_imports(repository, table))
    assert "planted.py" in found
    assert named in found


def test_docstrings_may_speak_of_other_stages(repository: Path, table: StageTable) -> None:
    plant(repository, table, "bench", '"""Never imports tileops_tests."""\n')
    assert imports.check_imports(repository, table) == []


def test_undeclared_sibling_dependency_is_found(repository: Path, table: StageTable) -> None:
    path = repository / "packages/tileops-bench/pyproject.toml"
    path.write_text(
        path.read_text().replace('"tileops-manifest', '"tileops-tests>=0.1", "tileops-manifest', 1)
    )
    assert "tests" in messages(declarations.check_declarations(repository, table))


def test_plugin_entry_point_is_found(repository: Path, table: StageTable) -> None:
    path = repository / "packages/tileops-kernels/pyproject.toml"
    path.write_text(
        path.read_text() + '\n[project.entry-points.pytest11]\nsneaky = "tileops_kernels.plugin"\n'
    )
    assert "pytest11" in messages(declarations.check_declarations(repository, table))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("[project.scripts]\n", "[project.scripts]\npytest = 'tileops_kernels.cli:main'\n", "'pytest'"),
        ('"torch>=2.11"', '"torch @ https://example.org/torch.whl"', "place of its own"),
        ("[project]\n", "[project]\ndynamic = ['dependencies']\n", "computed by the build"),
    ],
)
def test_metadata_that_reaches_out_is_found(
    repository: Path, table: StageTable, old: str, new: str, named: str
) -> None:
    path = repository / "packages/tileops-kernels/pyproject.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert named in messages(declarations.check_declarations(repository, table))


@pytest.mark.parametrize("suffix", [".cu", ".so", ".cpp", ".ptx", ".pyx", ".pth"])
def test_code_that_no_rule_can_read_is_found(repository: Path, table: StageTable, suffix: str) -> None:
    assert declarations.check_kinds_of_file(repository, table) == []
    plant(repository, table, "bench", "", f"fast{suffix}")
    assert f"fast{suffix}" in messages(declarations.check_kinds_of_file(repository, table))


def test_headers_belong_to_the_implementation_alone(repository: Path, table: StageTable) -> None:
    plant(repository, table, "kernels", "", "support.h")
    assert declarations.check_kinds_of_file(repository, table) == []
    plant(repository, table, "workloads", "", "support.h")
    assert "workloads" in messages(declarations.check_kinds_of_file(repository, table))


@pytest.mark.parametrize("clause", ["OWNS", "MUST NOT", "MAY READ"])
def test_rules_without_a_clause_are_found(repository: Path, table: StageTable, clause: str) -> None:
    path = repository / "packages/tileops-bench/RULES.md"
    path.write_text(path.read_text().replace(clause, "…"))
    assert clause in messages(declarations.check_rules(repository, table))


def test_environment_with_a_forbidden_member_is_found(repository: Path, table: StageTable) -> None:
    path = repository / "pyproject.toml"
    text = path.read_text()
    old = 'value = "packages/tileops-tests", if = ["tests"]'
    assert old in text
    path.write_text(text.replace(old, 'value = "packages/tileops-tests", if = ["tests", "bench"]'))
    assert "matrix.bench" in messages(declarations.check_environments(repository, table))


def test_environment_that_could_take_a_sibling_from_an_index_is_found(
    repository: Path, table: StageTable
) -> None:
    path = repository / "pyproject.toml"
    path.write_text(path.read_text().replace('tileops-kernels = "packages/tileops-kernels"\n', ""))
    assert "tileops-kernels" in messages(declarations.check_environments(repository, table))


def test_only_the_named_environment_may_hold_stages_that_do_not_see_each_other(
    repository: Path, table: StageTable
) -> None:
    path = repository / "pyproject.toml"
    head, mark, rest = path.read_text().partition("[tool.hatch.envs.bench]\n")
    old = '  "packages/tileops-bench",\n'
    assert old in rest
    path.write_text(head + mark + rest.replace(old, old + '  "packages/tileops-tests",\n', 1))
    (finding,) = declarations.check_environments(repository, table)
    assert "bench holds" in finding.message


def test_named_environment_that_holds_no_such_stages_is_found(repository: Path, table: StageTable) -> None:
    """An exception that nothing needs any more is taken back."""
    path = repository / "pyproject.toml"
    head, mark, rest = path.read_text().partition("[tool.hatch.envs.certify]\n")
    path.write_text(head + mark + rest.replace('  "packages/tileops-tests",\n', "", 1))
    (finding,) = declarations.check_environments(repository, table)
    assert "certify holds" in finding.message


class Installed:
    """Stands for an `importlib.metadata.Distribution`."""

    def __init__(
        self,
        name: str,
        folder: Path | None,
        groups: tuple[str, ...] = ("console_scripts",),
        files: tuple[str, ...] = (),
    ) -> None:
        self.metadata = {"Name": name}
        self.entry_points = [type("Entry", (), {"group": group}) for group in groups]
        self.files = files
        self._url = json.dumps({"url": folder.as_uri()}) if folder else None

    def read_text(self, _: str) -> str | None:
        return self._url


def _bench_environment(root: Path) -> list[Installed]:
    names = ("manifest", "workloads", "kernels", "bench")
    return [Installed(f"tileops-{n}", root / f"packages/tileops-{n}") for n in names]


def test_clean_environment_holds(repository: Path, table: StageTable) -> None:
    assert installed.check_installed(repository, table, "bench", lambda: _bench_environment(repository)) == []


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        (lambda root: Installed("tileops-tests", root / "packages/tileops-tests"), "hatch env prune"),
        (lambda root: Installed("tileops-extra", None), "not one of ours"),
        (lambda root: Installed("helper", None, files=("tileops_tests/oracles.py",)), "ships tileops_tests/"),
        (lambda root: Installed("tileops-kernels", None), "an index"),
        (lambda root: Installed("tileops-kernels", root.parent / "elsewhere"), "elsewhere"),
        (
            lambda root: Installed("tileops-kernels", root / "packages/tileops-kernels", ("pytest11",)),
            "pytest11",
        ),
    ],
)
def test_environment_with_a_stranger_is_found(
    repository: Path, table: StageTable, planted, named: str
) -> None:
    distributions = [*_bench_environment(repository), planted(repository)]
    assert named in messages(installed.check_installed(repository, table, "bench", lambda: distributions))


def test_environment_with_torch_in_the_manifest_stage_is_found(repository: Path, table: StageTable) -> None:
    present = [
        Installed("tileops-manifest", repository / "packages/tileops-manifest"),
        Installed("torch", None),
    ]
    assert "torch" in messages(installed.check_installed(repository, table, "manifest", lambda: present))


def test_missing_member_is_found(repository: Path, table: StageTable) -> None:
    present = _bench_environment(repository)[1:]
    found = messages(installed.check_installed(repository, table, "bench", lambda: present))
    assert "tileops-manifest: is not installed" in found


def _wheel(path: Path, table: StageTable, extra: dict[str, str]) -> Path:
    stage = table.stages["kernels"]
    requires = "".join(f"Requires-Dist: {d}\n" for d in sorted(declared(ROOT, stage)))
    files = {
        f"{stage.module}/__init__.py": "",
        f"{stage.module}/py.typed": "",
        "x-0.1.0.dist-info/METADATA": f"Name: x\n{requires}",
        "x-0.1.0.dist-info/licenses/LICENSE": "MIT",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (files | extra).items():
            archive.writestr(name, text)
    return path


def test_clean_wheel_holds(tmp_path: Path, table: StageTable) -> None:
    assert wheels.check_wheel(ROOT, table.stages["kernels"], _wheel(tmp_path / "x.whl", table, {})) == []


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("tileops_tests/sneaky.py", "", "tileops_tests/sneaky.py"),
        ("sneaky.pth", "import os", "sneaky.pth"),
        ("x-0.1.0.dist-info/entry_points.txt", "[console_scripts]\npytest = y:z\n", "installs the commands"),
        ("x-0.1.0.dist-info/entry_points.txt", "[pytest11]\nx = y\n", "pytest11"),
        ("x-0.1.0.dist-info/METADATA", "Name: x\nRequires-Dist: tileops-tests\n", "requires"),
    ],
)
def test_wheel_with_something_foreign_is_found(
    tmp_path: Path, table: StageTable, name: str, text: str, named: str
) -> None:
    wheel = _wheel(tmp_path / "x.whl", table, {name: text})
    assert named in messages(wheels.check_wheel(ROOT, table.stages["kernels"], wheel))


def test_package_that_does_not_build_says_why(repository: Path, tmp_path: Path, table: StageTable) -> None:
    (repository / "packages/tileops-manifest/pyproject.toml").write_text("not toml at all")
    with pytest.raises(wheels.WheelBuildError, match="tileops-manifest"):
        wheels.build_wheels(repository, table, tmp_path / "out")


def test_built_wheels_hold(tmp_path: Path, table: StageTable) -> None:
    for name, wheel in wheels.build_wheels(ROOT, table, tmp_path).items():
        assert messages(wheels.check_wheel(ROOT, table.stages[name], wheel)) == ""


def _unaided(folder: Path, table: StageTable, **kernels: str) -> dict[str, Path]:
    """Wheels of all stages, empty but for what is said of `kernels`."""
    built = {}
    for name, stage in table.stages.items():
        built[name] = folder / name / "x.whl"
        built[name].parent.mkdir()
        extra = {f"{stage.module}/{file}.py": text for file, text in kernels.items()}
        with zipfile.ZipFile(built[name], "w") as archive:
            files = {f"{stage.module}/__init__.py": ""} | (extra if name == "kernels" else {})
            for file, text in files.items():
                archive.writestr(file, text)
    return built


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import tileops_manifest", ""),
        ("import tileops_tests", "tileops_kernels.part does not import: ModuleNotFoundError"),
        ("from tileops_kernels import forgotten", "tileops_kernels.part does not import: ImportError"),
        ("raise SystemExit", "tileops_kernels.part does not import: SystemExit"),
        ("import sys, os; os._exit(3)", "could not be tried (exit status 3)"),
        (
            "import sys; sys.path += [p.replace('kernels', 'bench') for p in sys.path]",
            "finds tileops_bench, which it does not declare",
        ),
    ],
)
def test_wheel_that_does_not_work_alone_is_found(
    tmp_path: Path, table: StageTable, text: str, named: str
) -> None:
    built = _unaided(tmp_path, table, part=text)
    with zipfile.ZipFile(built["bench"]) as archive:
        archive.extractall(built["bench"].parent / "unpacked")
    found = messages(alone.check_alone(ROOT, table, built, table.stages["kernels"], [sys.executable]))
    assert named in found
    assert bool(named) == bool(found)


def test_indirect_import_is_found(repository: Path, table: StageTable) -> None:
    assert layers.check_layers(repository, table) == []
    plant(repository, table, "kernels", "import tileops_bench")
    plant(repository, table, "bench", "import tileops_tests")
    assert "tileops_tests" in messages(layers.check_layers(repository, table))


def _commit(root: Path, message: str) -> str:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "add", "-A"], cwd=root, check=True)
    subprocess.run([*git, "commit", "-qm", message], cwd=root, check=True)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def history(repository: Path) -> tuple[Path, str]:
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    return repository, _commit(repository, "base")


def _judge(table: StageTable, root: Path, base: str) -> str:
    return messages(scope.check_scope(table, scope.changed_paths(root, base, _commit(root, "change"))))


def test_change_of_one_stage_is_allowed(history: tuple[Path, str], table: StageTable) -> None:
    root, base = history
    plant(root, table, "workloads", "a = 1")
    plant(root, table, "tests", "b = 1")  # workloads and tests are one unit
    (root / "docs").mkdir()
    (root / "docs/page.md").write_text("x")
    assert _judge(table, root, base) == ""


@pytest.mark.parametrize("other", ["manifest", "tests", "bench", "workloads"])
def test_change_of_two_stages_is_refused(history: tuple[Path, str], table: StageTable, other: str) -> None:
    root, base = history
    plant(root, table, "kernels", "a = 1")
    plant(root, table, other, "b = 1")
    assert "kernels" in _judge(table, root, base)


def test_stage_change_beside_infrastructure_is_refused(history: tuple[Path, str], table: StageTable) -> None:
    root, base = history
    plant(root, table, "kernels", "a = 1")
    (root / "conftest.py").write_text("")
    assert "infra" in _judge(table, root, base)


def test_move_between_stages_is_refused(history: tuple[Path, str], table: StageTable) -> None:
    root, _ = history
    plant(root, table, "tests", "tolerance = 1")
    base = _commit(root, "planted")
    source = root / "packages/tileops-tests/src/tileops_tests/planted.py"
    source.rename(root / "packages/tileops-kernels/src/tileops_kernels/planted.py")
    assert "one stage a change" in _judge(table, root, base)


def test_symbolic_link_is_refused(history: tuple[Path, str], table: StageTable) -> None:
    root, base = history
    link = root / "packages/tileops-bench/src/tileops_bench/oracles"
    link.symlink_to("../../../tileops-tests/src/tileops_tests")
    assert "symbolic links" in _judge(table, root, base)


def test_file_without_owner_is_found() -> None:
    found = codeowners.check_codeowners(ROOT, ["packages/tileops-manifest/README.md", "stray/file.py"])
    assert [f.place for f in found] == ["stray/file.py"]


def test_folder_in_packages_that_is_no_stage_is_refused(history: tuple[Path, str], table: StageTable) -> None:
    root, base = history
    (root / "packages/tileops-helpers").mkdir()
    (root / "packages/tileops-helpers/oracle.py").write_text("")
    assert "belongs to no stage" in _judge(table, root, base)


@pytest.mark.parametrize("line", ["/packages/x/", "*.py @tileops/maintainers", "!/docs/ @tileops/docs"])
def test_codeowners_line_that_github_would_ignore_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / ".github").mkdir()
    (tmp_path / ".github/CODEOWNERS").write_text(line + "\n")
    assert codeowners.check_codeowners(tmp_path, []) != []


def test_stage_table_of_the_copy_is_the_stage_table(repository: Path, table: StageTable) -> None:
    assert load_table(repository) == table


def test_exemptions_have_reasons_and_are_needed(table: StageTable) -> None:
    for exemption in table.exemptions:
        assert exemption.reason
        without = dataclasses.replace(table, exemptions=tuple(e for e in table.exemptions if e != exemption))
        found = messages(imports.check_imports(ROOT, without))
        assert exemption.path in found
        assert exemption.module in found
