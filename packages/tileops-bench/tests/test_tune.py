"""Tuning: which configs are tried, that nothing stays changed, and that only a clear winner is taken."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from bench_builders import samples_around

from tileops_bench.cli import main
from tileops_bench.configs import candidates, default_choice, replaced_choice
from tileops_bench.errors import UsageError
from tileops_bench.plan import PlannedRow
from tileops_bench.protocol import ConfigTimes
from tileops_bench.stats import Verdict
from tileops_bench.tune import choose

ROW = PlannedRow("Op/row", "Op", "row", {"T": "float32"}, None, "e")


@dataclass(frozen=True)
class Config:
    block: int


class Base:
    CONFIGS = SimpleNamespace(
        devices={"cpu": ((None, Config(8)),), "sm_80": ((16, Config(16)), (None, Config(8)))}
    )

    @classmethod
    def default_config(cls, **sizes):
        return Config(8)


class Inheriting(Base):
    pass


class Own(Base):
    @classmethod
    def default_config(cls, **sizes):
        return Config(sizes["rows"])


def test_the_default_comes_first_then_the_table_then_neighbours_without_repeats():
    assert candidates(Base, Config(8), 99) == [Config(8), Config(16), Config(4), Config(32)]
    assert candidates(Base, Config(2), 2) == [Config(2), Config(8)]


def fail_inside(kernel):
    with replaced_choice(kernel, lambda **sizes: Config(99)):
        assert kernel.default_config(rows=5) == Config(99)
        raise RuntimeError("does not compile")


@pytest.mark.parametrize("kernel", [Inheriting, Own])
def test_a_replaced_choice_ends_with_its_context_even_when_that_raises(kernel):
    before = kernel.default_config(rows=5)
    with pytest.raises(RuntimeError, match="does not compile"):
        fail_inside(kernel)
    assert kernel.default_config(rows=5) == before
    assert ("default_config" in vars(kernel)) is (kernel is Own)


def test_the_default_is_what_the_kernel_chooses_while_it_prepares():
    assert default_choice(Own, lambda: Own.default_config(rows=7)) == Config(7)
    assert default_choice(Own, lambda: None) is None


def times(*medians: float, errors: tuple[str, ...] = ()) -> ConfigTimes:
    return ConfigTimes(
        configs=tuple({"block": 2**i} for i in range(len(medians))),
        samples=tuple(samples_around(m) if m else () for m in medians),
        errors=errors or ("",) * len(medians),
    )


def test_a_clearly_faster_config_is_taken():
    best = choose(ROW, times(1000, 700, 900))
    assert best.config == {"block": 2}
    assert best.verdict is Verdict.FAST
    assert best.speedup == pytest.approx(1000 / 700, rel=0.01)


def test_the_default_stays_where_nothing_is_clearly_faster():
    best = choose(ROW, times(1000, 999, 1001))
    assert best.config == best.default == {"block": 1}
    assert best.speedup == 1.0


def test_a_config_that_fails_is_named_and_never_taken():
    best = choose(ROW, times(1000, 0, 10, errors=("", "does not compile", "wrote to x")))
    assert best.config == {"block": 1}
    assert best.failed == {"{'block': 2}": "does not compile", "{'block': 4}": "wrote to x"}


def test_a_default_that_cannot_be_timed_is_an_error():
    with pytest.raises(UsageError, match="does not compile"):
        choose(ROW, times(0, 500, errors=("does not compile", "")))


def test_tuning_a_real_row_writes_a_file_that_names_device_and_configs(tmp_path):
    out = tmp_path / "tuning.json"
    arguments = ("--target", "cpu", "--rows", "llama-8b-decode", "--dtypes", "bfloat16", "--limit", "2")
    assert main(["tune", "RMSNormFwdOp", *arguments, "--row-budget", "0.05", "--out", str(out)]) == 0
    tuning = json.loads(out.read_text())
    assert tuning["schema"] == "tileops-tuning/1"
    assert tuning["kernel"] == "RMSNormKernel"
    assert tuning["rows"][0]["tried"] == 2
    assert set(tuning["rows"][0]["config"]) == set(tuning["rows"][0]["default"])


def test_tuning_with_a_kernel_that_does_not_exist_is_exit_2(tmp_path, capsys):
    out = tmp_path / "tuning.json"
    arguments = ("--target", "cpu", "--rows", "llama-8b-decode", "--kernel", "NoSuchKernel")
    assert main(["tune", "RMSNormFwdOp", *arguments, "--out", str(out)]) != 0
    assert "NoSuchKernel" in capsys.readouterr().err
