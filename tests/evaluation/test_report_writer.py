"""The HTML page is self-contained, complete, and escapes all texts."""

import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from letheon.evaluation.report import (
    Cell,
    Picture,
    Report,
    Table,
    format_cell,
    render_page,
    write_page,
)
from letheon.measures import Measure, by_proof

EVIL = "<script>alert('x')</script>\"'&$title"
ATTRIBUTES = {
    "alt",
    "aria-label",
    "aria-labelledby",
    "charset",
    "class",
    "colspan",
    "content",
    "data-column",
    "data-sort",
    "href",
    "http-equiv",
    "id",
    "lang",
    "name",
    "role",
    "rowspan",
    "scope",
    "src",
    "tabindex",
}
VOID = {"meta", "img", "br"}


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    plt.close("all")


class ParsedPage(HTMLParser):
    """Tags with their attributes and the text of each cell; refuses what is not nested well."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    def text_of(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def speed(value: float = 8.0) -> Measure:
    return Measure(
        name="efficiency",
        value=value,
        low=6.5,
        high=np.inf,
        n=5,
        better="higher",
        basis="measured",
        unit="x",
    )


def picture() -> Figure:
    figure, ax = plt.subplots(figsize=(2, 2))
    ax.plot([1, 2])
    return figure


def report() -> Report:
    main = Table(
        f"main {EVIL}",
        [EVIL, ("Efficiency", "min"), ("Efficiency", EVIL), (EVIL, "note")],
        [
            [EVIL, Cell(2.5, published=EVIL, note=EVIL, kind=EVIL), speed(), EVIL],
            ["b", Cell(None), None, None],
        ],
        EVIL,
    )
    return Report(
        f"title {EVIL}",
        settings={"seeds": 5},
        machine={f"processor {EVIL}": EVIL, "blas": [EVIL, 1], "more": {EVIL: EVIL}},
        table=main,
        tables=[Table("second", [EVIL, "n"], [[1, 2], [None, 1234567]])],
        summary=[f"summary {EVIL}"],
        notes=[EVIL],
        pictures=[Picture(picture(), EVIL, alt=EVIL, note=EVIL)],
    )


def page_of(*rows: Any) -> ParsedPage:
    """Return the page of one table."""
    names = [f"c{i}" for i in range(len(rows[0]))]
    return ParsedPage(Report("x", table=Table("t", names, list(rows))).to_html())


def test_planted_script_stays_text() -> None:
    page = ParsedPage(report().to_html())
    assert len(page.all("script")) == 1
    assert all("alert" not in text for text in page.text_of("script"))
    assert f"title {EVIL}" in page.text_of("h1")
    for tag in ("caption", "th", "td", "small", "li", "dd", "dt", "p", "span", "figcaption"):
        assert any(EVIL in text for text in page.text_of(tag)), tag
    assert page.all("img")[0]["alt"] == EVIL


def test_planted_quotes_stay_inside_their_attribute() -> None:
    page = ParsedPage(report().to_html())
    for name in ("alt", "aria-label", "data-sort"):
        assert EVIL in [attributes.get(name) for _, attributes in page.tags], name
    names = {name for _, attributes in page.tags for name in attributes}
    assert names <= ATTRIBUTES


@given(st.text(max_size=30))
def test_any_text_is_read_back_as_it_was(text: str) -> None:
    # a parser of HTML makes these one sign of its own
    words = "x" + re.sub(r"[\s\x00-\x1f\x7f-\x9f]|[^\x00-\ud7ff\ue000-\uffff]", "", text)
    table = Table(words, [words], [[words]])
    page = ParsedPage(Report(words, {words: words}, table=table).to_html())
    for tag in ("title", "h1", "caption", "dt", "dd"):
        assert page.text_of(tag) == [words]
    assert page.text_of("th") == [words, words]


def test_nothing_is_loaded_from_elsewhere() -> None:
    html = report().to_html()
    for tag, attributes in ParsedPage(html).tags:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form"}
        for name in ("src", "href", "srcset", "action", "data", "style"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/svg+xml;base64,")), (tag, name)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://", html)


def test_the_policy_lets_the_browser_load_nothing_and_knows_the_script() -> None:
    page = ParsedPage(report().to_html())
    (policy,) = [a["content"] for a in page.all("meta") if a.get("http-equiv")]
    assert policy is not None
    (script,) = page.text_of("script")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    assert policy == (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )


def test_pictures_are_inside_as_images_that_refer_to_themselves_only() -> None:
    both = report()
    both.pictures = [*both.pictures, Picture("<?xml version='1.0'?><svg>ä</svg>", "text")]
    drawn, text = ParsedPage(both.to_html()).all("img")
    svg = [b64decode((img["src"] or "").partition(",")[2]).decode() for img in (drawn, text)]
    assert svg[1] == "<svg>ä</svg>"
    assert text["alt"] == "text"
    root = ET.fromstring(svg[0])
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    links = [v for e in root.iter() for k, v in e.attrib.items() if k.endswith("href")]
    assert links
    assert all(link.startswith("#") for link in links)
    assert "<image" not in svg[0]


def test_the_same_report_is_the_same_page() -> None:
    assert report().to_html() == report().to_html()


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="<svg"):
        Report("x", pictures=[Picture("picture.png", "x")]).to_html()


def cells(*row: Any) -> list[tuple[str, str]]:
    """Texts of one row, with their tags."""
    return [x for x in page_of(row).texts if x[0] in {"th", "td", "small"}][len(row) :]


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (None, [("td", "–")]),
        (float("nan"), [("td", "–")]),
        (float("-inf"), [("td", "−∞")]),
        (np.int64(1234567), [("td", "1,234,567")]),
        (np.float32(0.5), [("td", "0.5")]),
        (0.000123456, [("td", "0.0001235")]),
        (35856.4, [("td", "35,856")]),
        (True, [("td", "True")]),
        ("Exact", [("td", "Exact")]),
        (speed(), [("td", "8×"), ("small", "[6.5, ∞]")]),
        (
            Cell(0.5, published=speed()),
            [("td", "0.5"), ("small", "published: 8× [6.5, ∞]")],
        ),
        (by_proof("certifiability", 0, note="x"), [("td", "0 %"), ("small", "by proof")]),
        (
            Cell(2.5, published=2.49, note="n=3"),
            [("td", "2.5"), ("small", "published: 2.49"), ("small", "n=3")],
        ),
        (Cell(None, published="N/A"), [("td", "–"), ("small", "published: N/A")]),
    ],
)
def test_cells_show_numbers_intervals_and_published_values(cell: Any, shown: Any) -> None:
    assert cells("SISA", cell) == [("th", "SISA"), *shown]


def test_cells_carry_what_they_are_sorted_by() -> None:
    page = page_of(["a", speed(8), Cell(np.inf), None, "Exact", 35856.4, float("nan")])
    keys = [a["data-sort"] for _, a in page.tags if "data-sort" in a]
    assert keys == ["a", "8.0", "Infinity", "", "Exact", "35856.4", ""]


def test_headers_are_headers() -> None:
    page = ParsedPage(report().to_html())
    heads = page.all("th")
    assert all(head["scope"] in {"col", "row", "colgroup"} for head in heads)
    groups = [(head["colspan"]) for head in heads if head["scope"] == "colgroup"]
    assert groups == ["2", "1"]
    columns = [head["data-column"] for head in heads if head["scope"] == "col"]
    assert columns == ["0", "1", "2", "3", "0", "1"]
    assert len(page.all("caption")) == len(page.all("table")) == 2
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    pointers = [a["aria-labelledby"] for _, a in page.tags if "aria-labelledby" in a]
    pointers += [(a["href"] or "")[1:] for a in page.all("a")]
    assert set(pointers) <= set(ids)
    assert page.all("html") == [{"lang": "en"}]


def test_unknown_kinds_are_no_classes() -> None:
    page = ParsedPage(report().to_html())
    classes = {word for _, a in page.tags for word in (a.get("class") or "").split()}
    assert classes <= {"scroll", "number", "note", "good", "bad", "quiet"}


def test_known_kinds_are_classes_and_styles() -> None:
    table = Table("t", ["a"], [[Cell(kind, kind=kind)] for kind in ("good", "bad", "open")])
    page = ParsedPage(Report("x", table=table).to_html())
    assert [a.get("class") for a in page.all("th")][1:] == ["good", "bad", "open"]
    cells: list[Any] = list(table.to_rich().columns[0].cells)
    assert [str(cell.style) for cell in cells] == ["green", "bold red", "yellow"]


def test_bad_tables_are_refused() -> None:
    with pytest.raises(ValueError, match="a row has 1 cells; expected 2"):
        Table("t", ["a", "b"], [[1]])


def test_silent_sections_are_left_out() -> None:
    page = ParsedPage(Report("x", notes=["one note"]).to_html())
    assert page.text_of("h2") == ["Notes"]
    assert page.text_of("a") == ["Notes"]
    assert page.text_of("li") == ["one note"]


def test_a_page_without_a_script_permits_none() -> None:
    page = ParsedPage(render_page("letheon.evaluation", "page.html", title="x"))
    (policy,) = [a["content"] for a in page.all("meta") if a.get("http-equiv")]
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    assert page.all("script") == []


def test_one_file_is_written(tmp_path: Path) -> None:
    file = write_page(tmp_path / "new" / "report.html", report().to_html())
    assert [p.name for p in file.parent.iterdir()] == ["report.html"]
    assert file.read_text(encoding="utf-8") == report().to_html()


def test_text_and_markdown_show_the_same_cells() -> None:
    seconds = replace(speed(), value=0.0025, low=0.002, high=0.004, unit="s")
    rows = [("SISA", Cell(2.51234, published=2.5), seconds), ("b", None, speed())]
    table = Table("t", ("method", ("x", "y"), "m"), rows, "note")
    shown = ["SISA", "2.512 [2.5]", "2.5 ms [2, 4]", "b", "-", "8x [6.5, inf]"]
    assert [format_cell(cell) for row in rows for cell in row] == shown
    markdown = list(table.lines())
    assert markdown[:3] == ["## t", "", "| method | x: y        | m             |"]
    assert markdown[-2:] == ["", "note"]
    assert table.to_text("  ").splitlines() == [
        "  method  x: y         m",
        "  SISA    2.512 [2.5]  2.5 ms [2, 4]",
        "  b       -            8x [6.5, inf]",
    ]


def test_a_terminal_shows_markup_as_text() -> None:
    column = Table("[red]t", ["a"], [["[bold]x"]]).to_rich().columns[0]
    assert [str(text) for text in column.cells] == ["[bold]x"]


def test_html_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match="pip install jinja2"):
        render_page("letheon.plot", "page.html", title="x")
