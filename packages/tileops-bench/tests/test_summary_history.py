"""Summaries, comparisons of two runs, trends and their change points."""

from __future__ import annotations

import pytest
from bench_builders import contender, invalid, make_header, make_row
from hypothesis import given
from hypothesis import strategies as st

from tileops_bench.errors import ResultsError
from tileops_bench.history import change_points, compare_runs, read_history
from tileops_bench.records import Code, Problem, Status
from tileops_bench.stats import Verdict
from tileops_bench.store import ResultsWriter, read_results
from tileops_bench.summary import as_json, summarise_results


def results(path, *rows, declared=None, **conditions):
    header = make_header(declared if declared is not None else tuple(r.id for r in rows), **conditions)
    with ResultsWriter(path) as writer:
        for record in (header, *rows):
            writer.append(record)
    return read_results(path)


def test_summary_counts_and_averages_valid_rows_only(tmp_path):
    rows = [
        make_row("A/x", own=1000, other=2000),
        make_row("B/x", own=1000, other=500),
        make_row("C/x", own=1000, other=1000),
        invalid("D/x", Problem(code=Code.BELOW_ROOFLINE, detail="")),
    ]
    s = summarise_results(results(tmp_path / "r.jsonl", *rows))
    assert (s.declared, s.rows, s.valid, s.wins, s.ties, s.losses) == (4, 4, 3, 1, 1, 1)
    assert s.geomean == pytest.approx(1.0, rel=0.01)
    assert s.invalid == {"below_roofline": 1}
    assert (s.worst.id, s.worst.against) == ("B/x", "torch-eager")


def test_an_invalid_row_never_lifts_the_mean(tmp_path):
    absurd = invalid("B/x", Problem(code=Code.OUTPUT_CHANGED, detail="")).model_copy(
        update={"comparison": make_row("B/x", own=10, other=10_000).comparison}
    )
    s = summarise_results(results(tmp_path / "r.jsonl", make_row("A/x", own=1000, other=1100), absurd))
    assert s.geomean == pytest.approx(1.1, rel=0.01)


def test_rows_that_were_declared_and_not_measured_are_counted_by_code(tmp_path):
    s = summarise_results(results(tmp_path / "r.jsonl", make_row("A/x"), declared=("A/x", "B/x", "C/x")))
    assert (s.declared, s.rows) == (3, 1)
    assert s.invalid == {Code.FEWER_ROWS_THAN_DECLARED.value: 2}


def test_no_valid_row_has_no_mean(tmp_path):
    s = summarise_results(
        results(tmp_path / "r.jsonl", invalid("A/x", Problem(code=Code.THROTTLED, detail="")))
    )
    assert s.geomean is None
    assert s.worst is None
    assert as_json(s)["geomean"] is None


def test_each_baseline_is_counted_once_by_what_its_certificate_says(tmp_path):
    others = (
        contender("torch-eager", certified="yes"),
        contender("liger", None, Status.REJECTED, certified="no"),
        contender("torch-compile"),
        contender("flashinfer", None, Status.MISSING),
    )
    rows = (make_row("A/x", baselines=others), make_row("A/y", baselines=others))
    found = summarise_results(results(tmp_path / "r.jsonl", *rows)).certificates
    assert found == {"certified": 1, "rejected": 1, "unknown": 1}


def test_rows_that_stand_on_a_record_are_counted(tmp_path):
    rows = (make_row("A/x").model_copy(update={"verification": "r1"}), make_row("B/x"))
    assert summarise_results(results(tmp_path / "r.jsonl", *rows)).verified == 1


def test_missing_baselines_are_counted_by_name(tmp_path):
    row = make_row("A/x").model_copy(update={"baselines": (contender("liger", None, Status.MISSING),)})
    assert summarise_results(results(tmp_path / "r.jsonl", row)).missing_baselines == {"liger": 1}


def test_compare_names_what_got_slower_faster_new_and_lost(tmp_path):
    old = results(
        tmp_path / "old.jsonl", make_row("A/x", own=1000), make_row("B/x", own=1000), make_row("C/x")
    )
    new = results(
        tmp_path / "new.jsonl", make_row("A/x", own=1200), make_row("B/x", own=800), make_row("D/x")
    )
    changes = {c.id: c for c in compare_runs(old, new)}
    assert changes["A/x"].comparison.verdict is Verdict.SLOW
    assert changes["B/x"].comparison.verdict is Verdict.FAST
    assert (changes["C/x"].kind, changes["D/x"].kind) == ("only-old", "only-new")


def test_compare_does_not_read_invalid_rows_or_changed_entries(tmp_path):
    old = results(
        tmp_path / "old.jsonl", invalid("A/x", Problem(code=Code.THROTTLED, detail="")), make_row("B/x")
    )
    new = results(tmp_path / "new.jsonl", make_row("A/x"), make_row("B/x", digests={"entry": "other"}))
    changes = {c.id: c for c in compare_runs(old, new)}
    assert changes["A/x"].kind == changes["B/x"].kind == "not-comparable"
    assert "INVALID in old" in changes["A/x"].note
    assert "entry changed" in changes["B/x"].note


@pytest.mark.parametrize(
    "conditions", [{"device": "Other"}, {"timer": "cuda-events"}, {"threads": 1}, {"target": "cuda"}]
)
def test_runs_under_other_conditions_are_not_compared(tmp_path, conditions):
    old = results(tmp_path / "old.jsonl", make_row("A/x"))
    new = results(tmp_path / "new.jsonl", make_row("A/x"), **conditions)
    with pytest.raises(ResultsError, match=next(iter(conditions))):
        compare_runs(old, new)


def test_a_lasting_change_is_a_change_point_and_one_odd_run_is_not():
    assert change_points([10, 10.1, 9.9, 10, 12, 12.1, 11.9, 12]) == (4,)
    assert change_points([10, 10.1, 9.9, 14, 10, 10.1, 9.9]) == ()
    assert change_points([10, 10.05, 12, 12.05, 8, 8.05]) == (2, 4)


@given(st.lists(st.floats(min_value=0.99, max_value=1.01), max_size=30))
def test_noise_of_one_percent_has_no_change_points(values):
    assert change_points(values) == ()


@given(st.integers(min_value=2, max_value=10), st.integers(min_value=2, max_value=10))
def test_a_clean_step_is_found_where_it_is(before, after):
    assert change_points([10.0] * before + [13.0] * after) == (before,)


def test_history_orders_runs_by_date_and_leaves_other_devices_out(tmp_path):
    for day, own in ((1, 1000), (2, 1010), (3, 1300), (4, 1310)):
        path = tmp_path / f"{9 - day}.jsonl"
        header = make_header(("A/x",)).model_copy(update={"created": f"2026-11-0{day}T00:00:00+00:00"})
        with ResultsWriter(path) as writer:
            writer.append(header)
            writer.append(make_row("A/x", own=own))
    other = make_header(("A/x",), device="Other").model_copy(update={"created": "2026-11-03T12:00:00+00:00"})
    with ResultsWriter(tmp_path / "0.jsonl") as writer:
        writer.append(other)
        writer.append(make_row("A/x", own=1))
    (trend,), notes = read_history(tmp_path)
    assert [round(m, -1) for m in trend.medians] == [1000, 1010, 1300, 1310]
    assert trend.change_points == (2,)
    assert trend.against_last == pytest.approx(1300 / 1310, rel=0.01)
    assert trend.against_best == pytest.approx(1000 / 1310, rel=0.01)
    assert len(notes) == 1
    assert "Other" in notes[0]


def test_history_of_an_empty_folder_is_an_error(tmp_path):
    with pytest.raises(ResultsError, match="no results file"):
        read_history(tmp_path)
