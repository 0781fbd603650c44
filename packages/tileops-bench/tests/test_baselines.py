"""The baseline table: coverage, and that every CPU baseline runs on its op's real rows. Values are judged
elsewhere."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch._dynamo

from tileops_bench.baselines import Case, baseline, baselines_for, ops_with_baselines
from tileops_bench.certificate import Certificate, certified, read_certificates
from tileops_bench.contenders import split_baselines
from tileops_bench.errors import CandidateError, CertificateError
from tileops_bench.records import Status
from tileops_bench.resolve import resolve
from tileops_manifest import load_manifest
from tileops_workloads import make_workload

MANIFEST = load_manifest()
OPS = sorted(set(ops_with_baselines()) & set(MANIFEST))
CERTIFICATES = '{"abc": {"op": "X", "name": "y", "target": "cpu", "status": "certified", "max_error": 0.4}}'
EAGER_ON_CPU = [
    (b.op, b.name) for op in OPS for b in baselines_for(op) if "cpu" in b.targets and "compile" not in b.name
]


@pytest.mark.parametrize("op", OPS)
def test_every_op_with_baselines_has_one_on_the_cpu(op):
    assert any("cpu" in b.targets for b in baselines_for(op))


def test_every_implemented_op_has_a_baseline():
    """An entry comes before its baseline, in a change of its own; it claims no target until then."""
    implemented = {name for name in MANIFEST if "implemented" in MANIFEST[name].status.model_dump().values()}
    assert implemented <= set(OPS)


@pytest.mark.parametrize(("op", "name"), EAGER_ON_CPU)
def test_baseline_runs_and_returns_what_the_manifest_declares(op, name):
    entry = MANIFEST[op]
    case = next(iter(entry.cases()))
    workload = make_workload(entry, case.row, case.dtypes, scale="cpu")
    inputs = workload.gen_inputs()
    function = baseline(op, name).make(Case(op, workload.params, inputs, "cpu"))
    result = function(*inputs.values())
    outputs = result if isinstance(result, tuple) else (result,)
    declared = [(tuple(m.shape), m.dtype) for m in workload.binding.outputs.values()]
    assert [(tuple(t.shape), str(t.dtype).removeprefix("torch.")) for t in outputs] == declared


@pytest.mark.parametrize("op", OPS)
def test_names_are_unique_within_an_op(op):
    names = [b.name for b in baselines_for(op)]
    assert len(names) == len(set(names))


def test_digests_tell_baselines_apart_and_hold_still():
    entries = [b for op in ops_with_baselines() for b in baselines_for(op)]
    assert len({b.digest for b in entries}) == len(entries)
    assert [b.digest for b in entries] == [b.digest for b in entries]


def test_compositions_of_ours_are_marked_local():
    assert baseline("RopeNeoxFwdOp", "composition").local
    assert not baseline("RMSNormFwdOp", "torch-eager").local


def test_an_unknown_baseline_is_an_error_that_lists_the_known():
    with pytest.raises(CandidateError, match="torch-eager"):
        baseline("RMSNormFwdOp", "cublas-lt")


def test_a_library_that_is_not_installed_is_missing_by_name():
    running, absent = split_baselines(baselines_for("RMSNormFwdOp"), "cuda", {})
    missing = {c.name for c in absent if c.status is Status.MISSING}
    not_here = {b.name for b in baselines_for("RMSNormFwdOp") if not b.installed}
    assert missing == not_here
    assert {b.name for b in running} == {"torch-eager", "torch-compile", "liger", "flashinfer"} - not_here


def test_baselines_for_another_target_do_not_appear():
    running, absent = split_baselines(baselines_for("GroupedQueryAttentionFwdOp"), "cpu", {})
    assert {b.name for b in running} == {"sdpa-flash", "sdpa-math"}
    assert absent == []


def test_a_rejected_digest_is_not_run():
    entry = baseline("RMSNormFwdOp", "torch-eager")
    book = {
        entry.digest: Certificate(
            op=entry.op, name=entry.name, target="cpu", status="rejected", max_error=9.0
        )
    }
    running, absent = split_baselines(baselines_for(entry.op), "cpu", book)
    assert entry not in running
    assert [(c.name, c.status, c.certified) for c in absent] == [("torch-eager", Status.REJECTED, "no")]


def test_a_certificate_for_another_digest_says_nothing(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(CERTIFICATES)
    book = read_certificates(path, "cpu")
    assert certified(book, "abc") == "yes"
    assert certified(book, "abd") == "unknown"


def test_a_certificate_for_another_target_says_nothing(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(CERTIFICATES)
    assert certified(read_certificates(path, "cuda"), "abc") == "unknown"


@pytest.mark.parametrize("text", ["", "[]", '{"abc": {"status": "fine"}}', '{"abc": 1}'])
def test_a_malformed_certificate_file_is_refused(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(CertificateError, match=r"c\.json"):
        read_certificates(path, "cpu")


def test_a_binary_certificate_file_is_refused(tmp_path):
    path = tmp_path / "c.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CertificateError, match=r"c\.json: not a certificate file"):
        read_certificates(path, "cpu")


def test_every_row_is_compiled_however_many_came_before():
    """With room for one program per code object, the second shape of a function would run eagerly."""
    programs = []

    def backend(graph, examples):
        programs.append(graph)
        return graph.forward

    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=False):
        torch_compile = torch.compile
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "compile", partial(torch_compile, backend=backend))
            for size in (3, 4, 5):
                make = baseline("ExpFwdOp", "torch-compile").make
                make(Case("ExpFwdOp", {}, {}, "cpu"))(torch.ones(size))
    assert len(programs) == 3


def test_a_compiled_baseline_that_would_run_eagerly_is_an_error():
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
            function = baseline("ExpFwdOp", "torch-compile").make(Case("ExpFwdOp", {}, {}, "cpu"))
        function(torch.ones(3))
        with pytest.raises(Exception, match="fail_on_recompile_limit_hit"):
            function(torch.ones(4))


def test_paged_gather_reads_the_pages_that_the_table_names():
    """A permuted table over permuted pages must give what the identity gives: nothing is compared with a
    reference."""
    op = "GroupedQueryAttentionDecodePagedWithKVCacheFwdOp"
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(*s, generator=g) for s in ((2, 4, 8), (32, 2, 8), (32, 2, 8)))
    lengths = torch.tensor([5, 8], dtype=torch.int32)
    params = {"page_size": 4, "sm_scale": None, "softcap": None}
    straight = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32)
    order = torch.tensor([5, 3, 0, 7, 1, 2, 4, 6])
    rows = (order[:, None] * 4 + torch.arange(4)).flatten()
    moved_k, moved_v = torch.empty_like(k), torch.empty_like(v)
    moved_k[rows], moved_v[rows] = k, v
    call = baseline(op, "composition").make(Case(op, params, {"q": q}, "cpu"))
    plain = call(q, k, v, lengths, straight)
    moved = call(q, moved_k, moved_v, lengths, order[straight.long()].int())
    assert torch.equal(plain, moved)


def test_an_op_without_inputs_is_called_with_the_target_as_default_device(monkeypatch):
    monkeypatch.setattr("tileops_kernels.ops.get_op", lambda name: lambda **params: partial(torch.empty, 0))
    call = resolve("tileops", Case("AlibiFwdOp", {}, {}, "meta"))
    assert call().device.type == "meta"
    assert torch.empty(0).device.type == "cpu"
