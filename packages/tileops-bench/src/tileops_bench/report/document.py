"""A report as plain data: sections of blocks. Whoever has more to show adds sections; nothing here knows
their meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from tileops_bench.errors import ResultsError
from tileops_bench.records import Record

Tone = Literal["plain", "good", "bad", "even", "unsure", "void"]


class Tile(Record):
    """One large number with its label."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"


class Tiles(Record):
    """A row of large numbers."""

    kind: Literal["tiles"] = "tiles"
    items: tuple[Tile, ...]


class Text(Record):
    """Paragraphs of plain text."""

    kind: Literal["text"] = "text"
    paragraphs: tuple[str, ...]


class Code(Record):
    """Preformatted text, for example a manifest entry."""

    kind: Literal["code"] = "code"
    text: str
    caption: str = ""


class Facts(Record):
    """Names and values."""

    kind: Literal["facts"] = "facts"
    items: tuple[tuple[str, str], ...]


class Cell(Record):
    """One table cell. `sort` orders the column by number instead of by text."""

    text: str
    sort: float | None = None
    tone: Tone = "plain"


class Table(Record):
    """A table whose columns can be sorted by clicking on them. A cell may be given as a plain string."""

    kind: Literal["table"] = "table"
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    caption: str = ""


class Bar(Record):
    """One bar from zero to `value`, with a whisker from `low` to `high`."""

    label: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    tone: Tone = "plain"


class Bars(Record):
    """Horizontal bars on one linear scale that starts at zero and reaches at least to `full`, where a line
    stands."""

    kind: Literal["bars"] = "bars"
    title: str
    bars: tuple[Bar, ...]
    full: float | None = None
    note: str = ""


class Dot(Record):
    """One ratio with its interval."""

    label: str
    value: float
    low: float
    high: float
    text: str
    tone: Tone = "plain"


class Dots(Record):
    """Ratios on one logarithmic scale with a line at 1."""

    kind: Literal["dots"] = "dots"
    title: str
    dots: tuple[Dot, ...]
    left: str = ""
    right: str = ""


class Line(Record):
    """A series over time with marked change points."""

    kind: Literal["line"] = "line"
    title: str
    values: tuple[float, ...]
    labels: tuple[str, ...]
    marks: tuple[int, ...] = ()
    text: str = ""


class Fold(Record):
    """Blocks behind a heading that opens."""

    kind: Literal["fold"] = "fold"
    title: str
    tag: str = ""
    tone: Tone = "plain"
    open: bool = False
    blocks: tuple[Block, ...]


Block = Annotated[
    Tiles | Text | Code | Facts | Table | Bars | Dots | Line | Fold, Field(discriminator="kind")
]
Fold.model_rebuild()


class Section(Record):
    """A heading with blocks under it."""

    title: str
    blocks: tuple[Block, ...]


class ReportDocument(Record):
    """A whole report."""

    title: str
    subtitle: str = ""
    sections: tuple[Section, ...] = ()


_SECTIONS = TypeAdapter(tuple[Section, ...])


def read_sections(path: str | Path) -> tuple[Section, ...]:
    """Sections from a JSON file: a list of `{"title", "blocks"}`, each block with its `kind`.

    Raises:
        ResultsError: the file is missing or holds something else.
    """
    try:
        return _SECTIONS.validate_python(json.loads(Path(path).read_text()))
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ResultsError(f"{path}: not a list of report sections: {where}: {first['msg']}") from error
    except ValueError as error:  # not UTF-8 or not JSON
        raise ResultsError(f"{path}: not JSON: {error}") from error
