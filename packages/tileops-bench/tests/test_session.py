"""The measuring process from outside: real candidates in a real child, and children that die, hang or lie."""

from __future__ import annotations

import os
import textwrap

import pytest

from tileops_bench.contenders import candidate_record
from tileops_bench.errors import TimerUnavailableError, UsageError
from tileops_bench.protocol import RowJob, Spec
from tileops_bench.records import Code, Status
from tileops_bench.roofline import Floor
from tileops_bench.session import ChildDied, ChildSession
from tileops_bench.verdict import Evidence, judge
from tileops_manifest import load_manifest

OP = "RMSNormFwdOp"
HONEST = """
    import torch.nn.functional as F

    def run(x, weight, normalized_shape, eps):
        return F.rms_norm(x, tuple(normalized_shape), weight, eps)
"""


@pytest.fixture(scope="module")
def child():
    with ChildSession("cpu", tuple(sorted(os.sched_getaffinity(0)))[:1]) as session:
        yield session


def job(*contenders: Spec, **fields) -> RowJob:
    entry = load_manifest()[OP]
    case = next(iter(entry.cases()))
    return RowJob(
        op=OP, label=case.row.label, dtypes=entry.resolve_dtypes(case.dtypes), scale="cpu", target="cpu",
        contenders=contenders, budget_s=0.05, max_samples=8,
        **{"timer": "perf_counter", **fields},
    )  # fmt: skip


def candidate(ref: str) -> Spec:
    return Spec(name="candidate", ref=ref, role="candidate")


EAGER = Spec(name="torch-eager", ref="baseline:torch-eager", role="baseline")


def test_a_real_row_comes_back_with_samples_and_the_manifests_work(child, candidate_file):
    answer = child.ask(job(candidate(candidate_file(HONEST)), EAGER), 60)
    measured = answer.reply
    assert [c.status for c in measured.contenders] == [Status.OK, Status.OK]
    assert all(len(c.samples) >= 7 for c in measured.contenders)
    assert measured.timer == "perf_counter"
    assert measured.flops > 0
    assert measured.bytes > measured.bytes_written > 0
    assert answer.bulk.calls >= 3
    assert answer.bulk.total_ns > 0


def test_the_child_is_pinned_and_says_so(child):
    assert child.ready.threads == 1
    assert len(child.ready.affinity) == 1


@pytest.mark.parametrize(
    ("ref", "expected"),
    [
        ("no/such/file.py:run", "does not exist"),
        ("no_such_package.x:run", "No module named"),
        ("just-a-name", "expected 'tileops'"),
        ("baseline:nothing", "no baseline 'nothing'"),
    ],
)
def test_a_reference_to_nothing_fails_that_contender_with_its_reason(child, ref, expected):
    broken, fine = child.ask(job(candidate(ref), EAGER), 60).reply.contenders
    assert broken.status is Status.FAILED
    assert expected in broken.detail
    assert fine.status is Status.OK


def test_an_unknown_timer_is_refused(child):
    with pytest.raises(TimerUnavailableError, match="sundial"):
        child.ask(job(EAGER, timer="sundial"), 60)


def test_an_unknown_op_is_refused_with_a_suggestion(child):
    with pytest.raises(UsageError, match="RMSNormFwdOp"):
        child.ask(job(EAGER).model_copy(update={"op": "RMSNormFwdOpp"}), 60)


def test_prints_of_a_candidate_do_not_reach_the_protocol(child, candidate_file):
    source = textwrap.dedent(HONEST) + "\nprint('hello from the candidate', flush=True)\n"
    noisy = candidate_file(source, "noisy")
    assert child.ask(job(candidate(noisy), EAGER), 60).reply.contenders[0].status is Status.OK


def test_a_patched_clock_is_caught_by_the_parents_clock(candidate_file):
    lying = candidate_file(
        """
        import time
        import torch.nn.functional as F
        import tileops_bench.timers.cpu as cpu

        def frozen():
            return 1000
        time.perf_counter_ns = frozen
        def cheat(self, token, call):
            result = call()
            self._calls[token] = cpu.Measurement(ns=5)
            return result
        cpu.CpuTimer.time = cheat

        def run(x, weight, normalized_shape, eps):
            for _ in range(20):
                out = F.rms_norm(x, tuple(normalized_shape), weight, eps)
            return out
        """
    )
    with ChildSession("cpu") as session:
        answer = session.ask(job(candidate(lying)), 60)
    record = candidate_record(answer.reply.contenders[0], "x", "d", deterministic=True)
    assert record.summary.median == 5
    found = judge(Evidence(record, (), "t", "t", Floor(None, ""), bulk=answer.bulk)).problems
    assert Code.CLOCK_DISAGREES in {p.code for p in found}


def test_a_crash_names_the_contender_and_the_signal(candidate_file):
    crashing = candidate_file("import os\n\ndef run(*inputs, **params):\n    os.abort()\n")
    with ChildSession("cpu") as session, pytest.raises(ChildDied) as caught:
        session.ask(job(candidate(crashing)), 60)
    assert caught.value.contender == "candidate"
    assert "SIGABRT" in caught.value.reason


def test_a_hang_is_ended_after_the_timeout(candidate_file):
    hanging = candidate_file("import time\n\ndef run(*inputs, **params):\n    time.sleep(600)\n")
    with ChildSession("cpu") as session:
        session.ask(job(EAGER), 60)  # so that imports do not count against the short timeout below
        with pytest.raises(ChildDied) as caught:
            session.ask(job(candidate(hanging)), 3)
    assert caught.value.contender == "candidate"
    assert "no answer in time" in caught.value.reason


FAKE_CHILD = """
import os, sys
replies = os.fdopen(int(sys.argv[2]), "w")
def say(text):
    print(text, file=replies, flush=True)
say('{"type": "ready", "device": "x", "threads": 1, "affinity": [0]}')
for line in os.fdopen(int(sys.argv[1])):
    say(%r)
"""


@pytest.mark.parametrize(
    "message",
    [
        "not json",
        '{"type": "measured"}',
        '{"type": "verdict", "verdict": "FAST"}',
        '{"type": "phase", "name": "x", "contender": "", "speedup": 100}',
    ],
)
def test_a_message_outside_the_protocol_ends_the_session(tmp_path, monkeypatch, message):
    (tmp_path / "fake_child.py").write_text(FAKE_CHILD % message)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with ChildSession("cpu", module="fake_child") as session, pytest.raises(ChildDied, match="protocol"):
        session.ask(job(EAGER), 10)


def test_a_child_ended_by_a_signal_without_a_name_is_a_clear_error(tmp_path, monkeypatch):
    (tmp_path / "real_time_child.py").write_text("import os\nos.kill(os.getpid(), 40)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ChildDied, match="signal 40"):
        ChildSession("cpu", module="real_time_child")


def test_a_child_that_ends_by_itself_is_not_said_to_be_killed(tmp_path, monkeypatch):
    """Its pipe is closed a while before the process is gone."""
    (tmp_path / "slow_end.py").write_text(
        "import os, sys, time\nos.close(int(sys.argv[2]))\ntime.sleep(0.3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ChildDied, match=r"the process ended \(exit code 0\)"):
        ChildSession("cpu", module="slow_end")


def test_a_child_that_does_not_start_is_a_clear_error(tmp_path, monkeypatch):
    (tmp_path / "dead_child.py").write_text("raise SystemExit('no luck')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(ChildDied, match="no luck"):
        ChildSession("cpu", module="dead_child")
