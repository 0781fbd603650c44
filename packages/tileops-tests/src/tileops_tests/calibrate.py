"""What a table of constants must carry: how close right implementations come to the bound, on which device,
when.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileops_tests.errors import UsageError
from tileops_tests.record import Record
from tileops_tests.tolerance import tolerance_digest


def calibration_record(records: Sequence[Record]) -> dict[str, Any]:
    """One entry for `records` in calibration.json, from verification runs of implementations that are known
    to be right.

    Raises:
        UsageError: runs on several devices or targets, under another table than the present one, or an op
        that failed.
    """
    ops = [op for record in records for op in record.ops]
    for what in ("device", "target"):
        values = sorted({getattr(record, what) for record in records})
        if len(values) != 1:
            raise UsageError(f"a calibration needs runs of one {what}, got {', '.join(values) or 'none'}")
    for op in ops:
        if op.status != "passed":
            raise UsageError(f"{op.op} is {op.status}; only implementations that pass can calibrate")
        if op.digests.get("tolerance") != tolerance_digest():
            raise UsageError(f"{op.op} was judged under another table of constants than the present one")
    bounded = [op for op in ops if op.worst is not None]
    if not bounded:
        raise UsageError("no op of these records was judged by a bound")
    worst = max(bounded, key=lambda op: op.worst.ratio)
    return {
        "date": max(record.created for record in records)[:10],
        "device": records[0].device,
        "target": records[0].target,
        "ops": len({op.op for op in bounded}),
        "cases": sum(op.cases.run for op in bounded),
        "observed_maximum_ratio": round(worst.worst.ratio, 4),
        "in": f"{worst.op} {worst.worst.case}",
    }
