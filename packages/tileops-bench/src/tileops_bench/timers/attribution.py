"""Which device activity belongs to which timed call. Pure: no CUPTI, no device, so that it can be tested
anywhere.

CUPTI gives one record per kernel, copy or fill with a correlation id, and one external-correlation record per
API call that ties its correlation id to the id pushed on the launching thread at that moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tileops_bench.records import Code, Problem
from tileops_bench.timers import Measurement, Timings

PREPARE_ID = 1  # pushed under everything that is not timed: cache flush, refills, snapshots
FIRST_TOKEN_ID = 2


@dataclass(frozen=True)
class Activity:
    """One kernel, copy or fill on the device, in device nanoseconds."""

    correlation_id: int
    start: int
    end: int
    name: str


def attribute(
    activities: Iterable[Activity], external: Mapping[int, int], tokens: Sequence[int], dropped: int = 0
) -> Timings:
    """Sum device activity per timed call.

    The time of a call is the length of the union of its activities, so that overlap counts once and launch
    gaps (which measure the host, and which a composition of several kernels would suffer from most) do not
    count at all; the span with the gaps is kept beside it.

    Args:
        activities: everything the device did in the session.
        external: correlation id of an API call → external id.
        tokens: the timed calls; token `t` was pushed as external id `t + FIRST_TOKEN_ID`.
        dropped: records that CUPTI says it lost.

    Returns:
        Timings whose problems name each call without any activity, every activity that no call owns, and lost
        records.
    """
    owned: dict[int, list[Activity]] = defaultdict(list)
    strays: list[Activity] = []
    known = {token + FIRST_TOKEN_ID for token in tokens}
    for activity in activities:
        owner = external.get(activity.correlation_id)
        if owner in known:
            owned[owner - FIRST_TOKEN_ID].append(activity)
        elif owner != PREPARE_ID:
            strays.append(activity)
    calls = {token: _measure(owned[token]) for token in tokens if owned[token]}
    return Timings(calls, tuple(_problems(tokens, calls, strays, dropped)))


def _measure(activities: list[Activity]) -> Measurement:
    ordered = sorted(activities, key=lambda a: a.start)
    busy, reach = 0, ordered[0].start
    for a in ordered:
        busy += max(0, a.end - max(a.start, reach))
        reach = max(reach, a.end)
    return Measurement(
        ns=max(1, busy),
        span_ns=reach - ordered[0].start,
        kernels=len(ordered),
        names=frozenset(a.name for a in ordered),
    )


def _problems(
    tokens: Sequence[int], calls: Mapping[int, Measurement], strays: Sequence[Activity], dropped: int
) -> Iterable[tuple[int | None, Problem]]:
    for token in tokens:
        if token not in calls:
            yield token, Problem(code=Code.NO_KERNELS_SEEN, detail="a timed call ran nothing on the device")
    if strays:
        names = ", ".join(sorted({a.name for a in strays})[:3])
        detail = f"{len(strays)} device activities belong to no call of the measuring thread: {names}"
        yield None, Problem(code=Code.UNATTRIBUTED_RECORDS, detail=detail)
    if dropped:
        yield None, Problem(code=Code.LOST_RECORDS, detail=f"CUPTI dropped {dropped} records")
