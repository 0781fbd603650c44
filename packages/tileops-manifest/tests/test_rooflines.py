"""Rooflines by their numbers: no formula changes without the figures that are kept of it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tileops_manifest import load_manifest

KEPT_ROOFLINES = Path(__file__).with_name("kept_rooflines.py")
MANIFEST = load_manifest()


def kept_rooflines():
    spec = importlib.util.spec_from_file_location("kept_rooflines", KEPT_ROOFLINES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = kept_rooflines()
KEPT = json.loads(TOOL.KEPT.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(KEPT.keys() & MANIFEST.entries.keys()))
def test_operations_and_bytes_are_those_that_are_kept(name):
    assert TOOL.figures(MANIFEST[name]) == KEPT[name], f"run {KEPT_ROOFLINES.name} and read what changed"


def test_figures_are_kept_of_nearly_every_entry():
    """An entry may come before its figures, for as long as most have some."""
    assert len(KEPT.keys() & MANIFEST.entries.keys()) > 0.8 * len(MANIFEST.entries)
