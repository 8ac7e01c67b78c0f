"""Tables of the report: every cell escaped, every number sortable."""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from numbers import Real
from typing import Any

from letheon.measures import Measure

__all__ = ["table_html"]

_KINDS = ("good", "bad", "quiet")


def table_html(table: Any, key: str) -> str:
    """Return one table as HTML.

    Parameters
    ----------
    table : mapping or object
        With `title`, `rows`, and perhaps `columns` and `note`. A column is a name or a pair
        (group, name); a row is a sequence of cells, or a mapping from column to cell. The first
        cell of a row is its header. A cell is None, a text, a number, a `Measure` (or what its
        `to_dict` returned), or a mapping with `value` and perhaps `published`, `note` and `kind`
        ("good", "bad", "quiet").
    key : str
        What the ids of this table start with.
    """
    rows = list(_get(table, "rows", ()))
    columns = [_pair(column) for column in _get(table, "columns", None) or _columns(rows)]
    lines = [_cells(row, columns) for row in rows]
    is_number = [_is_numeric([line[place] for line in lines]) for place in range(len(columns))]
    note = _get(table, "note", "")
    return "\n".join(
        [
            f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{key}-caption">',
            f'<table><caption id="{key}-caption">{escape(str(_get(table, "title", "")))}</caption>',
            "<thead>",
            *_head(columns, is_number),
            "</thead>",
            "<tbody>",
            *(_line(line, is_number) for line in lines),
            "</tbody></table></div>",
            *([f'<p class="note">{escape(str(note))}</p>'] if note else []),
        ]
    )


def _get(table: Any, name: str, default: Any) -> Any:
    if isinstance(table, Mapping):
        return table.get(name, default)
    return getattr(table, name, default)


def _pair(column: Any) -> tuple[str, str]:
    """Return group and name of a column."""
    return ("", column) if isinstance(column, str) else (str(column[0]), str(column[1]))


def _columns(rows: Sequence[Any]) -> list[Any]:
    """Return the columns of rows that are mappings, in the order in which they appear."""
    if not all(isinstance(row, Mapping) for row in rows):
        raise ValueError("a table whose rows are no mappings needs columns")
    return list(dict.fromkeys(column for row in rows for column in row))


def _cells(row: Any, columns: Sequence[tuple[str, str]]) -> list[Any]:
    if isinstance(row, Mapping):
        named = {_pair(column): cell for column, cell in row.items()}
        return [_cell(named.get(column)) for column in columns]
    cells = [_cell(cell) for cell in row]
    if len(cells) != len(columns):
        raise ValueError(f"a row of {len(cells)} cells does not fit {len(columns)} columns")
    return cells


def _cell(cell: Any) -> Any:
    """Return a cell; a measure that was written as plain values is a measure again."""
    if not isinstance(cell, Mapping):
        return cell
    if cell.keys() >= {"name", "value", "low", "high", "basis"}:
        return Measure(**cell)
    nested = ("value", "published")
    return {name: _cell(inner) if name in nested else inner for name, inner in cell.items()}


def _head(columns: Sequence[tuple[str, str]], is_number: Sequence[bool]) -> Iterator[str]:
    """Yield one line of column headers, or two where columns have groups."""
    places = list(enumerate(columns))
    if any(group for group, _ in columns):
        yield "<tr>"
        for group, members in groupby(places, key=lambda place: place[1][0]):
            listed = list(members)
            if group:
                yield f'<th scope="colgroup" colspan="{len(listed)}">{escape(group)}</th>'
            else:
                yield from (_column_head(i, name, is_number[i], 2) for i, (_, name) in listed)
        yield "</tr>"
        places = [place for place in places if place[1][0]]
    yield "<tr>"
    yield from (_column_head(i, name, is_number[i], 1) for i, (_, name) in places)
    yield "</tr>"


def _column_head(place: int, name: str, is_number: bool, n_lines: int) -> str:
    look = ' class="number"' if is_number else ""
    span = f' rowspan="{n_lines}"' if n_lines > 1 else ""
    return f'<th scope="col" data-column="{place}"{look}{span}>{escape(name)}</th>'


def _line(cells: Sequence[Any], is_number: Sequence[bool]) -> str:
    written = []
    for place, cell in enumerate(cells):
        kind = str(cell.get("kind")) if isinstance(cell, Mapping) else ""
        looks = ["number"] * is_number[place] + [kind] * (kind in _KINDS)
        look = f' class="{" ".join(looks)}"' if looks else ""
        tag, scope = ("th", ' scope="row"') if place == 0 else ("td", "")
        order = escape(_order(cell))
        written.append(f'<{tag}{scope}{look} data-sort="{order}">{_content(cell)}</{tag}>')
    return f"<tr>{''.join(written)}</tr>"


def _content(cell: Any) -> str:
    """Return what a cell shows, escaped."""
    if isinstance(cell, Measure):
        return _measure(cell)
    if not isinstance(cell, Mapping):
        return escape(_text(cell))
    parts = [_content(cell.get("value"))]
    if cell.get("published") is not None:
        parts.append(f"<small>published: {_content(cell['published'])}</small>")
    if cell.get("note"):
        parts.append(f"<small>{escape(str(cell['note']))}</small>")
    return "".join(parts)


def _measure(measure: Measure) -> str:
    """Return value, interval and where it comes from."""
    value = escape(_text(measure.value) + _unit(measure.unit))
    if measure.basis == "by proof":
        return f"{value}<small>by proof</small>"
    if measure.low is None and measure.high is None:
        return value
    ends = ("?" if end is None else _text(end) for end in (measure.low, measure.high))
    rough = "roughly " if measure.is_rough else ""
    words = f"{rough}[{', '.join(ends)}]" + (", proxy" if measure.basis == "proxy" else "")
    return f"{value}<small>{escape(words)}</small>"


def _unit(unit: str) -> str:
    if not unit:
        return ""
    return {"x": "×", "%": " %"}.get(unit, f" {unit}")


def _text(value: Any) -> str:
    """Return a value for people: four digits of a fraction, a dash for nothing."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, Real):
        return str(value)
    number = float(value)
    if math.isnan(number):
        return "–"
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if number.is_integer() and abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:,.0f}" if 1e4 <= abs(number) < 1e15 else f"{number:.4g}"


def _number(cell: Any) -> float | None:
    """Return the number that a cell holds, None where it holds a text or nothing."""
    if isinstance(cell, Mapping):
        return _number(cell.get("value"))
    if isinstance(cell, Measure):
        return float(cell.value)
    if isinstance(cell, Real) and not isinstance(cell, bool):
        return None if math.isnan(float(cell)) else float(cell)
    return None


def _order(cell: Any) -> str:
    """Return what a cell is sorted by: a number as JavaScript reads it, a text, or nothing."""
    number = _number(cell)
    if number is None:
        value = cell.get("value") if isinstance(cell, Mapping) else cell
        return value if isinstance(value, str) else ""
    return repr(number) if math.isfinite(number) else f"{'-' * (number < 0)}Infinity"


def _is_numeric(cells: Sequence[Any]) -> bool:
    """Whether a column is of numbers, which stand to the right."""
    return any(_number(cell) is not None for cell in cells)
