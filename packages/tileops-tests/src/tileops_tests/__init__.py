"""The test stage: independent verdicts on operators.

`tileops-tests verify` is the command; `OpVerification` and `run_session` are the same from Python. This
package never imports the implementation: candidates run in a process of their own (`worker.py`).
"""

from __future__ import annotations

from tileops_tests.candidate import Candidate
from tileops_tests.codes import ReasonCode
from tileops_tests.record import Record, read_record
from tileops_tests.session import run_session, select_ops
from tileops_tests.verify import Options, OpVerification

__version__ = "0.1.0"
__all__ = [
    "Candidate",
    "OpVerification",
    "Options",
    "ReasonCode",
    "Record",
    "read_record",
    "run_session",
    "select_ops",
]
