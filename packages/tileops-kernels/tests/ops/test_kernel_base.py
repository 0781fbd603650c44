"""The kernel base class: config tables, cache keys, and one compilation per key however many threads ask."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from tileops_kernels import targets
from tileops_kernels.errors import ConfigError, DeviceError
from tileops_kernels.kernels import get_kernel, list_kernels
from tileops_kernels.kernels.base import ConfigTable, Kernel, arch_of, freeze, target_of
from tileops_kernels.kernels.together import compiled_together

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Config:
    block: int
    threads: int = 128
    swizzle: bool = False


@pytest.fixture
def kernel(monkeypatch):
    """A kernel class whose compilations are recorded and take a moment."""

    class Recorded(Kernel):
        SUPPORTED_DTYPES = frozenset({"float32"})
        Config = Config
        CONFIGS = ConfigTable(
            size=lambda sizes: sizes["hidden"],
            devices={
                "cpu": ((None, Config(1)),),
                "sm_80": ((1024, Config(2)), (None, Config(4))),
                "sm_90a": ((None, Config(8)),),
            },
        )
        compiled_with: list = []  # noqa: RUF012

        @staticmethod
        def program(*, hidden, config):
            return (hidden, config)

    def compile_program(program, target, **options):
        time.sleep(0.01)
        Recorded.compiled_with.append((program, target, options))
        return object()

    monkeypatch.setattr(targets, "compile_program", compile_program)
    return Recorded


def test_one_compilation_per_key(kernel):
    first = kernel.compiled(CPU, hidden=64)
    assert kernel.compiled(CPU, hidden=64) is first
    assert kernel.compiled(CPU, Config(1), hidden=64) is first
    assert kernel.compiled(CPU, hidden=65) is not first
    assert [program for program, _, _ in kernel.compiled_with] == [(64, Config(1)), (65, Config(1))]


def test_a_kernel_of_one_architecture_compiles_nowhere_else(kernel, monkeypatch):
    monkeypatch.setattr(kernel, "ARCHS", frozenset({"sm_90a"}))
    assert not kernel.serves_device(CPU)
    assert [kernel.serves("cuda", arch) for arch in ("sm_80", "sm_90a")] == [False, True]
    with pytest.raises(ConfigError, match="Recorded: target is cpu, expected sm_90a"):
        kernel.compiled(CPU, hidden=64)
    with pytest.raises(ConfigError, match="Recorded: target is sm_80, expected sm_90a"):
        kernel.lower("sm_80", hidden=64)
    assert kernel.compiled_with == []


def test_threads_share_one_compilation(kernel):
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(kernel.compiled(CPU, hidden=7))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert len(set(map(id, results))) == 1
    assert len(kernel.compiled_with) == 1


def test_threads_trace_one_at_a_time_and_compile_side_by_side(kernel, monkeypatch):
    tracing, most = [], []
    together = threading.Barrier(8)

    def program(*, hidden, config):
        tracing.append(hidden)
        time.sleep(0.002)
        most.append(len(tracing))
        tracing.remove(hidden)

    def compile_program(program, *target, **options):
        together.wait(timeout=10)  # all threads are here at once, or the barrier breaks
        return object()

    monkeypatch.setattr(kernel, "program", staticmethod(program))
    monkeypatch.setattr(targets, "compile_program", compile_program)
    monkeypatch.setattr(targets, "lower_cuda", compile_program)
    with ThreadPoolExecutor(8) as pool:
        compiled = [pool.submit(kernel.compiled, CPU, hidden=hidden) for hidden in range(4)]
        lowered = [pool.submit(kernel.lower, "sm_90a", hidden=hidden) for hidden in range(4, 8)]
        assert len({id(future.result()) for future in [*compiled, *lowered]}) == 8
    assert most == [1] * 8


def test_threads_compile_different_kernels_at_once():
    kernels = [get_kernel(name) for name in list_kernels()]

    def traced(kernel):
        sample = kernel.samples()[0]
        config = kernel.default_config(target="cuda", arch="sm_90a", **sample)
        return kernel._trace(config, sample).script()

    chosen = [kernel for kernel in kernels if kernel.serves("cuda", "sm_90a")][::12]
    alone = [traced(kernel) for kernel in chosen]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(traced, chosen * 2)) == alone * 2


def test_programs_of_one_op_compile_side_by_side(kernel, monkeypatch):
    together = threading.Barrier(3)

    def compile_program(program, *target, **options):
        together.wait(timeout=10)  # all three are here at once, or the barrier breaks
        return SimpleNamespace(bound=lambda *example: lambda: program)

    monkeypatch.setattr(targets, "compile_program", compile_program)
    calls = []

    def prepare():
        launches = [kernel.compiled(CPU, hidden=hidden).bound(None) for hidden in (1, 2, 3, 1)]
        calls.append([launch() for launch in launches])
        return calls[-1]

    programs = [(1, Config(1)), (2, Config(1)), (3, Config(1)), (1, Config(1))]
    assert compiled_together(prepare) == programs
    assert calls == [[None] * 4, programs]  # placeholders launch nothing
    assert compiled_together(prepare) == programs
    assert len(calls) == 3  # nothing was missing


def test_an_error_of_a_compiler_is_raised_where_the_program_is_asked_for(kernel, monkeypatch):
    def compile_program(program, *target, **options):
        if program[0] == 2:
            raise RuntimeError("refused")
        return object()

    monkeypatch.setattr(targets, "compile_program", compile_program)
    with pytest.raises(RuntimeError, match="refused"):
        compiled_together(lambda: [kernel.compiled(CPU, hidden=hidden) for hidden in (1, 2)])
    assert kernel.compiled(CPU, hidden=1) is kernel.compiled(CPU, hidden=1)
    with pytest.raises(ZeroDivisionError):
        compiled_together(lambda: [kernel.compiled(CPU, hidden=3), 1 // 0])
    assert kernel.compiled(CPU, hidden=4) is not None  # outside of it nothing is put off
    assert kernel.programs() == 2


def test_a_failed_compilation_is_tried_again(kernel, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError("no compiler")

    with monkeypatch.context() as patch:
        patch.setattr(targets, "compile_program", fail)
        with pytest.raises(RuntimeError, match="no compiler"):
            kernel.compiled(CPU, hidden=3)
    assert kernel.compiled(CPU, hidden=3) is not None


def test_clear_forgets(kernel):
    first = kernel.compiled(CPU, hidden=64)
    kernel.clear()
    assert kernel.compiled(CPU, hidden=64) is not first


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Config)])
def test_every_field_of_a_config_is_part_of_the_key(kernel, field):
    base = Config(1)
    other = dataclasses.replace(base, **{field: not base.swizzle if field == "swizzle" else 64})
    static = {"hidden": 1}
    assert kernel.cache_key("cpu", None, base, static) != kernel.cache_key("cpu", None, other, static)


def test_target_architecture_and_static_arguments_are_part_of_the_key(kernel):
    keys = [
        kernel.cache_key("cpu", None, Config(1), {"hidden": 1}),
        kernel.cache_key("cuda", "sm_80", Config(1), {"hidden": 1}),
        kernel.cache_key("cuda", "sm_90a", Config(1), {"hidden": 1}),
        kernel.cache_key("cpu", None, Config(1), {"hidden": True}),
        kernel.cache_key("cpu", None, Config(1), {"width": 1}),
    ]
    assert len(set(keys)) == len(keys)


def test_freeze_refuses_what_cannot_be_a_key():
    assert freeze({"b": 1, "a": 2}) == freeze({"a": 2, "b": 1})
    with pytest.raises(ConfigError, match="must be hashable, got set"):
        freeze({1, 2})


def test_config_of_another_kernel_is_refused(kernel):
    @dataclass(frozen=True)
    class Other:
        block: int

    with pytest.raises(ConfigError, match="Recorded: config is Other, expected Config"):
        kernel.compiled(CPU, Other(1), hidden=1)


def test_config_must_be_frozen():
    @dataclass
    class Mutable:
        block: int

    with pytest.raises(ConfigError, match="must be a frozen dataclass"):
        type("Loose", (Kernel,), {"Config": Mutable})


@pytest.mark.parametrize(
    ("arch", "hidden", "block"),
    [
        ("sm_80", 1024, 2),
        ("sm_80", 1025, 4),
        ("sm_89", 1, 2),
        ("sm_90a", 1, 8),
        ("sm_120a", 1, 8),
        ("sm_75", 9999, 4),
    ],
)
def test_nearest_architecture_gives_the_config(kernel, arch, hidden, block):
    assert kernel.default_config(target="cuda", arch=arch, hidden=hidden).block == block


def test_a_table_for_some_architectures_has_nothing_for_the_cpu():
    table = ConfigTable(lambda sizes: 1, {"sm_90a": ((None, 1),)}, everywhere=False)
    assert table.pick("cuda", "sm_90a", {}) == 1
    with pytest.raises(ConfigError, match=r"no config for the CPU, expected one of \['sm_90a'\]"):
        table.pick("cpu", None, {})


def test_cuda_config_needs_an_architecture(kernel):
    with pytest.raises(ConfigError, match="needs an architecture"):
        kernel.default_config(target="cuda", arch=None, hidden=1)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ({"sm_80": ((None, 1),)}, "needs a 'cpu' row"),
        ({"cpu": ((None, 1),)}, "at least one CUDA architecture"),
        ({"cpu": ((4, 1),), "sm_80": ((None, 1),)}, "end with None"),
        ({"cpu": ((4, 1), (2, 1), (None, 1)), "sm_80": ((None, 1),)}, "must rise"),
        ({"cpu": (), "sm_80": ((None, 1),)}, "end with None"),
    ],
)
def test_malformed_tables_are_refused(devices, message):
    with pytest.raises(ConfigError, match=message):
        ConfigTable(lambda sizes: 0, devices)


def test_device_without_a_target_is_refused(kernel):
    with pytest.raises(DeviceError, match="Recorded: device is 'meta', expected 'cpu' or 'cuda'"):
        kernel.compiled(torch.device("meta"), hidden=1)
    assert target_of(CPU) == "cpu"
    assert arch_of(CPU) is None


def test_unknown_kernel_lists_the_known():
    with pytest.raises(ConfigError, match="no kernel is named 'NoSuchKernel'"):
        get_kernel("NoSuchKernel")


@pytest.mark.parametrize("name", list_kernels())
def test_kernel_class_fulfils_the_protocol(name):
    kernel = get_kernel(name)
    assert kernel.SUPPORTED_DTYPES
    assert kernel.ALIGNMENT >= 1
    assert kernel.samples()
    targets = (("cpu", None), ("cuda", "sm_80"), ("cuda", "sm_90a"))
    for static in kernel.samples():
        for target, arch in (served for served in targets if kernel.serves(*served)):
            assert isinstance(kernel.default_config(target=target, arch=arch, **static), kernel.Config)
