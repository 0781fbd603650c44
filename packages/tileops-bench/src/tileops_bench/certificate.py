"""Baseline certificates: verdicts made elsewhere, by somebody who may see both baselines and oracles, read as
data.

Format: a JSON object from baseline digest to `{"op", "name", "target": "cpu" | "cuda",
"status": "certified" | "rejected", "max_error"}`.
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
    """What is known about one baseline on one target.

    Attributes:
        op: manifest key.
        name: the baseline's, within the op.
        target: where it was judged; a library's CPU and CUDA code are different programs of one digest.
        status: `rejected` means that it computes something else than the op.
        max_error: largest error of any element, as a multiple of what the op's own implementation is allowed
            there (0.5: half of it); None where it is not a number, as for a wrong index or a missing NaN.
    """

    op: str
    name: str
    target: Literal["cpu", "cuda"]
    status: Literal["certified", "rejected"]
    max_error: float | None = None


_FILE = TypeAdapter(dict[str, Certificate])


def read_certificates(path: str | Path | None, target: str) -> Mapping[str, Certificate]:
    """Certificates by digest, of one target; none for no path.

    Raises:
        CertificateError: the file is missing or not of that format.
    """
    if path is None:
        return {}
    try:
        found = _FILE.validate_python(json.loads(Path(path).read_text()))
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:  # not UTF-8, not JSON, not of the model
        raise CertificateError(f"{path}: not a certificate file: {str(error).splitlines()[0]}") from error
    return {digest: certificate for digest, certificate in found.items() if certificate.target == target}


def certified(certificates: Mapping[str, Certificate], digest: str) -> Literal["yes", "no", "unknown"]:
    """What the certificates say about a digest."""
    found = certificates.get(digest)
    if found is None:
        return "unknown"
    return "yes" if found.status == "certified" else "no"
