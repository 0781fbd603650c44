"""From a document to one HTML file: style and script inline, no network, nothing that a reader must
install."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib.resources import files
from typing import Any

from tileops_bench.report import charts
from tileops_bench.report.document import (
    Bars,
    Cell,
    Code,
    Dots,
    Facts,
    Fold,
    Line,
    ReportDocument,
    Section,
    Table,
    Text,
    Tiles,
)

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(document: ReportDocument) -> str:
    """The document as one self-contained HTML page.

    >>> page = render(ReportDocument(title="t", sections=(Section(title="s", blocks=()),)))
    >>> page.startswith("<!doctype html>"), "://" in page
    (True, False)
    """
    here = files("tileops_bench.report")
    style = here.joinpath("style.css").read_text()
    script = here.joinpath("table.js").read_text()
    subtitle = f'<p class="subtitle">{escape(document.subtitle)}</p>' if document.subtitle else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(document.title)}</title><style>{style}</style></head><body>"
        f"<header><div><h1>{escape(document.title)}</h1>{subtitle}</div>"
        '<button id="theme" type="button" aria-label="Switch between light and dark">◐</button></header>'
        f"<nav>{_contents(document.sections)}</nav><main>"
        f"{''.join(_section(i, s) for i, s in enumerate(document.sections))}</main>"
        f"<script>{script}</script></body></html>\n"
    )


def _contents(sections: tuple[Section, ...]) -> str:
    return "".join(f'<a href="#s{i}">{escape(s.title)}</a>' for i, s in enumerate(sections))


def _section(index: int, section: Section) -> str:
    return f'<section id="s{index}"><h2>{escape(section.title)}</h2>{_blocks(section.blocks)}</section>'


def _blocks(blocks: tuple[Any, ...]) -> str:
    return "".join(_RENDERERS[type(block)](block) for block in blocks)


def _tiles(block: Tiles) -> str:
    items = "".join(
        f'<div class="tile {t.tone}"><b>{escape(t.value)}</b><span>{escape(t.label)}</span>'
        f"{f'<small>{escape(t.note)}</small>' if t.note else ''}</div>"
        for t in block.items
    )
    return f'<div class="tiles">{items}</div>'


def _text(block: Text) -> str:
    return "".join(f"<p>{escape(p)}</p>" for p in block.paragraphs)


def _code(block: Code) -> str:
    caption = f"<figcaption>{escape(block.caption)}</figcaption>" if block.caption else ""
    return f'<figure class="code">{caption}<pre>{escape(block.text)}</pre></figure>'


def _facts(block: Facts) -> str:
    return f'<dl class="facts">{"".join(_fact(*item) for item in block.items)}</dl>'


def _fact(name: str, value: str) -> str:
    return f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"


def _table(block: Table) -> str:
    head = "".join(_heading(block, index, name) for index, name in enumerate(block.columns))
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in block.rows)
    caption = f"<caption>{escape(block.caption)}</caption>" if block.caption else ""
    return (
        f'<div class="scroll"><table class="sortable">{caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _heading(block: Table, index: int, name: str) -> str:
    """A column heading stands where its cells stand: on the right for numbers."""
    cells = [row[index] for row in block.rows]
    numeric = any(isinstance(cell, Cell) and cell.sort is not None for cell in cells)
    side = ' class="num"' if numeric else ""
    return f'<th scope="col"{side}><button type="button">{escape(name)}</button></th>'


def _cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    number = f' class="num" data-sort="{cell.sort!r}"' if cell.sort is not None else ""
    text = escape(cell.text)
    inner = text if cell.tone == "plain" else f'<span class="tag {cell.tone}">{text}</span>'
    return f"<td{number}>{inner}</td>"


def _fold(block: Fold) -> str:
    tag = f'<span class="tag {block.tone}">{escape(block.tag)}</span>' if block.tag else ""
    state = " open" if block.open else ""
    return (
        f"<details{state}><summary><span>{escape(block.title)}</span>{tag}</summary>"
        f'<div class="inside">{_blocks(block.blocks)}</div></details>'
    )


_RENDERERS: dict[type[Any], Callable[[Any], str]] = {
    Tiles: _tiles,
    Text: _text,
    Code: _code,
    Facts: _facts,
    Table: _table,
    Bars: charts.bars,
    Dots: charts.dots,
    Line: charts.line,
    Fold: _fold,
}
