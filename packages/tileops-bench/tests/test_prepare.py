"""Compiling ahead, in real processes: each row is called once, and what goes wrong stops no other."""

from __future__ import annotations

import pytest

from tileops_bench.plan import plan
from tileops_bench.prepare import prepare
from tileops_bench.rowrunner import RunSettings
from tileops_manifest import load_manifest

CRASH = """
import os

def run(x):
    os.abort()
"""
RAISE = """
def run(x):
    raise ValueError("not today")
"""
COUNT = """
import os, pathlib

def run(x):
    with open(pathlib.Path(__file__).with_suffix(".calls"), "a") as calls:
        calls.write(f"{os.getpid()}\\n")
    return x
"""


def prepared(ref: str, jobs: int = 2) -> dict[str, str]:
    """What was heard of each row."""
    rows = plan(load_manifest(), ["ExpFwdOp"], "cpu", ref, [], ["float32"], "cpu")
    settings = RunSettings(
        target="cpu", timer="perf_counter", candidate=ref, candidate_digest="d", cpus=(), scrub_bytes=0,
        only_baselines=frozenset({"torch-eager"}),
    )  # fmt: skip
    heard = {}
    prepare(rows, settings, jobs, lambda row, trouble: heard.__setitem__(row.id, trouble))
    assert set(heard) == {row.id for row in rows}
    return heard


def test_every_row_is_called_once_and_the_rows_are_shared_out(candidate_file):
    ref = candidate_file(COUNT)
    heard = prepared(ref)
    with open(ref.partition(".py")[0] + ".calls") as calls:
        assert len(calls.read().split()) == len(heard)
    assert set(heard.values()) == {""}


@pytest.mark.parametrize(("source", "words"), [(RAISE, "ValueError: not today"), (CRASH, "signal SIGABRT")])
def test_a_contender_that_fails_is_named_and_stops_no_other_row(candidate_file, source, words):
    heard = prepared(candidate_file(source), jobs=1)
    assert all(words in trouble for trouble in heard.values())
