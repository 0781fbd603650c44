"""The measuring loop: what candidates do to look fast, and what is seen of it."""

from __future__ import annotations

import itertools
import sys
import threading
import time

import pytest
import torch

from tileops_bench.baselines import UnsupportedCase, baseline
from tileops_bench.contenders import baseline_record, candidate_record
from tileops_bench.fingerprint import fingerprint
from tileops_bench.measure import Lane, RowMeasurement, order_of_round
from tileops_bench.protocol import RowJob, Spec
from tileops_bench.records import Code, Status
from tileops_bench.roofline import Floor
from tileops_bench.rowinputs import InputPool
from tileops_bench.timers.cpu import CpuTimer
from tileops_bench.verdict import Evidence, judge


def generate(seed: int):
    return {"x": torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)), "weight": None}


def first_argument(function):
    """The pool's second input is absent, as an optional one may be."""
    return lambda x, weight: function(x)


def run(*functions, mutated=(), rounds=6, bulk=True, emit=None):
    """Measure functions of x beside each other; returns raw records, row problems and messages."""
    roles = ["candidate", *(f"baseline-{i}" for i in range(1, len(functions)))]
    specs = [Spec(name=n, ref="x:y", role="candidate" if n == "candidate" else "baseline") for n in roles]
    job = RowJob(
        op="Op", label="row", dtypes={"T": "float32"}, target="cpu", timer="perf_counter",
        contenders=tuple(specs), min_samples=rounds, max_samples=rounds, bulk=bulk,
    )  # fmt: skip
    lanes = [Lane(spec, call=first_argument(f)) for spec, f in zip(specs, functions, strict=True)]
    messages = []
    pool = InputPool(generate, "cpu", frozenset(mutated))
    measurement = RowMeasurement(job, lanes, pool, CpuTimer(1 << 16), emit or messages.append, lambda: None)
    return measurement.run(), measurement.problems, messages


def judged(raw):
    """The candidate's record as the parent makes it."""
    return candidate_record(raw, "tileops", "digest", deterministic=True)


def codes(record):
    return {p.code for p in record.problems}


def verdict_codes(candidate, other):
    """Codes of the row for a candidate beside one baseline; the two may be equally fast, so no verdict is
    looked at."""
    (raw, raw_other), problems, _ = run(candidate, other)
    evidence = Evidence(
        judged(raw), (baseline_record(raw_other, baseline("ExpFwdOp", "torch-eager"), {}),), "t", "t",
        Floor(None, ""), row_problems=tuple(problems),
    )  # fmt: skip
    return {p.code for p in judge(evidence).problems} - {Code.THROTTLED}


def test_an_honest_candidate_has_one_sample_per_round_and_no_problem():
    (raw, other), problems, _ = run(torch.exp, torch.exp, rounds=9)
    assert len(raw.samples) == len(other.samples) == 9
    assert raw.first_call_ns > 0
    record = judged(raw)
    assert record.problems == ()
    assert problems == []
    assert record.outputs_compared == 3


def test_a_result_remembered_by_address_is_output_changed():
    remembered = {}

    def cached(x):
        return remembered.setdefault(x.data_ptr(), x.exp())

    (raw,), _, _ = run(cached)
    assert Code.OUTPUT_CHANGED in codes(judged(raw))


def test_a_result_replayed_from_the_warm_up_is_output_constant():
    first = []

    def replay(x):
        first.append(x.exp())
        return first[0]

    assert verdict_codes(replay, torch.exp) == {Code.OUTPUT_CONSTANT}


def test_a_result_remembered_by_content_is_never_asked_for_again():
    """Every timed call has values that no call before it had: remembering them saves nothing."""
    seen, phases = [], []
    run(
        lambda x: seen.append((len(phases), fingerprint(x))) or x + 1,
        rounds=24,
        bulk=False,
        emit=phases.append,
    )
    last = max(phase for phase, _ in seen)
    timed = [mark for phase, mark in seen if phase == last]
    # A kept call is made once more on copies: the same values, untimed.
    assert len(timed) == 24 + 3
    assert len(set(timed)) == 24


def test_values_put_in_for_a_call_are_taken_out_after_it():
    pool = InputPool(generate, "cpu")
    before = [fingerprint(slot["x"]) for slot in pool.slots]
    pool.stir(1)
    stirred = fingerprint(pool.slots[1]["x"])
    pool.settle()
    assert [fingerprint(slot["x"]) for slot in pool.slots] == before
    assert stirred not in before


def test_integers_whose_values_belong_together_are_exchanged_as_a_whole():
    def tables(seed: int):
        return {"table": torch.arange(8).roll(seed), "x": torch.randn(64)}

    pool = InputPool(tables, "cpu")
    pool.stir(0)
    assert sorted(pool.slots[0]["table"].tolist()) == list(range(8))
    assert fingerprint(pool.slots[0]["table"]) == fingerprint(tables(3)["table"])


def test_work_done_only_where_nobody_times_is_output_changed():
    def sly(x):
        frame, names = sys._getframe(), set()
        while frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        return torch.zeros_like(x) if "time" in names else x.exp()

    (raw,), _, _ = run(sly)
    assert Code.OUTPUT_CHANGED in codes(judged(raw))


def test_work_done_in_the_constructor_is_output_constant():
    class Precomputed:
        def __init__(self):
            self.answer = generate(0)["x"].exp()

        def __call__(self, x):
            return self.answer.clone()

    assert verdict_codes(Precomputed(), torch.exp) == {Code.OUTPUT_CONSTANT}


def test_an_output_too_coarse_to_tell_inputs_apart_is_not_constant():
    """A sum of three thousand in steps of five thousand: the kept calls agree, as in a 16-bit output."""

    def coarse(x):
        return (x.abs().sum() / 5000).round() * 5000

    (raw,), _, _ = run(coarse)
    assert len({kept.timed for kept in raw.outputs}) == 1
    assert judged(raw).output_varies is True
    assert Code.OUTPUT_CONSTANT not in verdict_codes(coarse, lambda x: x.abs().sum())


def test_half_of_the_inputs_may_be_no_legal_values():
    def picky(x):
        if x.abs().max() < 2.5:
            raise ValueError("too small")
        return torch.zeros(1)

    (raw,), _, _ = run(picky)
    assert raw.far_output is None
    assert verdict_codes(picky, torch.exp) == {Code.OUTPUT_CONSTANT}


def test_time_spent_tuning_inside_a_timed_call_is_in_the_samples():
    """No sample is dropped: a call that looks for its best config pays for it."""
    calls = []

    def tuning(x):
        calls.append(1)
        if len(calls) % 4 == 0:
            time.sleep(0.03)
        return x.exp()

    (raw,), _, _ = run(tuning, rounds=12, bulk=False)
    assert len(raw.samples) == 12
    assert sum(sample > 25_000_000 for sample in raw.samples) >= 2


def test_a_call_cannot_find_out_whether_it_is_kept():
    """Nothing that is decided before the call is drawn later differs between kept calls and others."""
    found = []

    def spy(x):
        frame = sys._getframe().f_back
        while frame is not None:
            if frame.f_code.co_name == "_one":
                lane = frame.f_locals["lane"]
                found.append((lane.to_keep, len(lane.outputs), frame.f_locals["rounds_left"]))
            frame = frame.f_back
        return x.exp()

    (raw,), _, _ = run(spy, rounds=9, bulk=False)
    assert len(raw.outputs) == 3
    certain = [left for keep, _, left in found if keep in (0, left)]
    assert len(certain) < len(found)


def test_writing_to_the_values_that_were_put_in_voids_the_row():
    pool = InputPool(generate, "cpu")
    pool.stir(0)
    mine, _ = pool._stirred[0]
    mine.zero_()
    pool.settle()
    assert pool.spare_changed() == ["x"]


def test_a_constant_output_is_fine_where_the_baseline_has_it_too():
    assert verdict_codes(torch.isnan, torch.isnan) == set()


def test_an_output_that_differs_from_call_to_call_is_output_changed():
    calls = itertools.count()

    def leftovers(x):
        return torch.full_like(x, next(calls))

    (raw,), _, _ = run(leftovers)
    assert Code.OUTPUT_CHANGED in codes(judged(raw))


def test_work_left_to_a_background_thread_is_seen():
    def later(x):
        out = torch.zeros_like(x)

        def work():
            time.sleep(0.02)
            out.copy_(x.exp())

        threading.Thread(target=work).start()
        return out

    assert verdict_codes(later, torch.exp) & {Code.OUTPUT_CONSTANT, Code.OUTPUT_CHANGED}


def test_output_is_not_compared_where_the_entry_allows_run_to_run_differences():
    (raw,), _, _ = run(lambda x: x + torch.rand(1))
    record = candidate_record(raw, "tileops", "digest", deterministic=False)
    assert record.problems == ()
    assert record.outputs_compared == 0


def test_a_candidate_that_writes_to_its_input_is_input_changed():
    (raw, other), _, _ = run(lambda x: x.mul_(1.5), torch.exp)
    assert Code.INPUT_CHANGED in codes(judged(raw))
    assert other.problems == ()


def test_writing_to_an_input_only_while_timed_voids_the_row():
    calls = []

    def sly(x):
        calls.append(1)
        if len(calls) > 25:
            x.mul_(1.5)
        return x + 1

    (raw,), problems, _ = run(sly, rounds=12)
    assert {p.code for p in (*problems, *raw.problems)} == {Code.INPUT_CHANGED}


def test_a_declared_mutation_is_allowed():
    (raw,), problems, _ = run(lambda x: x.mul_(1.5), mutated=("x",))
    assert raw.problems == ()
    assert problems == []


def test_a_candidate_that_raises_fails_alone():
    def broken(x):
        raise ValueError("no such tile")

    (raw, other), _, _ = run(broken, torch.exp)
    assert raw.status is Status.FAILED
    assert "ValueError: no such tile" in raw.detail
    assert other.status is Status.OK
    assert len(other.samples) == 6


def test_a_candidate_that_raises_in_the_middle_fails_alone():
    calls = []

    def tired(x):
        calls.append(1)
        if len(calls) > 24:
            raise RuntimeError("tired")
        return x + 1

    (raw, other), _, _ = run(tired, torch.exp, rounds=12)
    assert raw.status is Status.FAILED
    assert "tired" in raw.detail
    assert len(other.samples) == 12


def test_a_lazy_stand_in_is_no_output():
    class Lazy(torch.Tensor):
        pass

    (raw,), _, _ = run(lambda x: x.exp().as_subclass(Lazy))
    assert raw.status is Status.FAILED
    assert "Lazy" in raw.detail


def test_a_library_that_does_not_do_the_case_is_unsupported_not_failed():
    def unsupported(x):
        raise UnsupportedCase("head_dim 7")

    (_, other), _, _ = run(torch.exp, unsupported)
    assert other.status is Status.UNSUPPORTED
    assert "head_dim 7" in other.detail


def test_a_baseline_may_give_other_bits_each_time():
    (_, other), _, _ = run(torch.exp, lambda x: x + torch.rand(1))
    assert baseline_record(other, baseline("ExpFwdOp", "torch-eager"), {}).problems == ()


def test_order_is_rotated_and_neighbours_change():
    lanes = list("abcd")
    rounds = [order_of_round(lanes, i) for i in range(8)]
    assert all(sorted(r) == lanes for r in rounds)
    for place in range(4):
        assert {r[place] for r in rounds} == set(lanes)
    neighbours = {(r[i], r[i + 1]) for r in rounds for i in range(3)}
    assert ("a", "b") in neighbours
    assert ("b", "a") in neighbours


def test_calls_are_interleaved_one_by_one():
    seen = []
    run(lambda x: seen.append("a") or x + 1, lambda x: seen.append("b") or x + 1, rounds=8, bulk=False)
    timed = "".join(seen)[-16:]  # the last rounds, each kept call being made twice
    assert max(len(part) for part in timed.replace("b", " ").split()) <= 4
    assert max(len(part) for part in timed.replace("a", " ").split()) <= 4


def test_inputs_differ_in_place_and_value_between_calls():
    seen = []
    run(lambda x: seen.append((x.data_ptr(), float(x.sum()))) or x + 1)
    assert len({pointer for pointer, _ in seen}) >= 3
    assert len({value for _, value in seen}) >= 4


def test_messages_name_the_phase_and_the_contender():
    _, _, messages = run(torch.exp, torch.exp)
    phases = [(m.name, m.contender) for m in messages if m.type == "phase"]
    assert phases[:2] == [("warm", "candidate"), ("warm", "baseline-1")]
    assert ("measure", "") in phases


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(3.0),
        lambda: torch.zeros(0, 3),
        lambda: torch.ones(7, dtype=torch.bool),
        lambda: torch.randn(5, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).t(),
        lambda: torch.arange(11, dtype=torch.float32).to(torch.float8_e4m3fn),
    ],
)
def test_fingerprints_are_of_the_contents(make):
    assert fingerprint(make()) == fingerprint(make())


def test_fingerprints_see_one_bit_one_swap_one_dtype_one_shape():
    x = torch.arange(1000, dtype=torch.int32)
    flipped, swapped = x.clone(), x.clone()
    flipped[999] ^= 1
    swapped[[3, 700]] = x[[700, 3]]
    others = [flipped, swapped, x.view(torch.float32), x.reshape(10, 100)]
    assert len({fingerprint(t) for t in [x, *others]}) == 5


def test_negative_zero_and_nan_payloads_are_different_bits():
    assert fingerprint(torch.tensor([0.0])) != fingerprint(torch.tensor([-0.0]))


def test_the_cpu_scrub_starts_no_threads_that_could_compete_with_the_next_call():
    timer = CpuTimer(1 << 20)
    before = threads_of_this_process()
    for _ in range(3):
        timer.prepare()
    assert threads_of_this_process() == before


def threads_of_this_process() -> int:
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Threads:"))


class NoMessage(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "detail"),
    [
        (ValueError("half a surrogate \udcff and a colour \x1b[31m"), "surrogate ? and a colour ?[31m"),
        (NoMessage(), "NoMessage: (its message cannot be had: RuntimeError)"),
    ],
)
def test_whatever_a_contender_raises_can_be_written_down(error, detail):
    lane = Lane(Spec(name="candidate", ref="x.py:f", role="candidate"))
    lane.stop(error)
    assert lane.status is Status.FAILED
    assert detail in lane.detail
    assert lane.detail.encode()
