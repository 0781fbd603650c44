"""Who takes part in a row, and what their raw samples amount to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tileops_bench.baselines import Baseline
from tileops_bench.certificate import Certificate, certified
from tileops_bench.protocol import RawContender, Spec
from tileops_bench.provenance import provenance_problem
from tileops_bench.records import Code, Contender, Problem, Status
from tileops_bench.resolve import BASELINE_PREFIX, OWN
from tileops_bench.stats import Summary, summarise

CANDIDATE = "candidate"


def candidate_spec(ref: str) -> Spec:
    """The candidate as a contender."""
    return Spec(name=CANDIDATE, ref=ref, role="candidate")


def baseline_spec(entry: Baseline) -> Spec:
    """A baseline of the table as a contender."""
    return Spec(name=entry.name, ref=BASELINE_PREFIX + entry.name, role="baseline")


def split_baselines(
    entries: Sequence[Baseline],
    target: str,
    certificates: Mapping[str, Certificate],
    only: Collection[str] | None = None,
) -> tuple[list[Baseline], list[Contender]]:
    """Baselines to run, and records of those that will not run, each with the reason.

    Baselines for another target are left out altogether.
    """
    running: list[Baseline] = []
    absent: list[Contender] = []
    for entry in entries:
        if target not in entry.targets:
            continue
        known = certified(certificates, entry.digest)
        if only is not None and entry.name not in only:
            absent.append(_absent(entry, Status.EXCLUDED, "left out by the caller", known))
        elif not entry.installed:
            absent.append(_absent(entry, Status.MISSING, f"{entry.dist} is not installed", known))
        elif known == "no":
            absent.append(_absent(entry, Status.REJECTED, "a certificate rejects this digest", known))
        else:
            running.append(entry)
    return running, absent


def _absent(entry: Baseline, status: Status, detail: str, known: str) -> Contender:
    return Contender(
        name=entry.name,
        status=status,
        detail=detail,
        library=entry.library,
        digest=entry.digest,
        certified=known,
    )


def failed(spec: Spec, detail: str, library: str = "", digest: str = "") -> Contender:
    """A contender that broke before it gave any sample."""
    return Contender(name=spec.name, status=Status.FAILED, detail=detail, library=library, digest=digest)


def candidate_record(raw: RawContender, ref: str, digest: str, deterministic: bool) -> Contender:
    """A candidate's record; outputs of timed calls must equal those of untimed ones, bit by bit."""
    changed = [kept for kept in raw.outputs if kept.timed != kept.untimed] if deterministic else []
    extra: tuple[Problem, ...] = ()
    if changed:
        detail = (
            f"{len(changed)} of {len(raw.outputs)} timed calls gave other bits than untimed ones: "
            f"{changed[0].timed} timed, {changed[0].untimed} untimed"
        )
        extra = (Problem(code=Code.OUTPUT_CHANGED, detail=detail),)
    # A foreign candidate may be made of anything; the op of tileops-kernels may not.
    delegated = provenance_problem(raw.kernel_names) if ref == OWN else None
    if delegated is not None:
        extra = (*extra, delegated)
    compared = len(raw.outputs) if deterministic else 0
    return _record(raw, library=ref, digest=digest, extra=extra, compared=compared)


def baseline_record(raw: RawContender, entry: Baseline, certificates: Mapping[str, Certificate]) -> Contender:
    """A baseline's record. Its outputs may differ between calls: a library may use atomics, and nobody gains
    by it."""
    known = certified(certificates, entry.digest)
    return _record(raw, entry.library, entry.digest, (), len(raw.outputs), known)


def _record(
    raw: RawContender,
    library: str,
    digest: str,
    extra: tuple[Problem, ...],
    compared: int,
    known: str = "unknown",
) -> Contender:
    status, detail = raw.status, raw.detail
    try:
        summary, host, span = (_summary(values) for values in (raw.samples, raw.host, raw.spans))
    except ValueError as error:
        status, detail, summary, host, span = Status.FAILED, f"impossible times: {error}", None, None, None
    if status is Status.OK and summary is None and not raw.problems:
        status, detail = Status.FAILED, "no samples"
    return Contender(
        name=raw.name,
        status=status,
        detail=detail,
        library=library,
        digest=digest,
        certified=known,
        summary=summary,
        samples=raw.samples,
        host=host,
        span=span,
        kernels_per_call=raw.kernels_per_call,
        first_call_ns=raw.first_call_ns,
        peak_bytes=raw.peak_bytes,
        outputs_compared=compared,
        output_varies=_varies(raw),
        problems=(*raw.problems, *extra),
    )


def _varies(raw: RawContender) -> bool | None:
    """Whether different inputs gave different outputs; far ones count where near ones gave the same."""
    if len({kept.inputs for kept in raw.outputs}) < 2:
        return None
    seen = {kept.timed for kept in raw.outputs} | ({raw.far_output} if raw.far_output else set())
    return len(seen) > 1


def _summary(values: tuple[int, ...]) -> Summary | None:
    return summarise(values) if values else None
