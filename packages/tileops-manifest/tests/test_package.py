"""What the package may import, and that its examples are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import tileops_manifest

BANNED = {"torch", "tilelang", "numpy", *(f"tileops_{s}" for s in ("workloads", "kernels", "tests", "bench"))}
MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(tileops_manifest.__path__, "tileops_manifest.")
    if not name.endswith("__main__")
]


def test_torch_and_tilelang_are_never_imported():
    code = (
        "import sys\n"
        f"for name in {MODULES!r}: __import__(name)\n"
        "import tileops_manifest as m\n"
        "manifest = m.load_manifest()\n"
        "assert all(case.bind().flops for entry in manifest.values() for case in entry.cases())\n"
        f"banned = {BANNED!r}\n"
        "print(sorted(banned & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_importing_the_package_does_not_import_rich():
    code = "import sys, tileops_manifest.cli; print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", ["tileops_manifest", *MODULES])
def test_examples_in_docstrings_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_public_names_exist():
    assert all(hasattr(tileops_manifest, name) for name in tileops_manifest.__all__)
