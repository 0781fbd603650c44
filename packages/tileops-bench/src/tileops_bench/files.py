"""Whole files: replaced in one step, so that a full disk costs the new content and never the old."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tileops_bench.errors import StorageError

__all__ = ["replace_file"]


def replace_file(path: str | Path, text: str) -> None:
    """Make `text` the content of `path`, creating its folder where needed.

    What is no regular file (a device, a pipe) is written to; a symbolic link stays one.

    Raises:
        StorageError: the file system refuses; what was at `path` before is still there.
    """
    path = Path(path)
    partial: Path | None = None
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        final = path.resolve()
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=final.parent, prefix=f".{final.name}.", delete=False, encoding="utf-8"
        ) as file:
            partial = Path(file.name)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.chmod(0o644)
        partial.replace(final)
    except OSError as error:
        if partial is not None:
            partial.unlink(missing_ok=True)
        raise StorageError(f"{path}: cannot be written: {error.strerror or error}") from error
