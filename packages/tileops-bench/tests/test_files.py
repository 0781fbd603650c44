"""Files that are written whole: what was there outlives every failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tileops_bench.errors import StorageError
from tileops_bench.files import replace_file


def test_a_full_disk_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    replace_file(path, "old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"report\.html: cannot be written: No space left on device"):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "report.html", tmp_path):
        with pytest.raises(StorageError, match="cannot be written"):
            replace_file(path, "text")


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        replace_file(path, "text")
        assert os.read(reader, 64) == b"text"
    finally:
        os.close(reader)
    assert path.is_fifo()


def test_a_link_is_written_through(tmp_path: Path) -> None:
    link = tmp_path / "latest.html"
    link.symlink_to(tmp_path / "kept" / "report.html")
    replace_file(link, "text")
    assert link.is_symlink()
    assert (tmp_path / "kept" / "report.html").read_text() == "text"
