"""The worker: what it can see, how it ends, and that the parent never imports the implementation."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tileops_tests.candidate import Candidate
from tileops_tests.codes import ReasonCode
from tileops_tests.errors import WorkerStartError
from tileops_tests.host import Worker, WorkerFailure, ending
from tileops_tests.limits import Limits
from tileops_tests.sandbox import HIDDEN, allow_except, build_sandbox, package_folder
from tileops_tests.zygote import Zygote

WRONG = Path(__file__).parent / "wrong"
PROBES = WRONG / "probes.py"

PARENT_PROGRAM = """
import json, sys
from pathlib import Path
from tileops_tests.cli import main
code = main(["verify", "ReluFwdOp", "--target", "cpu", "--case", "ragged-*", "--json", sys.argv[1]])
implementation = ("tileops_kernels", "tilelang", "tvm")
found = sorted(name for name in sys.modules if name.split(".")[0] in implementation)
print(json.dumps({"code": code, "modules": found}))
"""


def ask(zygote: Zygote, name: str, *, locked: bool) -> dict:
    """What a probe, run in a worker, says that it could do."""
    with Worker(zygote, zygote.limits) as worker:
        assert worker.ask(Candidate(PROBES, name).message(), timeout=20)["ok"]
        if locked:
            worker.lock()
        answer = worker.ask(
            {"do": "refuse", "inputs": [], "params": {"parent": __import__("os").getpid()}}, timeout=20
        )
    return json.loads(answer["message"].partition(": ")[2])


def test_parent_never_imports_the_implementation(tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    done = subprocess.run(
        [sys.executable, "-c", PARENT_PROGRAM, str(record)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert json.loads(done.stdout.splitlines()[-1])["modules"] == []
    (op,) = json.loads(record.read_text())["ops"]
    assert op["cases"]["run"] == op["cases"]["declared"] > 0
    assert op["digests"].keys() >= {
        "manifest",
        "workload",
        "oracle",
        "tolerance",
        "checker",
        "implementation",
    }


def test_candidate_cannot_import_the_judge(zygote: Zygote) -> None:
    said = ask(zygote, "imports", locked=False)
    assert {name: said[name] for name in HIDDEN} == dict.fromkeys(HIDDEN, False)
    assert said["tileops_manifest"]
    assert said["torch"]


def test_candidates_path_leads_nowhere_near_the_judge(zygote: Zygote) -> None:
    said = ask(zygote, "search_path", locked=False)
    for folder in map(Path, said["path"]):
        assert not any((folder / name).exists() for name in HIDDEN), folder


def test_run_phase_can_neither_execute_nor_write_nor_look_at_its_judge(zygote: Zygote) -> None:
    if zygote.confinement["landlock"] == "unavailable":
        pytest.skip("this kernel has no Landlock: the record says so")
    assert ask(zygote, "abilities", locked=True) == dict.fromkeys(
        ("execute", "write_home", "read_judge", "read_parent_memory", "signal_parent", "connect"), False
    )


def test_compile_phase_may_run_compilers(zygote: Zygote) -> None:
    assert ask(zygote, "abilities", locked=False)["execute"]


def test_a_broken_answer_is_a_protocol_error(zygote: Zygote) -> None:
    with Worker(zygote, zygote.limits) as worker:
        worker.ask(Candidate(PROBES, "forges_an_answer").message(), timeout=20)
        with pytest.raises(WorkerFailure) as caught:
            worker.ask({"do": "refuse", "inputs": [], "params": {}}, timeout=20)
    assert caught.value.code is ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("candidate", "code", "message"),
    [
        ("forges_an_output", ReasonCode.PROTOCOL_ERROR, ""),
        ("says_what_no_file_takes", ReasonCode.EXCEPTION, "half a surrogate ? and a colour ?[31m"),
        ("sparse_output", ReasonCode.WRONG_TYPE, "output is torch.Tensor of layout torch.sparse_coo"),
    ],
)
def test_what_a_worker_says_never_breaks_the_judge(
    judge: Callable, candidate: str, code: ReasonCode, message: str
) -> None:
    record = judge("SoftmaxFwdOp", f"probes.py:{candidate}", ("ragged-float32-cpu-s0",))
    assert [failure.code for failure in record.failures] == [code]
    assert message in record.failures[0].message
    assert record.model_dump_json()


def test_a_message_names_the_signal_that_ended_the_worker(judge: Callable) -> None:
    record = judge("SoftmaxFwdOp", "softmax.py:faults.crashes", ("ragged-float16-*s0",))
    assert "SIGSEGV" in record.failures[0].message


def test_cases_after_a_crash_are_still_judged(judge: Callable) -> None:
    record = judge("SoftmaxFwdOp", "probes.py:crashes_on_float16", ("ragged-*cpu-s0",))
    codes = {failure.case: failure.code for failure in record.failures}
    assert codes == {"ragged-float16-cpu-s0": ReasonCode.CRASH}
    assert record.cases.passed == record.cases.declared - 1 > 0


def test_a_candidate_that_cannot_be_imported_fails_as_a_whole(judge: Callable) -> None:
    record = judge("SoftmaxFwdOp", "probes.py:no_such_object")
    assert record.status == "failed"
    assert [(f.case, f.code) for f in record.failures] == [("*", ReasonCode.LOAD_FAILED)]
    assert record.cases.run == 0 < record.cases.declared


def test_a_workers_children_end_with_it(zygote: Zygote) -> None:
    with Worker(zygote, replace(zygote.limits, run_seconds=1.0)) as worker:
        worker.ask(Candidate(PROBES, "starts_a_child").message(), timeout=20)
        child = int(
            worker.ask({"do": "refuse", "inputs": [], "params": {}}, timeout=20)["message"].partition(": ")[2]
        )
        assert Path(f"/proc/{child}").exists()
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_an_interpreter_that_cannot_start_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with (
        build_sandbox("cpu", candidate=PROBES) as sandbox,
        pytest.raises(WorkerStartError, match="cannot start /nonexistent"),
    ):
        Zygote(sandbox, Limits())


def test_an_interrupt_while_workers_are_prepared_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def interrupted(zygote: Zygote, *_: object) -> None:
        started.append(zygote._process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(Zygote, "_ask", interrupted)
    with build_sandbox("cpu") as sandbox, pytest.raises(KeyboardInterrupt):
        Zygote(sandbox, Limits())
    assert not Path(f"/proc/{started[0]}").exists()


def test_the_end_of_a_process_is_said_in_words() -> None:
    assert ending(-11) == "signal SIGSEGV"
    assert ending(-40) == "signal 40"  # real-time signals have no name
    assert ending(3) == "exit status 3"


def test_allow_except_names_the_siblings_of_what_is_hidden(tmp_path: Path) -> None:
    for name in ("a/secret", "a/open", "b"):
        (tmp_path / name).mkdir(parents=True)
    allowed = {
        Path(p).relative_to(tmp_path).as_posix() for p in allow_except(tmp_path, [tmp_path / "a" / "secret"])
    }
    assert allowed == {"a/open", "b"}
    assert allow_except(tmp_path / "a" / "secret", [tmp_path / "a" / "secret"]) == []


def test_the_judge_is_not_linked_into_the_view() -> None:
    with build_sandbox("cpu", candidate=PROBES) as sandbox:
        names = {entry.name.split("-")[0] for entry in sandbox.view.iterdir()}
        assert not names & set(HIDDEN)
        assert {"torch", "tileops_manifest"} <= names
        hidden = [package_folder(name) for name in HIDDEN if package_folder(name)]
        assert not any(h.is_relative_to(Path(p).resolve()) for h in hidden for p in sandbox.readable)
    assert not sandbox.root.exists()


def test_generation_of_inputs_leaves_the_global_random_state_alone(judge: Callable) -> None:
    before = torch.random.get_rng_state()
    judge("SoftmaxFwdOp", "softmax.py:right", ("ragged-float16-*s0",))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("inputs", "device", "expected"), [([], "meta", "meta"), ([], "cpu", "cpu"), ([None], "meta", "cpu")]
)
def test_an_op_without_inputs_meets_the_verified_device_as_default(inputs, device, expected) -> None:
    path = Path(sys.modules["tileops_tests.zygote"].__file__).with_name("worker") / "main.py"
    spec = importlib.util.spec_from_file_location("worker_main", path)
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    case = SimpleNamespace(inputs=inputs, device=torch.device(device))
    with main.Worker(None, torch, None)._default_device(case):
        assert torch.empty(0).device.type == expected
