"""Output of commands to a terminal or a pipe, without trailing blanks or truncated numbers.

Control characters are replaced, because names from foreign files may contain them.
"""

import io
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

__all__ = [
    "FactTable",
    "Note",
    "PlainConsole",
    "factor_text",
    "hide_controls",
    "html_of",
    "html_table",
    "make_table",
    "note_nothing",
    "poll_bar",
    "print_table",
    "progress_bar",
    "size_text",
    "table_lines",
    "time_text",
]

# Called with the current step, or without arguments after each unit of work.
Note = Callable[..., None]

# Wider than any table of numbers.
_UNBOUNDED = 10_000
# Wide enough for most tables; notebooks scroll.
_NOTEBOOK_COLUMNS = 110
_POLL_SECONDS = 0.1
# All but tab and line feed, and characters that change the writing direction.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def hide_controls(text: str) -> str:
    """Replace all control characters in a text by U+FFFD; keep tabs and line feeds."""
    return _CONTROLS.sub("\ufffd", text)


class PlainConsole(Console):
    """A console without automatic highlighting, and without trailing blanks on a pipe."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, **options})

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render an object in the same way as `Console`, but replace control characters."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=hide_controls(segment.text))

    def print(self, *objects: Any, **options: Any) -> None:
        """Print in the same way as `Console`; strip trailing blanks if the output is a pipe."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as output:
            super().print(*objects, **options)
        self.file.write(re.sub(r" +$", "", output.get(), flags=re.MULTILINE))


def make_table(
    columns: Sequence[str],
    rows: Iterable[Iterable[Any]],
    *,
    right: Collection[str] = (),
    no_wrap: Collection[str] = (),
    **look: Any,
) -> Table:
    """Return a table; cells are text, not markup, and None is an empty cell.

    Parameters
    ----------
    columns : sequence of str
        Names of the columns.
    rows : iterable
        Rows of cells; a cell is any value, or a `rich.text.Text`.
    right, no_wrap : collection of str
        Names of columns that are aligned to the right, and of those that are never wrapped.
    **look
        Options of `rich.table.Table`.
    """
    table = Table(**{"box": SIMPLE_HEAD, **look})
    for name in columns:
        justify: Any = "right" if name in right else "left"
        table.add_column(name, justify=justify, no_wrap=name in no_wrap, overflow="fold")
    for row in rows:
        cells = ("" if cell is None else cell for cell in row)
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells))
    return table


def print_table(console: Console, table: RenderableType) -> None:
    """Print a table in its full width, even if the terminal is narrower.

    The terminal then wraps the lines; rich would truncate numbers.
    """
    width = console.width
    unbounded = console.options.update(width=_UNBOUNDED)
    needed = Measurement.get(console, unbounded, table).maximum
    if needed <= width:
        console.print(table)
        return
    console.width = needed
    try:
        console.print(table)
    finally:
        console.width = width


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a plain table, for the text of a result."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [head, ["-" * width for width in widths], *rows]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


def html_table(caption: str, head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table for notebooks; all texts are escaped."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>"
    )


class FactTable(dict[str, str]):
    """Names and values, shown as a table in notebooks; all texts are escaped."""

    def __init__(self, caption: str, facts: Mapping[str, str]) -> None:
        super().__init__(facts)
        self.caption = caption

    def _repr_html_(self) -> str:
        """Return the HTML table."""
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in self.items()
        )
        return f"<table><caption>{escape(self.caption)}</caption><tbody>{rows}</tbody></table>"

    # The name that scikit-learn uses for the attributes of a fitted estimator.
    _repr_html_inner = _repr_html_


def html_of(renderable: RenderableType) -> str:
    """Return an HTML version of what a terminal shows, for notebooks."""
    console = PlainConsole(
        file=io.StringIO(), record=True, force_terminal=True, width=_NOTEBOOK_COLUMNS
    )
    print_table(console, renderable)
    style = "white-space:pre;overflow-x:auto;line-height:normal"
    return console.export_html(
        inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>'
    )


def note_nothing(step: str = "") -> None:
    """Do nothing, because there is no progress bar."""


@contextmanager
def progress_bar(title: str, total: int, *, is_shown: bool = True) -> Iterator[Note]:
    """Show a progress bar on standard error while the block runs, on a terminal or in a notebook.

    The block calls the note with the name of the current step, and without arguments after each of
    `total` units of work.
    """
    if not is_shown:
        yield note_nothing
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    is_disabled = not (console.is_terminal or console.is_jupyter)
    with Progress(*columns, console=console, transient=True, disable=is_disabled) as bars:
        task = bars.add_task(title, total=total)

        def note(step: str = "") -> None:
            if step:
                bars.update(task, description=f"{title}: {step}")
            else:
                bars.advance(task)

        yield note


@contextmanager
def poll_bar(
    title: str, total: int, count: Callable[[], int], *, is_shown: bool = True
) -> Iterator[None]:
    """Show a progress bar while the block runs; a thread reads `count()` several times a second."""
    if not is_shown:
        yield
        return
    ended = threading.Event()

    def follow(note: Note) -> None:
        n_shown, is_last = 0, False
        while not is_last:
            is_last = ended.wait(_POLL_SECONDS)
            n_done = min(count(), total)
            for _ in range(n_shown, n_done):
                note()
            n_shown = n_done

    with progress_bar(title, total) as note:
        thread = threading.Thread(target=follow, args=(note,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def size_text(n_bytes: float) -> str:
    """Format a number of bytes with a suitable unit, for example ``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.4g} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.4g} TiB"


def factor_text(factor: float) -> str:
    """Format a factor with at most one decimal: ``27.5x``, ``10,010x``."""
    return f"{factor:,.1f}".removesuffix(".0") + "x"


def time_text(seconds: float) -> str:
    """Format a time: ``1.23 s``, or ``45.6 ms`` if it is below one second."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
