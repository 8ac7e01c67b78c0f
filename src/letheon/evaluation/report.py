"""Tables and reports as plain text, for a terminal, as Markdown and as an HTML page.

Text, terminal and Markdown output work with the core installation. HTML pages need Jinja2 and are
rendered from the templates of this package, or of another package that extends them. All texts are
escaped.
"""

import io
import math
from base64 import b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from itertools import groupby
from numbers import Real
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from letheon.measures import Measure, TextRepr

if TYPE_CHECKING:
    import jinja2
    import rich.table

__all__ = [
    "Cell",
    "Picture",
    "Report",
    "Table",
    "format_cell",
    "format_measure",
    "render_page",
    "write_page",
]

_KINDS = {"good": "green", "bad": "bold red", "open": "yellow", "quiet": "dim"}
_SVG_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True)
class Cell:
    """A table cell with a value and additional information.

    Attributes
    ----------
    value : object
        None, a text, a number or a `Measure`.
    published : object
        A published value, shown next to `value`.
    note : str
        Text below the value on an HTML page.
    kind : {"", "good", "bad", "open", "quiet"}
        Colour of the cell.
    """

    value: Any
    published: Any = None
    note: str = ""
    kind: str = ""


@dataclass(frozen=True, repr=False)
class Table(TextRepr):
    """Table with a title and a note.

    Attributes
    ----------
    title : str
        Heading or caption.
    columns : sequence of str or (str, str)
        Names of the columns, or pairs of a group and a name.
    rows : sequence of sequence
        Rows of cells. A cell is None, a text, a number, a `Measure` or a `Cell`. On an HTML page
        the first cell of a row is its header.
    note : str
        Text below the table.

    Examples
    --------
    >>> table = Table("Speed", ["method", "times faster"], [["SISA", 8.0]])
    >>> table.columns
    ['method', 'times faster']
    """

    title: str
    columns: Sequence[str | tuple[str, str]]
    rows: Sequence[Sequence[Any]]
    note: str = ""

    def __post_init__(self) -> None:
        """Raise `ValueError` unless every row has one cell per column."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row has {len(row)} cells; expected {len(self.columns)}, one for each column"
                )

    def __str__(self) -> str:
        """Return the title, the aligned rows and the note as plain text."""
        return "\n".join(part for part in (self.title, self.to_text(), self.note) if part)

    @property
    def names(self) -> list[str]:
        """Names of the columns, each with its group, if it has one."""
        return [name if isinstance(name, str) else ": ".join(name) for name in self.columns]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the table in Markdown."""
        cells, widths = self._format_cells()
        yield f"## {self.title}"
        yield ""
        for number, row in enumerate(cells):
            yield f"| {' | '.join(map(str.ljust, row, widths))} |"
            if number == 0:
                yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"
        if self.note:
            yield ""
            yield self.note

    def to_text(self, indent: str = "") -> str:
        """Return the header and the rows as aligned plain text, without title and note."""
        cells, widths = self._format_cells()
        return "\n".join(
            f"{indent}{'  '.join(map(str.ljust, row, widths))}".rstrip() for row in cells
        )

    def to_rich(
        self, *, right: Collection[str] = (), no_wrap: Collection[str] = (), **look: Any
    ) -> "rich.table.Table":
        """Return the table as a Rich table for a terminal; markup in cells is not interpreted.

        Parameters
        ----------
        right, no_wrap : collection of str
            Names of columns to align to the right, and of columns that are never wrapped.
        **look
            Options of `rich.table.Table`, such as `box` and `padding`.
        """
        from rich.text import Text

        from letheon.terminal import make_table

        look.setdefault("title", Text(self.title) if self.title else None)
        look.setdefault("caption", Text(self.note) if self.note else None)
        cells = (
            [Text(format_cell(cell), _KINDS.get(_cell_kind(cell), "")) for cell in row]
            for row in self.rows
        )
        return make_table(self.names, cells, right=right, no_wrap=no_wrap, **look)

    def to_dict(self) -> dict[str, Any]:
        """Return the title, the note and the rows as plain values."""
        rows = [dict(zip(self.names, row, strict=True)) for row in self.rows]
        return {"title": self.title, "note": self.note, "rows": rows}

    def _format_cells(self) -> tuple[list[list[str]], list[int]]:
        cells = [self.names, *([format_cell(cell) for cell in row] for row in self.rows)]
        return cells, [max(map(len, column)) for column in zip(*cells, strict=True)]


@dataclass(frozen=True)
class Picture:
    """A figure of a report.

    Attributes
    ----------
    figure : matplotlib figure or str
        The figure; a str is SVG code.
    title : str
        Caption.
    alt : str
        Alternative text for readers who cannot see the figure; by default the title.
    note : str
        Text below the caption.
    """

    figure: Any
    title: str
    alt: str = ""
    note: str = ""


@dataclass(repr=False)
class Report(TextRepr):
    """A report with settings, machine and results.

    Attributes
    ----------
    title : str
        Heading.
    settings, machine : dict
        Settings of the run and properties of the machine, by name.
    table : Table or None
        The main table.
    tables : list of Table
        Further tables.
    summary, notes : sequence of str
        Paragraphs before the first table, and items of a list at the end. Not part of the Markdown.
    pictures : sequence of Picture
        Figures; they appear on the HTML page only.

    Examples
    --------
    >>> report = Report("a < b", {"seeds": 3}, table=Table("t", ("x",), [(1.5,)]))
    >>> print(report.to_markdown())
    # a < b
    <BLANKLINE>
    - seeds: 3
    <BLANKLINE>
    ## t
    <BLANKLINE>
    | x   |
    |-----|
    | 1.5 |
    <BLANKLINE>
    """

    title: str
    settings: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    table: Table | None = None
    tables: list[Table] = field(default_factory=list)
    summary: Sequence[str] = ()
    notes: Sequence[str] = ()
    pictures: Sequence[Picture] = ()

    def __str__(self) -> str:
        """Return the report as plain text, without figures."""
        facts = self.settings | self.machine
        about = [f"{name}: {_join_values(value)}" for name, value in facts.items()]
        tables = [str(table) for table in (self.table, *self.tables) if table is not None]
        notes = [f"- {note}" for note in self.notes]
        parts = [[self.title], self.summary, about, *([table] for table in tables), notes]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    @property
    def sections(self) -> list[str]:
        """Names of the sections of the HTML page."""
        parts = {
            "Results": self.table,
            "Figures": self.pictures,
            "Tables": self.tables,
            "Notes": self.notes,
            "Settings": self.settings,
            "Machine": self.machine,
        }
        return [name for name, part in parts.items() if part]

    def to_markdown(self) -> str:
        """Return the heading, the machine, the settings and all tables as Markdown."""
        lines = [f"# {self.title}", ""]
        lines += [f"- {name}: {value}" for name, value in (self.machine | self.settings).items()]
        for table in (self.table, *self.tables):
            lines += [] if table is None else ["", *table.lines()]
        return "\n".join(lines) + "\n"

    def to_html(self) -> str:
        """Return the report as a self-contained HTML page with sortable tables."""
        return render_page(
            "letheon.evaluation", "report.html", title=self.title, report=self, is_sortable=True
        )


def format_cell(cell: Any) -> str:
    """Return a cell as text: a fraction with four significant digits, None as a dash.

    Examples
    --------
    >>> format_cell(Cell(2.51234, published="2.49")), format_cell(None)
    ('2.512 [2.49]', '-')
    """
    if isinstance(cell, Cell):
        published = "" if cell.published is None else f" [{format_cell(cell.published)}]"
        return format_cell(cell.value) + published
    if cell is None:
        return "-"
    if isinstance(cell, Measure):
        return format_measure(cell)
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def format_measure(measure: Measure) -> str:
    """Return a value and its interval with three digits; times are in s, ms or us."""
    scale, unit = 1.0, measure.unit if measure.unit in ("x", "%") else ""
    if measure.unit == "s":
        scales = ((1.0, " s"), (1e3, " ms"), (1e6, " us"))
        scale, unit = next((pair for pair in scales if measure.value * pair[0] >= 1), scales[-1])
    text = f"{measure.value * scale:.3g}{unit}"
    if measure.basis == "by proof":
        return f"{text} (proof)"
    if measure.low is None or measure.high is None or measure.low == measure.high:
        return text
    rough = "roughly " if measure.is_rough else ""
    return f"{text} {rough}[{measure.low * scale:.3g}, {measure.high * scale:.3g}]"


def write_page(path: str | Path, page: str) -> Path:
    """Write an HTML page, creating missing directories, and return the path."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    return file


def render_page(package: str, template: str, *, is_sortable: bool = False, **values: Any) -> str:
    """Return an HTML page from a template in the directory ``templates`` of a package.

    Parameters
    ----------
    package : str
        Package of the template. The template may extend ``page.html`` (blocks `style`, `header`
        and `main`) and import ``parts.html`` (macros `section`, `table`, `picture` and
        `definitions`).
    template : str
        File name of the template.
    is_sortable : bool, default=False
        Whether the page contains the script that sorts tables.
    **values
        Variables of the template. ``page.html`` needs `title`.

    Returns
    -------
    str
        The page; all values are escaped.
    """
    values["style"] = _read_resource("report.css")
    values["script"] = _read_resource("report.js") if is_sortable else ""
    return _make_environment(package).get_template(template).render(values)


@lru_cache
def _make_environment(package: str) -> "jinja2.Environment":
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "an HTML page needs Jinja2, which is not installed: pip install jinja2"
        ) from error
    packages = dict.fromkeys([package, "letheon.evaluation"])
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(name) for name in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "html_layout": _lay_out,
        "script_hash": _script_hash,
        "svg_base64": _svg_base64,
        "words": _join_values,
    }
    return environment


def _read_resource(name: str) -> str:
    return files("letheon.evaluation").joinpath("templates", name).read_text(encoding="utf-8")


def _script_hash(script: str) -> str:
    """Return the hash that the content security policy needs to allow a script."""
    return f"sha256-{b64encode(sha256(script.encode('utf-8')).digest()).decode('ascii')}"


def _join_values(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_join_values(inner)}" for name, inner in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(map(_join_values, value))
    return str(value)


def _svg_base64(picture: Picture) -> str:
    """Return the SVG of a figure, from its root element on, encoded as base64.

    As an image, the SVG cannot run scripts or load files, and the ids of two figures cannot
    collide.
    """
    text = picture.figure if isinstance(picture.figure, str) else _draw_svg(picture.figure)
    start = text.find("<svg")
    if start < 0:
        raise ValueError("figure must be a matplotlib figure or a str that contains <svg")
    return b64encode(text[start:].encode("utf-8")).decode("ascii")


def _draw_svg(figure: Any) -> str:
    """Return a matplotlib figure as reproducible SVG, with text as paths."""
    import matplotlib as mpl

    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "letheon", "svg.fonttype": "path"}):
        figure.savefig(file, format="svg", facecolor="white", metadata=_SVG_METADATA)
    return file.getvalue()


def _lay_out(table: Table) -> dict[str, Any]:
    """Return the layout of a table for the HTML page: groups of columns, and rows of cells.

    A cell has a text, lines below the text, and a sort key.
    """
    columns = []
    for place, heading in enumerate(table.columns):
        group, name = ("", heading) if isinstance(heading, str) else heading
        is_number = any(_cell_number(row[place]) is not None for row in table.rows)
        columns.append({"place": place, "group": group, "name": name, "is_number": is_number})
    groups = [(name, list(members)) for name, members in groupby(columns, itemgetter("group"))]
    rows = []
    for row in table.rows:
        cells = []
        for column, cell in zip(columns, row, strict=True):
            kind, (text, below) = _cell_kind(cell), _cell_content(cell)
            look = " ".join(["number"] * bool(column["is_number"]) + [kind] * (kind in _KINDS))
            tag = "td" if column["place"] else "th"
            shown = {
                "tag": tag,
                "look": look,
                "order": _sort_key(cell),
                "text": text,
                "below": below,
            }
            cells.append(shown)
        rows.append(cells)
    return {"groups": groups, "is_grouped": any(name for name, _ in groups), "rows": rows}


def _cell_kind(cell: Any) -> str:
    return cell.kind if isinstance(cell, Cell) else ""


def _cell_content(cell: Any) -> tuple[str, list[str]]:
    """Return the text of a cell on the HTML page, and the lines below it."""
    if isinstance(cell, Cell):
        text, below = _cell_content(cell.value)
        if cell.published is not None:
            published, details = _cell_content(cell.published)
            below.append(" ".join([f"published: {published}", *details]))
        return text, below + [cell.note] * bool(cell.note)
    if not isinstance(cell, Measure):
        return _page_text(cell), []
    # Value, interval and basis.
    units = {"": "", "x": "×", "%": " %"}
    value = _page_text(cell.value) + units.get(cell.unit, f" {cell.unit}")
    if cell.basis == "by proof":
        return value, ["by proof"]
    if cell.low is None and cell.high is None:
        return value, []
    ends = ("?" if end is None else _page_text(end) for end in (cell.low, cell.high))
    rough = "roughly " if cell.is_rough else ""
    return value, [f"{rough}[{', '.join(ends)}]" + ", proxy" * (cell.basis == "proxy")]


def _page_text(value: Any) -> str:
    """Return a value for the HTML page: four significant digits, a dash for None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
        return str(value)
    number = math.nan if value is None else float(value)
    if not math.isfinite(number):
        return "–" if math.isnan(number) else "∞" if number > 0 else "−∞"
    is_whole = number.is_integer() or abs(number) >= 1e4
    return f"{number:,.0f}" if is_whole and abs(number) < 1e15 else f"{number:.4g}"


def _cell_number(cell: Any) -> float | None:
    """Return the number in a cell, or None if the cell has a text or is empty."""
    value = cell.value if isinstance(cell, Cell) else cell
    value = value.value if isinstance(value, Measure) else value
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    return float(value) if is_number and not math.isnan(float(value)) else None


def _sort_key(cell: Any) -> str:
    """Return the sort key of a cell: a number for JavaScript, a text, or an empty string."""
    number = _cell_number(cell)
    if number is None:
        value = cell.value if isinstance(cell, Cell) else cell
        return value if isinstance(value, str) else ""
    return repr(number) if math.isfinite(number) else f"{'-' * (number < 0)}Infinity"
