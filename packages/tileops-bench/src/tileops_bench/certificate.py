"""Baseline certificates: verdicts made elsewhere, by somebody who may see both baselines and oracles, read as
data.

Format: a JSON object from baseline digest to `{"op", "name", "status": "certified" | "rejected",
"max_error"}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from tileops_bench.errors import CertificateError
from tileops_bench.records import Record


class Certificate(Record):
    """What is known about one baseline."""

    op: str
    name: str
    status: Literal["certified", "rejected"]
    max_error: float | None = None


_FILE = TypeAdapter(dict[str, Certificate])


def read_certificates(path: str | Path | None) -> Mapping[str, Certificate]:
    """Certificates by digest; none for no path.

    Raises:
        CertificateError: the file is missing or not of that format.
    """
    if path is None:
        return {}
    try:
        return _FILE.validate_python(json.loads(Path(path).read_text()))
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, not JSON, not of the model
        raise CertificateError(f"{path}: not a certificate file: {str(error).splitlines()[0]}") from error


def certified(certificates: Mapping[str, Certificate], digest: str) -> Literal["yes", "no", "unknown"]:
    """What the certificates say about a digest."""
    found = certificates.get(digest)
    if found is None:
        return "unknown"
    return "yes" if found.status == "certified" else "no"
