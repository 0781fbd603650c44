"""Do the tests bite? `hatch run tools:mutation`.

Every mutant of the kernels' tile programs, the comparator, the oracles and the roofline formulas is shown to
the suite that should notice it: a kernel's to its ops' verdicts on CPU, the rest to their package's tests.
Mutants come in a random order that is always the same, area by area in turn, so that what has been judged at
any time is a fair sample. Finished ones are kept in a state file: a run can be interrupted, resumed, limited
(`--minutes`) and split (`--shard 1/8`, `--merge`). Exit status 1 unless `--goal` of those judged are killed,
or argued to be equivalent in `tools/mutants/equivalent.toml`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain, zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # PYTHONSAFEPATH keeps the script's own folder off the path

from mutants.judges import Judge, JudgeError  # noqa: E402
from mutants.make import AREAS, Mutant, make_mutants  # noqa: E402
from mutants.state import key_of, remembered, still_holds, witnesses  # noqa: E402

STATE = ROOT / ".mutation/state.jsonl"
RESULT = ROOT / "docs/results/mutation.json"
EQUIVALENT = ROOT / "tools/mutants/equivalent.toml"
# `unobservable`: no program of any case changes, on CPU or on a GPU. `device`: only a GPU's programs change,
# and they still lower; without one nobody can judge them.
OUTCOMES = ("killed", "equivalent", "survived", "unobservable", "device", "unjudged")
JUDGED = ("killed", "equivalent", "survived")


def in_order(mutants: Iterable[Mutant], seed: int) -> list[Mutant]:
    """From every area in turn, in an order within it that a seed decides: a beginning of it is a sample."""

    def place(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed}:{mutant.id}".encode()).hexdigest()

    by_area: dict[str, list[Mutant]] = {}
    for mutant in sorted(mutants, key=place):
        by_area.setdefault(mutant.area, []).append(mutant)
    turns = zip_longest(*(by_area[area] for area in AREAS if area in by_area))
    return [mutant for mutant in chain.from_iterable(turns) if mutant is not None]


def argued() -> dict[str, dict[str, str]]:
    """Mutants, by id, that somebody has argued to be equivalent: `because`, and `read_by` whom else, if by
    anybody yet.
    """
    rows = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", ())
    return {row["id"]: row for row in rows}


def run(
    mutants: Iterable[Mutant], state: Path, known: dict[str, dict], minutes: float | None
) -> Iterator[dict]:
    """The outcome of each mutant: remembered, or judged now and written down before the next is begun.

    After so many minutes no mutant is begun any more.
    """
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tileops-mutation-")))
        judges: dict[str, Judge] = {}
        state.parent.mkdir(parents=True, exist_ok=True)
        log = stack.enter_context(state.open("a", encoding="utf-8"))
        for mutant in mutants:
            key = key_of(ROOT, mutant)
            row = known.get(key)
            if row is None or not still_holds(ROOT, row):
                if deadline is not None and time.monotonic() > deadline:
                    # A kill that may no longer be one is left out; a survivor is one until it is killed.
                    if row is not None and row["outcome"] not in ("killed", "unjudged"):
                        yield described(mutant, row)
                    continue
                if mutant.area not in judges:
                    judges[mutant.area] = Judge(ROOT, mutant.area, scratch / mutant.area)
                    stack.callback(judges[mutant.area].close)
                started = time.monotonic()
                said = judges[mutant.area].judge(mutant)
                row = {
                    "key": key, "outcome": said.outcome, "detail": said.detail,
                    "by": witnesses(ROOT, mutant, said.outcome, said.by),
                    "seconds": round(time.monotonic() - started, 2),
                }  # fmt: skip
                log.write(json.dumps(row) + "\n")
                log.flush()
                print(f"{said.outcome:12} {row['seconds']:6.1f} s {mutant} ({said.detail})", file=sys.stderr)
            yield described(mutant, row)


def described(mutant: Mutant, row: dict) -> dict:
    """A mutant with its outcome; a survivor is equivalent only where that is argued, and somebody else has
    read it.
    """
    outcome, detail = row["outcome"], row["detail"]
    case = argued().get(mutant.id) if outcome == "survived" else None
    if case is not None and case["read_by"]:
        outcome, detail = "equivalent", case["because"]
    elif case is not None:
        detail = f"argued, but not read by another: {case['because']}"
    return {
        "id": mutant.id, "area": mutant.area, "mutant": str(mutant), "outcome": outcome, "detail": detail
    }  # fmt: skip


def summary(rows: list[dict], total: Counter[str]) -> dict:
    """The figures, with every survivor by name; `of` is how many mutants there are."""
    counts = Counter(row["outcome"] for row in rows)
    areas = {}
    for area in total:
        found = Counter(row["outcome"] for row in rows if row["area"] == area)
        areas[area] = {
            "of": total[area],
            "mutants": found.total(),
            **{name: found[name] for name in OUTCOMES},
        }
    kept = ("id", "area", "mutant", "detail")
    ordered = sorted(rows, key=lambda row: (row["area"], row["mutant"], row["id"]))
    return {
        "schema": "tileops-mutation/2",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "of": total.total(),
        "mutants": len(rows),
        **{name: counts[name] for name in OUTCOMES},
        "areas": areas,
        **{
            f"{name}_mutants": [{k: r[k] for k in kept} for r in ordered if r["outcome"] == name]
            for name in ("survived", "equivalent", "unjudged")
        },
    }


def reaches(found: dict, goal: float) -> bool:
    """Whether enough mutants are killed or argued, of those that could be judged."""
    judged = sum(found[name] for name in JUDGED)
    return judged > 0 and found["killed"] + found["equivalent"] >= goal * judged


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is no shard, expected one such as 2/8")
    return int(index), int(count)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hatch run tools:mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("--area", action="append", choices=AREAS, help="only these (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="the first N mutants of the order")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--shard", type=_shard, default=(1, 1), metavar="I/N", help="every N-th mutant")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no mutant later than this")
    parser.add_argument(
        "--goal", type=float, default=0.95, metavar="SHARE", help="killed or argued, of those judged (0.95)"
    )
    parser.add_argument("--state", type=Path, default=STATE, help="finished mutants; delete it to begin anew")
    parser.add_argument(
        "--merge", type=Path, action="append", default=[], metavar="STATE", help="other state files, to read"
    )
    parser.add_argument("--out", type=Path, help=f"write the figures here (all areas: {RESULT.name})")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--remembered", action="store_true", help="judge none: the figures of what is known")
    parser.add_argument("--list", action="store_true", help="name the mutants and judge none")
    return parser


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # an end, as an interrupt is: judges are ended too
    mutants = make_mutants(ROOT, args.area or AREAS)
    index, count = args.shard
    chosen = in_order(mutants, args.seed)[: args.sample][index - 1 :: count]
    if args.list:
        print("\n".join(f"{mutant.id} {mutant.area:10} {mutant}" for mutant in chosen))
        return 0
    known = remembered([*args.merge, args.state])
    try:
        rows = list(run(chosen, args.state, known, 0.0 if args.remembered else args.minutes))
    except JudgeError as error:
        print(f"mutation: {error}", file=sys.stderr)
        return 2
    found = summary(rows, Counter(mutant.area for mutant in mutants))
    out = args.out or (RESULT if args.area is None and args.shard == (1, 1) else None)
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        figures = ", ".join(f"{found[name]} {name}" for name in OUTCOMES)
        print(f"{found['mutants']} of {found['of']} mutants: {figures}")
    return 0 if reaches(found, args.goal) else 1


if __name__ == "__main__":
    raise SystemExit(main())
