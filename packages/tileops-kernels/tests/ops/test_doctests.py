"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from tileops_kernels import errors, ops
from tileops_kernels.kernels import base
from tileops_kernels.ops import flows

MODULES = [
    errors.__name__,
    base.__name__,
    ops.__name__,
    *(module.name for module in pkgutil.iter_modules(ops.__path__, f"{ops.__name__}.")),
    *(module.name for module in pkgutil.iter_modules(flows.__path__, f"{flows.__name__}.")),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name):
    assert doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [t for name in MODULES for t in finder.find(importlib.import_module(name)) if t.examples]
    assert len(examples) >= 10
