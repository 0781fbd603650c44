"""Charts as inline SVG. Positions are percentages, so that a chart fills any width and its strokes and text
stay."""

from __future__ import annotations

import itertools
import math
from html import escape

from tileops_bench.report.document import Bars, Dots, Line

_BAR_HEIGHT = 18
_DOT_HEIGHT = 22
_LINE_HEIGHT = 120
_MARGIN = 2.0  # percent on either side


def bars(chart: Bars) -> str:
    """Horizontal bars; each label stands above its bar, so that long names fit a phone."""
    largest = max((chart.full or 0.0, *(max(b.value, b.high or 0.0) for b in chart.bars))) or 1.0
    limit = ""
    if chart.full is not None:
        at = f"{100.0 * chart.full / largest:.2f}%"
        limit = f'<line class="one" x1="{at}" x2="{at}" y1="0" y2="100%"/>'
    parts = [_title(chart.title)]
    for bar in chart.bars:
        width = 100.0 * bar.value / largest
        marks = f'{limit}<rect class="bar {bar.tone}" x="0" y="3" height="12" width="{width:.2f}%" rx="2"/>'
        if bar.low is not None and bar.high is not None:
            low, high = 100.0 * bar.low / largest, 100.0 * bar.high / largest
            marks += f'<line class="whisker" x1="{low:.2f}%" x2="{high:.2f}%" y1="9" y2="9"/>'
        parts.append(_labelled(bar.label, bar.text, marks, _BAR_HEIGHT))
    if chart.note:
        parts.append(f'<p class="note">{escape(chart.note)}</p>')
    return f'<figure class="chart">{"".join(parts)}</figure>'


def dots(chart: Dots) -> str:
    """Ratios with intervals around a line at 1, on a logarithmic scale shared by all of them."""
    reach = max((abs(math.log(v)) for d in chart.dots for v in (d.value, d.low, d.high)), default=0.0)
    reach = max(reach * 1.05, math.log(1.25))

    def x(value: float) -> float:
        return _MARGIN + (100.0 - 2 * _MARGIN) * (math.log(value) / reach + 1.0) / 2.0

    ticks = _ticks(math.exp(reach))
    grid = "".join(
        f'<line class="{"one" if t == 1 else "grid"}" x1="{x(t):.2f}%" x2="{x(t):.2f}%" y1="0" y2="100%"/>'
        for t in ticks
    )
    rows = []
    for dot in chart.dots:
        marks = grid + (
            f'<line class="interval {dot.tone}" x1="{x(dot.low):.2f}%" x2="{x(dot.high):.2f}%" '
            f'y1="11" y2="11"/>'
            f'<circle class="dot {dot.tone}" cx="{x(dot.value):.2f}%" cy="11" r="5"/>'
        )
        rows.append(_labelled(dot.label, dot.text, marks, _DOT_HEIGHT))
    axis = "".join(
        f'<text class="tick" x="{x(t):.2f}%" y="12" text-anchor="middle">{t:g}x</text>' for t in ticks
    )
    scale = f'<svg class="axis" width="100%" height="16" aria-hidden="true">{axis}</svg>'
    ends = f'<p class="ends"><span>{escape(chart.left)}</span><span>{escape(chart.right)}</span></p>'
    return f'<figure class="chart wide">{_title(chart.title)}{"".join(rows)}{scale}{ends}</figure>'


def _ticks(reach: float) -> list[float]:
    """Ratios to mark: 1 and a few on either side, fewer as the scale grows."""
    limits = ((1.5, (1.2,)), (3.0, (1.5, 2.0)), (12.0, (2.0, 5.0)), (math.inf, (10.0, 100.0)))
    steps = next(steps for limit, steps in limits if reach < limit)
    above = [s for s in steps if s <= reach]
    return [round(1 / s, 3) for s in reversed(above)] + [1.0] + above


def line(chart: Line) -> str:
    """A series from zero upwards, with a ring at each change point."""
    top = max(chart.values, default=1.0) * 1.1 or 1.0
    count = max(1, len(chart.values) - 1)
    points = [
        (_MARGIN + (100.0 - 2 * _MARGIN) * i / count, (_LINE_HEIGHT - 8) * (1.0 - v / top) + 4)
        for i, v in enumerate(chart.values)
    ]
    steps = "".join(
        f'<line class="series" x1="{x1:.2f}%" y1="{y1:.1f}" x2="{x2:.2f}%" y2="{y2:.1f}"/>'
        for (x1, y1), (x2, y2) in itertools.pairwise(points)
    )
    marked = "".join(
        f'<circle class="{"change" if i in chart.marks else "point"}" cx="{x:.2f}%" cy="{y:.1f}" '
        f'r="{6 if i in chart.marks else 3}"><title>{escape(chart.labels[i])}</title></circle>'
        for i, (x, y) in enumerate(points)
    )
    svg = f'<svg width="100%" height="{_LINE_HEIGHT}" role="img">{steps}{marked}</svg>'
    return (
        f'<figure class="chart">{_title(chart.title)}{svg}<p class="note">{escape(chart.text)}</p></figure>'
    )


def _title(text: str) -> str:
    return f"<figcaption>{escape(text)}</figcaption>" if text else ""


def _labelled(label: str, value: str, marks: str, height: int) -> str:
    spoken = escape(f"{label}: {value}", quote=True)
    return (
        f'<div class="item"><div class="label"><span>{escape(label)}</span><b>{escape(value)}</b></div>'
        f'<svg width="100%" height="{height}" role="img" aria-label="{spoken}">{marks}</svg></div>'
    )
