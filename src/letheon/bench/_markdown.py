"""Tables in Markdown that read well as plain text too."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """A titled table of texts and numbers.

    A column is a name, or a pair of a group and a name. A cell may be a mapping with `value` and
    `published`, a number of somebody else's to be set beside it.
    """

    title: str
    columns: tuple[str | tuple[str, str], ...]
    rows: list[tuple[Any, ...]]
    note: str = ""

    def lines(self) -> Iterable[str]:
        """Yield the table in Markdown, which reads well as plain text too."""
        cells = [self._names(), *([_cell(value) for value in row] for row in self.rows)]
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
        names = self._names()
        return {
            "title": self.title,
            "note": self.note,
            "rows": [dict(zip(names, row, strict=True)) for row in self.rows],
        }

    def _names(self) -> list[str]:
        return [name if isinstance(name, str) else ": ".join(name) for name in self.columns]


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        beside = value.get("published")
        return _cell(value["value"]) + ("" if beside is None else f" [{_cell(beside)}]")
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
