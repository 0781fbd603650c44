"""HTML reports: a document as plain data, and one function that turns it into a self-contained page."""

from __future__ import annotations

from tileops_bench.report.document import (
    Bar,
    Bars,
    Cell,
    Code,
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
    read_sections,
)
from tileops_bench.report.page import render
from tileops_bench.report.sections import document_of, history_document, sections_of, summary_section

__all__ = [
    "Bar",
    "Bars",
    "Cell",
    "Code",
    "Dot",
    "Dots",
    "Facts",
    "Fold",
    "Line",
    "ReportDocument",
    "Section",
    "Table",
    "Text",
    "Tile",
    "Tiles",
    "document_of",
    "history_document",
    "read_sections",
    "render",
    "sections_of",
    "summary_section",
]
