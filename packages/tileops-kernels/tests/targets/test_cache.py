"""The on-disk cache: keyed by content, whole or absent, safe for many writers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from tileops_kernels.memo import Memo
from tileops_kernels.targets import CacheError, CompilationError, cache, compile_program
from tileops_kernels.targets.cpu import target as cpu_target


def entries(directory: Path) -> list[str]:
    return sorted(p.name for p in directory.glob("cpu/*"))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_target, "_programs", Memo())


def launch(program) -> None:
    program(torch.zeros(5, 32), torch.zeros(5, 32), 1.0)


@pytest.fixture
def count_builds(monkeypatch) -> list[str]:
    """Names of the files that the compiler was asked for."""
    built: list[str] = []
    build = cpu_target.build

    def counting(compiler, source, output):
        built.append(output.name)
        build(compiler, source, output)

    monkeypatch.setattr(cpu_target, "build", counting)
    return built


def test_a_program_is_compiled_once_and_then_loaded(programs, private_cache, count_builds, monkeypatch):
    first = compile_program(programs.scaled(), "cpu")
    assert compile_program(programs.scaled(), "cpu") is first, "the process forgot what it has compiled"
    forget(monkeypatch)
    launch(compile_program(programs.scaled(), "cpu"))
    assert count_builds == ["program.so"]
    assert entries(private_cache) == [first.key]


def test_what_changes_the_code_changes_the_key(programs, private_cache):
    variants = [
        compile_program(programs.scaled(), "cpu"),
        compile_program(programs.scaled(factor=3.0), "cpu"),
        compile_program(programs.scaled(dtype="bfloat16"), "cpu"),
        compile_program(programs.scaled(), "cpu", parallel=False),
        compile_program(programs.scaled(), "cpu", poison=True),
        compile_program(programs.scaled(), "cpu", reverse_parallel=True),
    ]
    assert len({v.key for v in variants}) == len(variants)


@pytest.mark.parametrize("what", ["instruction_set", "_fingerprint"])
def test_another_machine_or_another_rewrite_is_another_entry(programs, private_cache, monkeypatch, what):
    here = compile_program(programs.scaled(), "cpu").key
    monkeypatch.setattr(cpu_target, what, lambda: "another")
    assert compile_program(programs.scaled(), "cpu").key != here


def test_the_directory_is_read_at_each_call(programs, private_cache, monkeypatch, tmp_path):
    compile_program(programs.scaled(), "cpu")
    forget(monkeypatch)
    monkeypatch.setenv("TILEOPS_CACHE_DIR", str(tmp_path / "elsewhere"))
    compile_program(programs.scaled(), "cpu")
    assert entries(tmp_path / "elsewhere") == entries(private_cache) != []


@pytest.mark.parametrize("file", ["program.so", "program.cpp", "meta.json"])
@pytest.mark.parametrize("damage", ["truncate", "alter", "remove"])
def test_a_damaged_entry_is_built_again(programs, private_cache, count_builds, monkeypatch, file, damage):
    program = compile_program(programs.scaled(), "cpu")
    path = private_cache / "cpu" / program.key / file
    content = path.read_bytes()
    path.unlink()  # a new inode: the loaded library stays as it is
    if damage != "remove":
        path.write_bytes(content[: len(content) // 2] if damage == "truncate" else b"{}" + content[2:])
    forget(monkeypatch)
    launch(compile_program(programs.scaled(), "cpu"))
    assert len(count_builds) == 2
    assert cache.load("cpu", program.key) is not None


def test_a_whole_library_that_does_not_load_says_how_to_make_it_again(
    programs, private_cache, monkeypatch, tmp_path
):
    program = compile_program(programs.scaled(), "cpu")
    monkeypatch.setenv("TILEOPS_CACHE_DIR", str(tmp_path / "copied"))  # a path that the loader has not seen
    folder = tmp_path / "copied" / "cpu" / program.key
    shutil.copytree(private_cache / "cpu" / program.key, folder)
    (folder / "program.so").write_bytes(b"made for another machine")
    meta = json.loads((folder / "meta.json").read_text())
    meta["files"]["program.so"] = hashlib.sha256(b"made for another machine").hexdigest()
    (folder / "meta.json").write_text(json.dumps(meta))
    forget(monkeypatch)
    with pytest.raises(CompilationError, match=r"does not load: .*`tileops-kernels cache clear`"):
        compile_program(programs.scaled(), "cpu")


def test_without_a_home_the_variable_to_set_is_named(monkeypatch):
    monkeypatch.delenv("TILEOPS_CACHE_DIR", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)  # nobody in the password database
    with pytest.raises(CacheError, match=r"no home directory .*TILEOPS_CACHE_DIR"):
        cache.root()


def test_nothing_is_left_beside_the_entry(programs, private_cache, monkeypatch, tmp_path):
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("TMPDIR", str(temporary))
    program = compile_program(programs.scaled(), "cpu")
    launch(program)
    assert list(here.iterdir()) == list(temporary.iterdir()) == []
    assert entries(private_cache) == [program.key]


def test_a_directory_that_cannot_be_written_is_named(programs, private_cache, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("not a directory")
    monkeypatch.setenv("TILEOPS_CACHE_DIR", str(file / "below"))
    with pytest.raises(CacheError, match=r"file/below/cpu cannot be used .*TILEOPS_CACHE_DIR"):
        compile_program(programs.scaled(), "cpu")


def test_threads_that_want_one_program_compile_it_once(programs, private_cache, count_builds):
    func = programs.scaled()
    with ThreadPoolExecutor(4) as pool:
        compiled = list(pool.map(lambda _: compile_program(func, "cpu"), range(8)))
    assert len(set(map(id, compiled))) == 1
    assert len(count_builds) == 1


CHILD = """
import importlib.util, sys, torch
spec = importlib.util.spec_from_file_location("shared", sys.argv[1])
shared = importlib.util.module_from_spec(spec)
spec.loader.exec_module(shared)
from tileops_kernels.targets import compile_program
program = compile_program(shared.scaled(), "cpu")
program(torch.zeros(5, 32), torch.zeros(5, 32), 1.0)
print(program.key)
"""


def test_processes_that_want_one_program_get_one_entry(private_cache):
    command = [sys.executable, "-c", CHILD, str(Path(__file__).with_name("conftest.py"))]
    environment = {**os.environ, "TILEOPS_CACHE_DIR": str(private_cache), "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    keys = {child.communicate(timeout=300)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(keys) == 1
    assert entries(private_cache) == sorted(keys)


def test_publishing_over_an_entry_of_another_writer_keeps_that_one(private_cache):
    def write(text):
        def build(work):
            (work / "content").write_text(text)
            return {}

        return build

    cache.publish("cpu", "k", write("first"))
    assert cache.publish("cpu", "k", write("second")).file("content").read_text() == "first"


def test_a_build_that_fails_leaves_no_trace(private_cache):
    def build(work):
        (work / "half").write_text("written")
        raise KeyError("stopped")

    with pytest.raises(KeyError):
        cache.publish("cpu", "k", build)
    assert entries(private_cache) == []


def test_clear_removes_what_is_ours_and_nothing_else(programs, private_cache):
    compile_program(programs.scaled(), "cpu")
    stranger = private_cache / "thesis.txt"
    stranger.write_text("do not remove")
    assert len(cache.entries()) == 1
    assert cache.clear() > 0
    assert cache.entries() == ()
    assert [p.name for p in private_cache.iterdir()] == [stranger.name]


def test_a_cleared_program_keeps_running(programs, private_cache):
    program = compile_program(programs.scaled(), "cpu")
    cache.clear()
    launch(program)
