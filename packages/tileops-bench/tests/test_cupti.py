"""The CUPTI timer against a fake CUPTI: every kernel belongs to its call, or the row says why not."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace

import pytest
import torch

from tileops_bench import measure as measure_module
from tileops_bench.contenders import candidate_record
from tileops_bench.errors import TimerUnavailableError
from tileops_bench.protocol import RawContender
from tileops_bench.provenance import foreign
from tileops_bench.records import Code, Status
from tileops_bench.timers import device, make_timer
from tileops_bench.timers.attribution import FIRST_TOKEN_ID, PREPARE_ID, Activity, attribute
from tileops_bench.timers.cupti import CuptiTimer
from tileops_bench.timers.events import EventTimer


class ActivityKind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    EXTERNAL_CORRELATION = 39


class ExternalCorrelationKind(IntEnum):
    CUSTOM0 = 3
    CUSTOM2 = 5


class FakeCupti:
    """Records what a device would: one activity per launch, linked to the top of the launching thread's
    stack."""

    ActivityKind = ActivityKind
    ExternalCorrelationKind = ExternalCorrelationKind

    def __init__(self):
        self.enabled, self.stack, self.records = set(), [], []
        self.correlation, self.dropped, self.now = 0, 0, 0

    def activity_register_callbacks(self, request, completed):
        assert request() == (8 << 20, 0)
        self.completed = completed

    def activity_enable(self, kind):
        self.enabled.add(kind)

    def activity_disable(self, kind):
        self.enabled.discard(kind)

    def activity_push_external_correlation_id(self, kind, external_id):
        self.stack.append((kind, external_id))

    def activity_pop_external_correlation_id(self, kind):
        return self.stack.pop()[1]

    def activity_get_num_dropped_records(self, context, stream, pointer):
        ctypes.c_size_t.from_address(pointer).value = self.dropped

    def activity_flush_all(self, flag):
        assert flag == 1
        self.completed(self.records)
        self.records = []

    def launch(self, duration, kind=ActivityKind.CONCURRENT_KERNEL, thread="main", name="kernel", gap=0):
        """One launch; another thread has no external ids of its own."""
        if kind not in self.enabled:
            return
        self.correlation += 1
        self.now += gap
        link = self.stack[-1] if thread == "main" and self.stack else None
        if (
            link
            and ActivityKind.EXTERNAL_CORRELATION in self.enabled
            and ActivityKind.RUNTIME in self.enabled
        ):
            self.records.append(
                SimpleNamespace(
                    kind=ActivityKind.EXTERNAL_CORRELATION, external_kind=link[0], external_id=link[1],
                    correlation_id=self.correlation,
                )
            )  # fmt: skip
        self.records.append(
            SimpleNamespace(
                kind=kind, start=self.now, end=self.now + duration, correlation_id=self.correlation, name=name
            )
        )
        self.now += duration


class FakeDevice:
    def __init__(self, cupti):
        self.cupti, self.drained = cupti, 0

    def make_cold(self):
        self.cupti.launch(5_000, ActivityKind.MEMSET, name="flush")

    def drain(self):
        self.drained += 1


@pytest.fixture
def cupti():
    return FakeCupti()


def measure(cupti, *calls):
    timer = CuptiTimer(cupti, FakeDevice(cupti))
    timer.start()
    for token, call in enumerate(calls):
        timer.prepare()
        timer.time(token, call)
    return timer.finish()


def test_each_kernel_is_counted_for_its_own_call(cupti):
    timings = measure(cupti, lambda: cupti.launch(100), lambda: cupti.launch(250))
    assert {t: m.ns for t, m in timings.calls.items()} == {0: 100, 1: 250}
    assert timings.problems == ()


def test_the_flush_is_not_counted_and_not_a_stray(cupti):
    timings = measure(cupti, lambda: cupti.launch(100))
    assert timings.calls[0].kernels == 1
    assert timings.problems == ()


def test_gaps_between_kernels_count_in_the_span_only(cupti):
    def two():
        cupti.launch(100)
        cupti.launch(50, gap=900)

    timings = measure(cupti, two)
    assert (timings.calls[0].ns, timings.calls[0].span_ns, timings.calls[0].kernels) == (150, 1050, 2)


def test_copies_and_fills_are_work_too(cupti):
    def copy():
        cupti.launch(70, ActivityKind.MEMCPY)
        cupti.launch(30, ActivityKind.MEMSET)

    assert measure(cupti, copy).calls[0].ns == 100


def test_a_kernel_on_another_stream_is_counted_for_the_call_that_launched_it(cupti):
    timings = measure(cupti, lambda: (cupti.launch(100, name="main"), cupti.launch(900, name="side_stream")))
    assert timings.calls[0].ns == 1000
    assert timings.calls[0].names == {"main", "side_stream"}


@pytest.mark.parametrize(
    ("names", "library"),
    [
        (["nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT"], "cuBLAS"),
        (["void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>"], "cuBLAS"),
        (["void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false>"], "PyTorch"),
        (["void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16>"], "PyTorch"),
        (["_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIfffLi4EEEE"], "PyTorch"),
        (["pytorch_flash::flash_fwd_kernel"], "FlashAttention"),
        (["triton_red_fused_0"], "Triton"),
        (["rms_norm_kernel", "softmax_rows_kernel", "gemm_kernel"], None),
        (["void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"], None),
        (["void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"], None),
    ],
)  # fmt: skip
def test_a_librarys_kernels_are_told_from_tile_programs(names, library):
    assert [found for found, _ in foreign(names)] == ([library] if library else [])


def test_an_op_whose_timed_calls_run_a_librarys_kernels_is_foreign_kernels():
    raw = RawContender(
        name="candidate", status=Status.OK, samples=(5, 5, 5), kernel_names=("nvjet_x", "mine_kernel")
    )
    own = candidate_record(raw, "tileops", "digest", deterministic=True)
    assert [p.code for p in own.problems] == [Code.FOREIGN_KERNELS]
    assert candidate_record(raw, "mine.py:run", "digest", deterministic=True).problems == ()


class FakeEvent:
    def __init__(self, enable_timing):
        self.at = None

    def record(self):
        FakeEvent.now += 1
        self.at = FakeEvent.now

    def elapsed_time(self, other):
        return float(other.at - self.at)


def test_events_are_read_by_the_methods_that_stood_before_the_candidate(monkeypatch, cupti):
    FakeEvent.now = 0
    timer = EventTimer(FakeDevice(cupti), FakeEvent)
    timer.start()

    def patching():
        monkeypatch.setattr(FakeEvent, "elapsed_time", lambda self, other: 1e-9)
        monkeypatch.setattr(FakeEvent, "record", lambda self: None)

    timer.time(0, patching)
    assert timer.finish().calls[0].ns == 1_000_000


def test_the_device_is_drained_by_the_function_that_stood_before_the_candidate(monkeypatch):
    before = device._synchronize
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert device._synchronize is measure_module.synchronize_device is before


def test_persisting_lines_are_reset_before_every_timed_call(cupti):
    order = []
    runtime = SimpleNamespace(
        cudaLimit=SimpleNamespace(cudaLimitPersistingL2CacheSize="persisting"),
        cudaDeviceSetLimit=lambda limit, size: order.append((limit, size)) or (0,),
        cudaCtxResetPersistingL2Cache=lambda: order.append("reset") or (0,),
    )
    cold = object.__new__(device.CudaDevice)
    cold._runtime, cold._flush = runtime, SimpleNamespace(zero_=lambda: order.append("flush"))
    cold.make_cold()
    assert order == [("persisting", 0), "reset", "flush"]


def test_overlapping_kernels_count_once():
    activities = [Activity(1, 0, 100, "a"), Activity(2, 40, 120, "b"), Activity(3, 50, 60, "c")]
    external = {1: FIRST_TOKEN_ID, 2: FIRST_TOKEN_ID, 3: FIRST_TOKEN_ID}
    assert attribute(activities, external, [0]).calls[0].ns == 120


def test_a_call_that_runs_nothing_on_the_device_is_no_kernels_seen(cupti):
    timings = measure(cupti, lambda: cupti.launch(100), lambda: None)
    assert [(token, p.code) for token, p in timings.problems] == [(1, Code.NO_KERNELS_SEEN)]
    assert 1 not in timings.calls


def test_a_kernel_from_another_thread_is_unattributed(cupti):
    timings = measure(cupti, lambda: cupti.launch(100, thread="helper", name="sneaky_kernel"))
    codes = {p.code for _, p in timings.problems}
    assert codes == {Code.NO_KERNELS_SEEN, Code.UNATTRIBUTED_RECORDS}
    assert any("sneaky_kernel" in p.detail for _, p in timings.problems)


def test_a_kernel_between_the_timed_calls_is_not_credited_to_any(cupti):
    timer = CuptiTimer(cupti, FakeDevice(cupti))
    timer.start()
    timer.time(0, lambda: cupti.launch(100))
    cupti.launch(9_999)  # a snapshot by the measuring thread
    timings = timer.finish()
    assert timings.calls[0].ns == 100
    assert timings.problems == ()


def test_dropped_records_are_lost_records(cupti):
    cupti.dropped = 3
    timings = measure(cupti, lambda: cupti.launch(100))
    assert [p.code for _, p in timings.problems] == [Code.LOST_RECORDS]


def test_records_without_their_link_are_unattributed():
    timings = attribute([Activity(7, 0, 10, "orphan")], {}, [0])
    assert {p.code for _, p in timings.problems} == {Code.NO_KERNELS_SEEN, Code.UNATTRIBUTED_RECORDS}


def test_links_of_another_kind_are_ignored(cupti):
    """The framework's profiler pushes ids of its own kind; they must not be taken for ours."""

    def call():
        cupti.activity_push_external_correlation_id(ExternalCorrelationKind.CUSTOM0, FIRST_TOKEN_ID + 1)
        cupti.launch(40)
        cupti.activity_pop_external_correlation_id(ExternalCorrelationKind.CUSTOM0)

    timings = measure(cupti, call)
    assert {p.code for _, p in timings.problems} == {Code.NO_KERNELS_SEEN, Code.UNATTRIBUTED_RECORDS}


def test_an_exception_in_a_call_leaves_the_stack_as_it_was(cupti):
    def broken():
        raise RuntimeError("boom")

    timer = CuptiTimer(cupti, FakeDevice(cupti))
    timer.start()
    with pytest.raises(RuntimeError, match="boom"):
        timer.time(0, broken)
    assert [external_id for _, external_id in cupti.stack] == [PREPARE_ID]


def test_tracing_is_off_outside_of_a_session(cupti):
    measure(cupti, lambda: cupti.launch(1))
    assert cupti.enabled == set()
    assert cupti.stack == []


@pytest.mark.parametrize(("name", "target"), [("sundial", "cpu"), ("cupti", "cpu"), ("perf_counter", "cuda")])
def test_a_timer_that_cannot_work_is_an_error_not_another_timer(name, target):
    with pytest.raises(TimerUnavailableError, match=name):
        make_timer(name, target, 0)
