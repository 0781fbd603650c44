"""Judge cheating candidates with tileops-tests; run in its environment. Reads and writes JSON.

    hatch run matrix.tests:python tools/cheats/verdicts.py CASES.json OUT.json

A case names `candidate` (FILE:OBJECT), `op` and `cases` (patterns); the answer has, per case, the status and
the reason codes of its failures. No verdict is made here: that is tileops_tests' to do.
"""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path

from tileops_manifest import load_manifest
from tileops_tests.candidate import Candidate
from tileops_tests.limits import Limits
from tileops_tests.oracles import get_oracle
from tileops_tests.sandbox import build_sandbox
from tileops_tests.verify import Options, OpVerification
from tileops_tests.zygote import Zygote

LIMITS = Limits(run_seconds=30.0, compile_seconds=30.0, memory_bytes=2 << 30)
# A case that hangs is waited for as long as this.
SHORT_SECONDS = 4.0


def judge(case: dict, zygote: Zygote) -> dict:
    limits = LIMITS
    if case.get("hangs"):
        limits = replace(LIMITS, run_seconds=SHORT_SECONDS, compile_seconds=SHORT_SECONDS)
    if "memory_bytes" in case:
        limits = replace(limits, memory_bytes=case["memory_bytes"])
    candidate = Candidate.parse(case["candidate"])
    options = Options(candidate=candidate, only=tuple(case["cases"]), limits=limits)
    op = case["op"]
    record = OpVerification(load_manifest()[op], get_oracle(op), zygote, options).run()
    codes = sorted({str(failure.code) for failure in record.failures})
    message = record.failures[0].message[:200] if record.failures else ""
    return {"status": record.status, "codes": codes, "declared": record.cases.declared, "message": message}


def main(argv: list[str]) -> int:
    cases = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    answers = {}

    def folder(case: dict) -> str:
        return str(Candidate.parse(case["candidate"]).path.parent)

    for _, group in itertools.groupby(sorted(cases, key=folder), key=folder):
        group = list(group)
        with (
            build_sandbox("cpu", candidate=Candidate.parse(group[0]["candidate"]).path) as sandbox,
            Zygote(sandbox, LIMITS) as zygote,
        ):
            answers |= {case["id"]: judge(case, zygote) for case in group}
    Path(argv[1]).write_text(json.dumps(answers), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
