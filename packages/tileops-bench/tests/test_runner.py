"""Whole runs with canned measurements: streaming, resuming, budgets, interruption, confirmation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench_builders import make_row, samples_around

from tileops_bench import rowrunner, runner
from tileops_bench.baselines import baseline
from tileops_bench.certificate import Certificate
from tileops_bench.errors import ProtocolError, ResultsError, UsageError
from tileops_bench.plan import PlannedRow
from tileops_bench.protocol import Measured, RawContender, Ready
from tileops_bench.records import Code, Status
from tileops_bench.rowrunner import RowRunner, RunSettings
from tileops_bench.runner import RunObserver, RunRequest, execute
from tileops_bench.session import Answer, ChildDied
from tileops_bench.stats import Verdict
from tileops_bench.store import read_results

SETTINGS = RunSettings(
    target="cpu",
    timer="perf_counter",
    candidate="tileops",
    candidate_digest="kernels-1",
    cpus=(0,),
    scrub_bytes=0,
)
READY = Ready(device="Test CPU", threads=2, affinity=(0, 1))


def planned(name: str) -> PlannedRow:
    return PlannedRow(f"ExpFwdOp/{name}", "ExpFwdOp", name, {"T": "float32"}, None, f"entry-{name}")


def rejecting(op: str, name: str) -> dict[str, Certificate]:
    refused = Certificate(op=op, name=name, target="cpu", status="rejected")
    return {baseline(op, name).digest: refused}


class Canned:
    """Stands for RowRunner: gives each row a canned record and counts what it was asked."""

    asked: list[str]
    interrupt_at: str | None = None

    def __init__(self, settings, device, on_phase=None, clean=None):
        self.settings = settings

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def run(self, row, digests):
        if row.id == Canned.interrupt_at:
            raise KeyboardInterrupt
        Canned.asked.append(row.id)
        return make_row(row.id, digests=dict(digests))


@pytest.fixture(autouse=True)
def canned(monkeypatch):
    Canned.asked, Canned.interrupt_at = [], None
    monkeypatch.setattr(runner, "RowRunner", Canned)
    return Canned


def request(tmp_path: Path, *names: str, **fields) -> RunRequest:
    rows = [planned(n) for n in names or ("a", "b", "c")]
    base = {
        "rows": rows,
        "settings": SETTINGS,
        "ready": READY,
        "out": tmp_path / "r.jsonl",
        "command": ("x",),
    }
    return RunRequest(**{**base, **fields})


def test_rows_are_on_disk_as_soon_as_they_are_done(tmp_path):
    seen = []

    class Watcher(RunObserver):
        def row_done(self, row):
            seen.append(len(read_results(tmp_path / "r.jsonl").rows))

    outcome = execute(request(tmp_path), Watcher())
    assert seen == [1, 2, 3]
    assert len(outcome.measured) == 3


def test_the_header_declares_every_row_and_carries_the_conditions(tmp_path):
    execute(request(tmp_path))
    header = read_results(tmp_path / "r.jsonl").header
    assert header.declared == ("ExpFwdOp/a", "ExpFwdOp/b", "ExpFwdOp/c")
    assert header.conditions.device == "Test CPU"
    assert header.conditions.versions["torch"]


def test_an_interrupted_run_keeps_its_rows_and_resumes_with_the_rest(tmp_path, canned):
    canned.interrupt_at = "ExpFwdOp/b"
    with pytest.raises(KeyboardInterrupt):
        execute(request(tmp_path))
    assert [r.id for r in read_results(tmp_path / "r.jsonl").rows] == ["ExpFwdOp/a"]
    canned.interrupt_at, canned.asked = None, []
    outcome = execute(request(tmp_path, resume=True))
    assert canned.asked == ["ExpFwdOp/b", "ExpFwdOp/c"]
    assert outcome.skipped == 1
    assert len(read_results(tmp_path / "r.jsonl").rows) == 3


def test_resuming_after_a_torn_line_measures_that_row_again(tmp_path, canned):
    execute(request(tmp_path))
    out = tmp_path / "r.jsonl"
    out.write_bytes(out.read_bytes()[:-50])
    canned.asked, notices = [], []

    class Listener(RunObserver):
        def notice(self, text):
            notices.append(text)

    execute(request(tmp_path, resume=True), Listener())
    assert canned.asked == ["ExpFwdOp/c"]
    assert any("truncated" in text for text in notices)
    assert len(read_results(out).rows) == 3


def test_a_changed_candidate_is_measured_again(tmp_path, canned):
    execute(request(tmp_path))
    canned.asked = []
    changed = replace(SETTINGS, candidate_digest="kernels-2")
    execute(request(tmp_path, resume=True, settings=changed))
    assert len(canned.asked) == 3


def test_a_changed_entry_is_measured_again_alone(tmp_path, canned):
    execute(request(tmp_path))
    canned.asked = []
    rows = [planned("a"), replace(planned("b"), entry_digest="new"), planned("c")]
    execute(request(tmp_path, resume=True, rows=rows))
    assert canned.asked == ["ExpFwdOp/b"]


def test_a_row_is_measured_again_when_a_certificate_says_something_new_of_its_baselines(tmp_path, canned):
    execute(request(tmp_path))
    canned.asked = []
    settings = replace(SETTINGS, certificates=rejecting("ExpFwdOp", "torch-eager"))
    execute(request(tmp_path, resume=True, settings=settings))
    assert len(canned.asked) == 3


def test_a_row_is_measured_again_when_it_stands_on_another_record(tmp_path, canned):
    execute(request(tmp_path))
    canned.asked = []
    execute(request(tmp_path, resume=True, settings=replace(SETTINGS, verified={"AddFwdOp": "r2"})))
    assert canned.asked == []
    execute(request(tmp_path, resume=True, settings=replace(SETTINGS, verified={"ExpFwdOp": "r1"})))
    assert len(canned.asked) == 3


def test_the_header_and_a_notice_say_how_many_baselines_are_certified(tmp_path):
    notices = []

    class Listener(RunObserver):
        def notice(self, text):
            notices.append(text)

    settings = replace(SETTINGS, certificates=rejecting("ExpFwdOp", "torch-eager"))
    execute(request(tmp_path, settings=settings), Listener())
    counts = {"certified": 0, "rejected": 1, "unknown": 1}
    assert read_results(tmp_path / "r.jsonl").header.options["certificates"] == counts
    assert notices == ["baselines: 0 certified, 1 rejected, 1 unknown"]


def test_an_existing_file_is_neither_overwritten_nor_continued_unasked(tmp_path):
    execute(request(tmp_path))
    before = (tmp_path / "r.jsonl").read_bytes()
    with pytest.raises(UsageError, match="--resume"):
        execute(request(tmp_path))
    assert (tmp_path / "r.jsonl").read_bytes() == before
    execute(request(tmp_path, "a", overwrite=True))
    assert len(read_results(tmp_path / "r.jsonl").rows) == 1


@pytest.mark.parametrize(
    ("ready", "settings"),
    [
        (Ready(device="Other CPU", threads=2, affinity=(0, 1)), SETTINGS),
        (Ready(device="Test CPU", threads=1, affinity=(0,)), SETTINGS),
        (READY, replace(SETTINGS, timer="cuda-events")),
    ],
)
def test_a_run_is_not_resumed_under_other_conditions(tmp_path, ready, settings):
    execute(request(tmp_path, "a"))
    with pytest.raises(ResultsError, match="cannot be resumed"):
        execute(request(tmp_path, resume=True, ready=ready, settings=settings))


def test_rows_are_prepared_before_the_first_is_measured(tmp_path, canned, monkeypatch):
    def fake_prepare(rows, settings, jobs, on_row):
        assert canned.asked == []
        assert jobs == 3
        for row in rows:
            on_row(row, "")

    monkeypatch.setattr(runner, "prepare", fake_prepare)
    heard = []

    class Watcher(RunObserver):
        def row_prepared(self, row, trouble):
            heard.append((row.label, trouble))

    execute(request(tmp_path, prepare_jobs=3), Watcher())
    assert heard == [("a", ""), ("b", ""), ("c", "")]
    assert read_results(tmp_path / "r.jsonl").header.options["prepared"] is True


def test_rows_beyond_the_budget_are_named_not_forgotten(tmp_path):
    outcome = execute(request(tmp_path, total_budget_s=-1.0))
    assert outcome.not_measured == ("ExpFwdOp/a", "ExpFwdOp/b", "ExpFwdOp/c")
    assert read_results(tmp_path / "r.jsonl").missing == outcome.not_measured


def measured(own: float, **others: float | RawContender) -> Measured:
    contenders = [RawContender(name="candidate", status=Status.OK, samples=samples_around(own))]
    for name, value in others.items():
        name = name.replace("_", "-")
        if isinstance(value, RawContender):
            contenders.append(value)
        else:
            contenders.append(RawContender(name=name, status=Status.OK, samples=samples_around(value)))
    return Measured(
        timer="perf_counter", flops=1, bytes=8, bytes_written=4, inputs={"x": "float32[1]"}, params={},
        deterministic=True, contenders=tuple(contenders),
    )  # fmt: skip


class Script:
    """Stands for ChildSession: gives out scripted answers and remembers the jobs, session by session."""

    answers: list
    sessions: list[list[list[str]]]

    def __init__(self, target, cpus=(), environment=None, on_phase=None):
        self.jobs = []
        Script.sessions.append(self.jobs)

    def ask(self, job, timeout_s):
        self.jobs.append([c.name for c in job.contenders])
        answer = Script.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Answer(answer, None)

    def close(self):
        return None


@pytest.fixture
def script(monkeypatch):
    Script.answers, Script.sessions = [], []
    monkeypatch.setattr(rowrunner, "ChildSession", Script)
    return Script


def alone(median: float) -> Measured:
    only = RawContender(name="torch-eager", status=Status.OK, samples=samples_around(median))
    return measured(1.0).model_copy(update={"contenders": (only,)})


def run_row(**settings):
    with RowRunner(replace(SETTINGS, **settings), "Test CPU") as row_runner:
        return row_runner.run(planned("a"), {"entry": "e"})


@pytest.mark.parametrize(
    ("verified", "found"), [({}, "unverified"), ({"ExpFwdOp": "r1", "AddFwdOp": "r2"}, "r1")]
)
def test_a_row_carries_the_record_that_it_stands_on(script, verified, found):
    script.answers = [measured(1000, torch_eager=1500, torch_compile=1700), alone(1500)]
    assert run_row(verified=verified).verification == found


def test_a_win_is_timed_against_the_baseline_alone_in_a_process_without_the_candidate(script):
    script.answers = [measured(1000, torch_eager=1500, torch_compile=1700), alone(1500)]
    row = run_row()
    assert row.verdict is Verdict.FAST
    assert row.against == "torch-eager"
    assert script.sessions == [[["candidate", "torch-eager", "torch-compile"]], [["torch-eager"]]]
    assert row.alone.median == pytest.approx(1500, rel=0.01)


def test_a_baseline_that_is_slow_only_beside_the_candidate_is_tried_once_more_then_invalid(script):
    script.answers = [measured(1000, torch_eager=1500, torch_compile=1700), alone(900)] * 2
    row = run_row()
    assert row.verdict is Verdict.INVALID
    assert row.attempts == 2
    assert [p.code for p in row.problems] == [Code.BASELINE_DISAGREES_ALONE]


def test_a_passing_disturbance_is_forgiven_after_a_second_try(script):
    both = {"torch_eager": 1500, "torch_compile": 1700}
    script.answers = [measured(1000, **both), alone(900), measured(1000, **both), alone(1500)]
    row = run_row()
    assert row.verdict is Verdict.FAST
    assert row.attempts == 2


def test_slow_is_confirmed_in_a_new_process(script):
    both = {"torch_eager": 500, "torch_compile": 700}
    script.answers = [measured(1000, **both), alone(500), measured(1000, torch_eager=500)]
    row = run_row()
    assert row.verdict is Verdict.SLOW
    assert row.confirmation.verdict is Verdict.SLOW
    assert script.sessions[-1] == [["candidate", "torch-eager"]]


def test_slow_that_is_not_confirmed_is_ambiguous(script):
    both = {"torch_eager": 500, "torch_compile": 700}
    script.answers = [measured(1000, **both), alone(500), measured(500, torch_eager=500)]
    row = run_row()
    assert row.verdict is Verdict.AMBIGUOUS
    assert row.confirmation.verdict is Verdict.SAME


def test_a_baseline_that_kills_the_process_is_put_aside_and_voids_a_win(script):
    script.answers = [ChildDied("warm", "torch-compile", "crashed"), measured(1000, torch_eager=1500)]
    row = run_row()
    assert row.verdict is Verdict.INVALID
    assert [(p.code, "torch-compile" in p.detail) for p in row.problems] == [(Code.BASELINE_FAILED, True)]
    assert script.sessions == [
        [["candidate", "torch-eager", "torch-compile"]],
        [["candidate", "torch-eager"]],
    ]


def test_a_candidate_that_kills_the_process_has_failed(script):
    script.answers = [ChildDied("warm", "candidate", "crashed with SIGSEGV")]
    row = run_row()
    assert row.verdict is Verdict.INVALID
    assert Code.CANDIDATE_FAILED in {p.code for p in row.problems}
    assert "SIGSEGV" in row.candidate.detail


@pytest.mark.parametrize("refusal", [ProtocolError("MemoryError: no room"), UsageError("WorkloadError: x")])
def test_a_row_that_cannot_be_measured_is_invalid_and_ends_no_run(script, refusal):
    good = measured(1000, torch_eager=1500, torch_compile=1700)
    script.answers = [refusal, good, refusal, good, refusal]  # the lone baseline is given a second try
    with RowRunner(SETTINGS, "Test CPU") as row_runner:
        first, second = (row_runner.run(planned(name), {"entry": "e"}) for name in "ab")
    assert first.verdict is Verdict.INVALID
    assert f"the row cannot be measured: {refusal}" in first.candidate.detail
    assert second.verdict is Verdict.INVALID
    assert any(str(refusal) in p.detail for p in second.problems)


def test_a_timer_other_than_the_one_asked_for_is_invalid(script):
    other = measured(1000, torch_eager=1500, torch_compile=1700).model_copy(update={"timer": "stopwatch"})
    script.answers = [other]
    assert [p.code for p in run_row().problems] == [Code.TIMER_FALLBACK]


def test_baselines_left_out_by_the_caller_are_named(script):
    script.answers = [measured(1000, torch_eager=1500), alone(1500)]
    row = run_row(only_baselines=frozenset({"torch-eager"}))
    assert {b.name: b.status for b in row.baselines} == {
        "torch-eager": Status.OK,
        "torch-compile": Status.EXCLUDED,
    }


def test_a_rejected_baseline_is_not_asked_and_a_certified_one_says_so(script):
    certified = Certificate(op="ExpFwdOp", name="torch-compile", target="cpu", status="certified")
    book = rejecting("ExpFwdOp", "torch-eager") | {baseline("ExpFwdOp", "torch-compile").digest: certified}
    script.answers = [measured(1000, torch_compile=1500), measured(1, torch_compile=1500)]
    row = run_row(certificates=book, alone=False)
    assert script.sessions == [[["candidate", "torch-compile"]]]
    assert {b.name: (b.status, b.certified) for b in row.baselines} == {
        "torch-eager": (Status.REJECTED, "no"),
        "torch-compile": (Status.OK, "yes"),
    }


def test_nothing_wins_against_a_rejected_baseline_alone(script):
    script.answers = [measured(1000)]
    only = frozenset({"torch-eager"})
    row = run_row(certificates=rejecting("ExpFwdOp", "torch-eager"), only_baselines=only)
    assert row.verdict is Verdict.INVALID
    assert [problem.code for problem in row.problems] == [Code.BASELINE_FAILED]


def test_impossible_times_are_a_failure(script):
    broken = RawContender(name="candidate", status=Status.OK, samples=(0, -5, 10, 10, 10))
    whole = measured(1000, torch_eager=1500, torch_compile=1700)
    script.answers = [whole.model_copy(update={"contenders": (broken, *whole.contenders[1:])})]
    row = run_row()
    assert [p.code for p in row.problems] == [Code.CANDIDATE_FAILED]
    assert "impossible times" in row.candidate.detail


def test_the_candidates_process_is_kept_between_rows_and_replaced_in_time(script, monkeypatch):
    monkeypatch.setattr(rowrunner, "ROWS_PER_PROCESS", 2)
    script.answers = [measured(1000, torch_eager=1500, torch_compile=1600) for _ in range(3)]
    with RowRunner(replace(SETTINGS, alone=False), "Test CPU") as row_runner:
        for name in "abc":
            row_runner.run(planned(name), {})
    assert [len(jobs) for jobs in script.sessions] == [2, 1]
