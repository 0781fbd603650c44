"""Reports: self-contained, escaped, complete, and open to sections from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from bench_builders import contender, invalid, make_header, make_row

from tileops_bench.errors import ResultsError
from tileops_bench.records import Code, Problem, Status
from tileops_bench.report import (
    Bar,
    Bars,
    Cell,
    Dot,
    Dots,
    Line,
    ReportDocument,
    Section,
    Table,
    Text,
    read_sections,
    render,
    sections_of,
)

VOID = {"meta", "rect", "line", "circle", "br"}


class Checker(HTMLParser):
    """Every element is closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))


def parse(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return checker


def full_page() -> str:
    rows = (
        make_row("A/x", own=1000, other=2000),
        make_row("B/x", own=1000, other=500),
        invalid("C/x", Problem(code=Code.BELOW_ROOFLINE, detail="3 ns < 5 ns & so on")),
        make_row("D/x").model_copy(update={"baselines": (contender("liger", None, Status.MISSING),)}),
    )
    return render(ReportDocument(title="bench", sections=sections_of(make_header(), rows)))


def test_page_is_well_formed_and_loads_nothing():
    page = full_page()
    checker = parse(page)
    assert not re.search(r"https?:|//cdn|url\(|@import", page)
    assert not [a for _, a in checker.seen if "src" in a or (a.get("href") or "#")[0] != "#"]
    assert "default-src 'none'" in page


def test_page_fits_a_phone_and_knows_dark_and_light():
    page = full_page()
    assert "width=device-width" in page
    assert "prefers-color-scheme:dark" in page
    assert "overflow-x:auto" in page


def test_every_row_verdict_problem_and_contender_is_on_the_page():
    page = full_page()
    for text in ("A/x", "B/x", "C/x", "D/x", "FAST", "SLOW", "INVALID", "below_roofline", "liger", "missing"):
        assert text in page
    assert "3 ns &lt; 5 ns &amp; so on" in page


def test_an_invalid_row_shows_no_speed_up():
    page = render(
        ReportDocument(
            title="t",
            sections=sections_of(make_header(), (invalid("C/x", Problem(code=Code.THROTTLED, detail="")),)),
        )
    )
    assert "1.500x" not in page
    assert "1.50x" not in page


@pytest.mark.parametrize(
    "block", [Text(paragraphs=("<script>alert(1)</script>",)), Table(columns=("<b>",), rows=(("<i>",),))]
)
def test_text_is_escaped(block):
    page = render(ReportDocument(title="<x>", sections=(Section(title="<y>", blocks=(block,)),)))
    assert "<script>alert" not in page
    assert "<x>" not in page
    assert "<y>" not in page
    assert "<i>" not in page
    parse(page)


def test_numbers_sort_by_value_not_by_text():
    table = Table(columns=("t",), rows=((Cell(text="9 µs", sort=9e3),), (Cell(text="10 ns", sort=10.0),)))
    page = render(ReportDocument(title="t", sections=(Section(title="s", blocks=(table,)),)))
    assert 'data-sort="9000.0"' in page
    assert 'data-sort="10.0"' in page


def marks(page: str, tag: str) -> list[dict]:
    return [attrs for name, attrs in parse(page).seen if name == tag]


def one(block) -> str:
    return render(ReportDocument(title="t", sections=(Section(title="s", blocks=(block,)),)))


def test_bars_start_at_zero_and_share_a_scale():
    bars = (
        Bar(label="a", value=50.0, text="50"),
        Bar(label="b", value=100.0, text="100", low=90.0, high=200.0),
    )
    rects = marks(one(Bars(title="t", bars=bars)), "rect")
    assert [r["width"] for r in rects] == ["25.00%", "50.00%"]
    assert {r["x"] for r in rects} == {"0"}


def test_bars_can_show_a_limit():
    page = one(Bars(title="t", bars=(Bar(label="a", value=0.5, text="0.5"),), full=1.0))
    assert marks(page, "rect")[0]["width"] == "50.00%"
    assert [m["x1"] for m in marks(page, "line")] == ["100.00%"]


def test_a_ratio_of_one_stands_in_the_middle_and_opposites_mirror():
    dots = (
        Dot(label="a", value=1.0, low=0.9, high=1.1, text=""),
        Dot(label="b", value=2.0, low=2.0, high=2.0, text=""),
        Dot(label="c", value=0.5, low=0.5, high=0.5, text=""),
    )
    places = [float(c["cx"].rstrip("%")) for c in marks(one(Dots(title="t", dots=dots)), "circle")]
    assert places[0] == pytest.approx(50.0)
    assert places[1] - 50 == pytest.approx(50 - places[2])


def test_change_points_are_ringed():
    page = one(Line(title="t", values=(1.0, 1.0, 2.0), labels=("a", "b", "c"), marks=(2,)))
    assert [c["class"] for c in marks(page, "circle")] == ["point", "point", "change"]


def test_charts_of_nothing_do_not_break():
    for block in (Bars(title="t", bars=()), Dots(title="t", dots=()), Line(title="t", values=(), labels=())):
        parse(one(block))


def test_sections_come_from_a_file(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('[{"title": "Mine", "blocks": [{"kind": "facts", "items": [["device", "cpu"]]}]}]')
    (section,) = read_sections(path)
    assert "Mine" in render(ReportDocument(title="t", sections=(section,)))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "not JSON"),
        ('[{"title": "x"}]', "blocks"),
        ('[{"title": "x", "blocks": [{"kind": "pie"}]}]', "0.blocks.0"),
    ],
)
def test_malformed_sections_are_refused_with_their_place(tmp_path, text, where):
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match=where):
        read_sections(path)


def test_binary_sections_are_refused(tmp_path):
    path = tmp_path / "s.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ResultsError, match=r"s\.json: not JSON"):
        read_sections(path)
