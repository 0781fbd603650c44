"""Sections of a report made from benchmark records."""

from __future__ import annotations

from collections.abc import Sequence

from tileops_bench.history import Trend
from tileops_bench.records import Contender, Header, Row, Status
from tileops_bench.report.document import (
    Bar,
    Bars,
    Block,
    Cell,
    Dot,
    Dots,
    Facts,
    Fold,
    Line,
    ReportDocument,
    Section,
    Table,
    Text,
    Tile,
    Tiles,
    Tone,
)
from tileops_bench.report.format import rate_text, size_text, time_text
from tileops_bench.stats import Summary as Sample
from tileops_bench.stats import Verdict
from tileops_bench.store import Results
from tileops_bench.summary import Summary, summarise_results

TONES: dict[Verdict, Tone] = {
    Verdict.FAST: "good",
    Verdict.SAME: "even",
    Verdict.SLOW: "bad",
    Verdict.AMBIGUOUS: "unsure",
    Verdict.INVALID: "void",
}
READING = (
    "Candidate and baselines are called in turn in one process, in rotating order, with cold caches and "
    "changing inputs. A ratio is the strongest valid baseline's median over the candidate's: above 1 the "
    "candidate is faster.",
    "FAST and SLOW: the intervals from minimum to third quartile are at least 0.5 % apart and the bootstrap "
    "interval of the ratio excludes 1. SAME: they overlap and that interval lies within 5 % of 1. AMBIGUOUS: "
    "the samples do not tell. INVALID: a check failed, with its code. No sample is ever dropped.",
)


def document_of(
    results: Results, title: str = "tileops benchmark", before: Sequence[Section] = ()
) -> ReportDocument:
    """The report of one results file, with sections of the caller's in front."""
    header = results.header
    subtitle = f"{header.conditions.device} · {header.conditions.timer} · {header.created}"
    return ReportDocument(
        title=title,
        subtitle=subtitle,
        sections=(*before, summary_section(summarise_results(results)), *sections_of(header, results.rows)),
    )


def sections_of(header: Header, rows: Sequence[Row]) -> tuple[Section, ...]:
    """Rows and conditions, without the summary."""
    return (
        *([ratio_section(rows)] if any(r.comparison for r in rows) else []),
        rows_section(rows),
        details_section(rows),
        conditions_section(header),
        Section(title="How to read this", blocks=(Text(paragraphs=READING),)),
    )


def summary_section(summary: Summary) -> Section:
    """The run in a few numbers."""
    geomean = "–" if summary.geomean is None else f"{summary.geomean:.2f}x"
    invalid = summary.declared - summary.valid
    tiles = [
        Tile(
            label="geometric mean",
            value=geomean,
            note=f"over {summary.valid} of {summary.declared} declared rows",
        ),
        Tile(label="faster", value=str(summary.wins), tone="good"),
        Tile(label="the same", value=str(summary.ties), tone="even"),
        Tile(label="slower", value=str(summary.losses), tone="bad"),
        Tile(label="ambiguous", value=str(summary.ambiguous), tone="unsure"),
        Tile(label="invalid", value=str(invalid), note=", ".join(summary.invalid), tone="void"),
    ]
    blocks: list[Block] = [Tiles(items=tuple(tiles))]
    if summary.worst:
        worst = f"Slowest row: {summary.worst.id}, {summary.worst.speedup:.2f}x of {summary.worst.against}."
        blocks.append(Text(paragraphs=(worst,)))
    if summary.missing_baselines:
        listed = ", ".join(f"{name} ({n} rows)" for name, n in summary.missing_baselines.items())
        blocks.append(Text(paragraphs=(f"Baselines that are not installed here: {listed}.",)))
    counted = ", ".join(f"{count} {word}" for word, count in summary.certificates.items())
    stand = f"{summary.verified} of {summary.rows} rows stand on a verification record."
    blocks.append(Text(paragraphs=(f"Whether baselines compute what the op means: {counted}.", stand)))
    return Section(title="Summary", blocks=tuple(blocks))


def ratio_section(rows: Sequence[Row]) -> Section:
    """All speed-ups on one scale. INVALID rows are not drawn: their ratio means nothing."""
    dots = tuple(
        Dot(
            label=row.id,
            value=row.comparison.speedup,
            low=row.comparison.low,
            high=row.comparison.high,
            text=f"{row.comparison.speedup:.2f}x {row.verdict.value}",
            tone=TONES[row.verdict],
        )
        for row in rows
        if row.comparison is not None and row.verdict is not Verdict.INVALID
    )
    chart = Dots(
        title="Speed-up over the strongest valid baseline, with its 99 % interval",
        dots=dots,
        left="← slower",
        right="faster →",
    )
    return Section(title="Speed-up", blocks=(chart,))


def rows_section(rows: Sequence[Row]) -> Section:
    """One line per row, sortable."""
    columns = (
        "row",
        "verdict",
        "speed-up",
        "candidate",
        "strongest baseline",
        "its time",
        "rate",
        "efficiency",
        "n",
    )
    return Section(title="Rows", blocks=(Table(columns=columns, rows=tuple(_row_cells(r) for r in rows)),))


def _row_cells(row: Row) -> tuple[Cell | str, ...]:
    valid = row.comparison is not None and row.verdict is not Verdict.INVALID
    own = row.candidate.summary
    theirs = next((b.summary for b in row.baselines if b.name == row.against), None)
    return (
        row.id,
        Cell(text=row.verdict.value, tone=TONES[row.verdict]),
        _number(f"{row.comparison.speedup:.3f}x", row.comparison.speedup) if valid else "–",
        _time(own),
        row.against or "–",
        _time(theirs),
        _rate(row, own),
        _number(f"{row.efficiency:.0%} of {row.bound}", row.efficiency)
        if row.efficiency is not None
        else "–",
        _number(str(own.n), own.n) if own else "–",
    )


def _number(text: str, value: float) -> Cell:
    return Cell(text=text, sort=float(value))


def _time(sample: Sample | None) -> Cell | str:
    return _number(time_text(sample.median), sample.median) if sample else "–"


def _rate(row: Row, sample: Sample | None) -> Cell | str:
    """The rate of whatever the row has more of per byte and operation: bytes unless it is a matrix-like
    op."""
    if sample is None or not row.bytes:
        return "–"
    seconds = sample.median / 1e9
    if row.flops > 32 * row.bytes:
        return _number(rate_text(row.flops / seconds, "FLOP/s"), row.flops / seconds)
    return _number(rate_text(row.bytes / seconds, "B/s"), row.bytes / seconds)


def details_section(rows: Sequence[Row]) -> Section:
    """Every contender of every row, behind a heading each; the first and the invalid ones are open."""
    folds = tuple(
        Fold(
            title=row.id,
            tag=row.verdict.value,
            tone=TONES[row.verdict],
            open=index == 0 or row.verdict is Verdict.INVALID,
            blocks=_detail(row),
        )
        for index, row in enumerate(rows)
    )
    return Section(title="Contenders", blocks=folds)


def _detail(row: Row) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if row.problems:
        cells = tuple((Cell(text=p.code.value, tone="void"), p.detail) for p in row.problems)
        blocks.append(Table(columns=("reason", "detail"), rows=cells))
    everyone = (row.candidate, *row.baselines)
    timed = [c for c in everyone if c.summary is not None]
    if timed:
        blocks.append(
            Bars(
                title="Median time, with minimum to third quartile",
                bars=tuple(_bar(c, row) for c in sorted(timed, key=lambda c: c.summary.median)),
                note=f"inputs: {', '.join(f'{n} {t}' for n, t in row.inputs.items())}. {row.floor_note}",
            )
        )
    blocks.append(_contender_table(everyone))
    return tuple(blocks)


def _bar(contender: Contender, row: Row) -> Bar:
    s = contender.summary
    own = contender is row.candidate
    return Bar(
        label=f"{contender.name} ({contender.library})" if own else contender.name,
        value=s.median,
        text=time_text(s.median),
        low=s.min,
        high=s.q3,
        tone=TONES[row.verdict] if own else "plain",
    )


def _contender_table(everyone: Sequence[Contender]) -> Table:
    columns = (
        "contender",
        "state",
        "min",
        "median",
        "q3",
        "p99",
        "n",
        "host",
        "first call",
        "extra memory",
        "certified",
    )
    return Table(columns=columns, rows=tuple(_contender_cells(c) for c in everyone))


def _contender_cells(c: Contender) -> tuple[Cell | str, ...]:
    clean = c.status in (Status.OK, Status.MISSING, Status.UNSUPPORTED, Status.EXCLUDED) and not c.problems
    state = Cell(text=_state(c), tone="plain" if clean else "void")
    s = c.summary
    figures = (s.min, s.median, s.q3, s.p99) if s else ()
    modes = (
        f" in 2 modes: {', '.join(f'{m.share:.0%} at {time_text(m.median)}' for m in s.modes)}"
        if s and s.modes
        else ""
    )
    return (
        c.name,
        state,
        *(_number(time_text(v), v) for v in figures),
        *("–" for _ in range(4 - len(figures))),
        _number(f"{s.n}{modes}", s.n) if s else "–",
        _time(c.host),
        _number(time_text(c.first_call_ns), c.first_call_ns) if c.first_call_ns else "–",
        _number(size_text(c.peak_bytes), c.peak_bytes) if c.peak_bytes is not None else "–",
        c.certified,
    )


def _state(c: Contender) -> str:
    said = f"{c.status.value}: {c.detail}" if c.detail else c.status.value
    return "; ".join(p.code.value for p in c.problems) or said


def conditions_section(header: Header) -> Section:
    """Machine, clocks, driver and versions."""
    c = header.conditions
    facts = [
        ("device", c.device),
        ("timer", c.timer),
        (
            "threads",
            f"{c.threads} on CPUs {', '.join(map(str, c.affinity))}" if c.target == "cpu" else str(c.threads),
        ),
        ("cache scrub", size_text(c.cache_scrub_bytes)),
        ("driver", c.driver or "–"),
        ("platform", c.platform),
        ("python", c.python),
        *((f"clock {k}", v) for k, v in c.clocks.items()),
        *c.versions.items(),
        ("candidate", header.candidate),
    ]
    if header.calibration:
        facts.append(("measured copy rate", rate_text(header.calibration["copy_rate"], "B/s")))
        facts.append(("calibrated", str(header.calibration["created"])))
    return Section(title="Conditions", blocks=(Facts(items=tuple(facts)),))


def history_document(trends: Sequence[Trend], notes: Sequence[str]) -> ReportDocument:
    """A page of trends, one chart per row."""
    charts = tuple(
        Line(
            title=t.id,
            values=t.medians,
            labels=tuple(f"{when}: {time_text(v)}" for when, v in zip(t.created, t.medians, strict=True)),
            marks=t.change_points,
            text=_trend_text(t),
        )
        for t in trends
    )
    sections = [Section(title="Medians over time", blocks=charts)]
    if notes:
        sections.append(Section(title="Left out", blocks=(Text(paragraphs=tuple(notes)),)))
    return ReportDocument(title="tileops benchmark history", sections=tuple(sections))


def _trend_text(t: Trend) -> str:
    if t.against_last is None:
        return f"{time_text(t.medians[-1])}, one run"
    return (
        f"now {time_text(t.medians[-1])}; {t.against_last:.2f}x of the last run, "
        f"{t.against_best:.2f}x of the best; {len(t.change_points)} change points"
    )
