"""Results files: streamed, resumable, tolerant of a torn last line and of nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from bench_builders import make_header, make_row

from tileops_bench.errors import ResultsError, StorageError
from tileops_bench.records import json_schema
from tileops_bench.store import ResultsWriter, merged_text, read_results


def write_file(path, *records):
    with ResultsWriter(path) as writer:
        for record in records:
            writer.append(record)


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "r.jsonl"
    header, row = make_header(("A/x",)), make_row("A/x")
    write_file(path, header, row)
    results = read_results(path)
    assert results.headers == (header,)
    assert results.rows == (row,)
    assert results.notices == ()


def test_the_latest_record_of_a_row_counts(tmp_path):
    path = tmp_path / "r.jsonl"
    write_file(path, make_header(), make_row("A/x", own=1000.0), make_row("A/x", own=900.0))
    assert [r.candidate.summary.median for r in read_results(path).rows] == [pytest.approx(900, rel=0.01)]


def test_a_truncated_last_line_is_named_and_left_out(tmp_path):
    path = tmp_path / "r.jsonl"
    write_file(path, make_header(), make_row("A/x"), make_row("B/x"))
    path.write_bytes(path.read_bytes()[:-200])
    results = read_results(path)
    assert [row.id for row in results.rows] == ["A/x"]
    assert "r.jsonl:3" in results.notices[0]
    assert "truncated" in results.notices[0]


def test_appending_after_a_truncated_line_replaces_it(tmp_path):
    path = tmp_path / "r.jsonl"
    write_file(path, make_header(), make_row("A/x"), make_row("B/x"))
    path.write_bytes(path.read_bytes()[:-200])
    with ResultsWriter(path, read_results(path).complete_bytes) as writer:
        writer.append(make_row("C/x"))
    assert [row.id for row in read_results(path).rows] == ["A/x", "C/x"]


def test_damage_before_the_last_line_is_an_error_with_its_line(tmp_path):
    path = tmp_path / "r.jsonl"
    write_file(path, make_header(), make_row("A/x"), make_row("B/x"))
    lines = path.read_text().splitlines()
    lines[1] = lines[1].replace('"verdict":"FAST"', '"verdict":"BEST"')
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ResultsError, match=r"r\.jsonl:2: .*verdict"):
        read_results(path)


@pytest.mark.parametrize("text", ["", "{}\n", "hello\n", '{"type": "header", "schema": "other/9"}\n'])
def test_a_file_of_another_kind_is_refused(tmp_path, text):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(ResultsError, match=r"r\.jsonl"):
        read_results(path)


def test_rows_without_a_header_are_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    write_file(path, make_row("A/x"))
    with pytest.raises(ResultsError, match="no header"):
        read_results(path)


def test_merged_runs_are_one_results_file(tmp_path):
    parts = []
    for name, hour, own in (("b", 13, 900.0), ("a", 12, 1000.0)):
        path = tmp_path / f"{name}.jsonl"
        declared = (f"{name}/x", "both/x", f"{name}/lost")
        header = make_header(declared).model_copy(update={"created": f"2026-11-30T{hour}:00:00+00:00"})
        write_file(path, header, make_row(f"{name}/x"), make_row("both/x", own=own))
        parts.append(read_results(path))
    (tmp_path / "all.jsonl").write_text(merged_text(parts))
    found = read_results(tmp_path / "all.jsonl")
    assert [row.id for row in found.rows] == ["a/x", "both/x", "b/x"]
    assert found.rows[1].candidate.summary.median == pytest.approx(900, rel=0.01)
    assert found.missing == ("a/lost", "b/lost")
    assert found.header.created == "2026-11-30T13:00:00+00:00"


@pytest.mark.parametrize("other", [{"device": "Other"}, {"target": "cuda"}, {"timer": "cupti"}])
def test_runs_that_do_not_compare_are_not_merged(tmp_path, other):
    parts = []
    for name, conditions in (("a", {}), ("b", other)):
        write_file(tmp_path / f"{name}.jsonl", make_header((), **conditions))
        parts.append(read_results(tmp_path / f"{name}.jsonl"))
    with pytest.raises(ResultsError, match=next(iter(other))):
        merged_text(parts)


def test_a_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(ResultsError, match="No such file"):
        read_results(tmp_path / "absent.jsonl")


def test_a_full_disk_keeps_finished_rows_and_says_how_many(tmp_path):
    """A file-size limit fails a write the way a full disk does: in the middle of a line."""
    script = textwrap.dedent(
        f"""
        import resource, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from bench_builders import make_header, make_row
        from tileops_bench.errors import StorageError
        from tileops_bench.store import ResultsWriter
        writer = ResultsWriter({str(tmp_path / "r.jsonl")!r})
        writer.append(make_header(("A/x", "B/x")))
        writer.append(make_row("A/x"))
        size = writer.path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
        try:
            writer.append(make_row("B/x"))
        except StorageError as error:
            print(error)
            sys.exit(error.exit_code)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "1 finished rows of this run are kept" in done.stdout
    results = read_results(tmp_path / "r.jsonl")
    assert [row.id for row in results.rows] == ["A/x"]
    assert results.notices == ()
    assert results.missing == ("B/x",)


def test_a_device_that_is_full_is_a_storage_error():
    with ResultsWriter("/dev/full") as writer, pytest.raises(StorageError, match="No space left"):
        writer.append(make_header())


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        ResultsWriter(tmp_path / "file" / "r.jsonl")


def test_schema_describes_both_kinds_of_line():
    schema = json_schema()
    assert schema["title"] == "tileops-bench/1"
    assert set(schema["discriminator"]["mapping"]) == {"header", "row"}
    json.dumps(schema)
