"""Tables in Markdown that read well as plain text too."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """A titled table of texts and numbers."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    note: str = ""

    def lines(self) -> Iterable[str]:
        """Yield the table in Markdown, which reads well as plain text too."""
        cells = [self.columns, *([_cell(value) for value in row] for row in self.rows)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        yield f"## {self.title}"
        yield ""
        for number, row in enumerate(cells):
            padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            yield f"| {' | '.join(padded)} |"
            if number == 0:
                yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"
        if self.note:
            yield ""
            yield self.note

    def to_dict(self) -> dict[str, Any]:
        """Return title, note and rows as plain values."""
        return {
            "title": self.title,
            "note": self.note,
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
        }


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
