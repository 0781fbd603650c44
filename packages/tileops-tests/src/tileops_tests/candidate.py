"""Somebody else's kernel: an object in a Python file, loaded in the worker and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tileops_tests.errors import UsageError


@dataclass(frozen=True)
class Candidate:
    """A callable `fn(*inputs, **params)`; `object` may be dotted. This process never imports the file."""

    path: Path
    object: str

    @classmethod
    def parse(cls, text: str) -> Candidate:
        """Read `FILE:OBJECT`.

        Raises:
            UsageError: no colon, an empty part, a missing file, an object that is not a dotted name.
        """
        file, colon, name = text.rpartition(":")
        if not colon or not file or not name:
            raise UsageError(f"--candidate is {text!r}, expected FILE:OBJECT, such as kernel.py:rms_norm")
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"--candidate names the object {name!r}, expected a dotted Python name")
        path = Path(file).resolve()
        if not path.is_file():
            raise UsageError(f"--candidate names the file {file!r}, which does not exist")
        return cls(path, name)

    def message(self) -> dict[str, str]:
        """As the worker is told."""
        return {"do": "load", "kind": "file", "path": str(self.path), "object": self.object}

    def __str__(self) -> str:
        return f"{self.path.name}:{self.object}"
