"""Where commands print: no trailing blanks on a pipe, no truncated number anywhere."""

import re
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

__all__ = ["PlainConsole", "show_table"]

# Wider than any table of numbers.
_UNBOUNDED = 10_000


class PlainConsole(Console):
    """A console without automatic highlighting whose lines end with their last word on a pipe."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, **options})

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as `Console` does; strip what only fills up a line unless a terminal shows it."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as said:
            super().print(*objects, **options)
        self.file.write(re.sub(r" +$", "", said.get(), flags=re.MULTILINE))


def show_table(console: Console, table: Table) -> None:
    """Print a table in its own width, whatever that of the terminal.

    A terminal that is too narrow wraps the lines; rich alone would cut digits off.
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
