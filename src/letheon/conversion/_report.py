"""The table of a conversion: which part became what, and what one removal costs."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal

from letheon.terminal import html_table, table_lines

Similarity = Literal[
    "exact equivalent",
    "rounded statistics",
    "other algorithm",
    "sample of people",
    "ensemble of shards",
    "refit",
    "dropped",
    "unchanged",
    "container",
]
_FAITHFUL = frozenset({"exact equivalent", "rounded statistics", "refit", "dropped", "unchanged"})


@dataclass(frozen=True)
class ConversionRow:
    """One row of a `ConversionReport`.

    Attributes
    ----------
    step : str
        Place of the part, as in `set_params`, such as ``"columns__number__scale"``; empty for the
        whole.
    source, target : str
        Class in scikit-learn, and what it became.
    kind : str
        How similar they are: ``"exact equivalent"``, ``"rounded statistics"``, ``"other
        algorithm"``, ``"sample of people"``, ``"ensemble of shards"``, ``"refit"``, ``"dropped"``,
        ``"unchanged"`` or ``"container"``.
    guarantee : str
        ``"exact"``, ``"certified"`` or empty.
    cost : str
        What the removal of one person costs.
    notes : tuple of str
        Differences from the original.
    lost : tuple of str
        Parameters that affect the model and could not be carried over.

    Examples
    --------
    >>> from letheon.conversion import ConversionRow
    >>> row = ConversionRow("", "Ridge", "StableRidge", "exact equivalent", guarantee="exact")
    >>> row.is_faithful
    True
    """

    step: str
    source: str
    target: str
    kind: Similarity
    guarantee: str = ""
    cost: str = ""
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    def with_notes(self, *notes: str) -> "ConversionRow":
        """Return the row with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    @property
    def is_faithful(self) -> bool:
        """Whether the part is the same model, forgets exactly and has all its parameters."""
        if self.kind == "container":
            return not self.lost  # its parts have rows of their own
        return self.kind in _FAITHFUL and self.guarantee != "certified" and not self.lost

    def list_remarks(self) -> list[str]:
        """Return the notes and the lost parameters as sentences."""
        return [*self.notes, *(f"{parameter} is not carried over" for parameter in self.lost)]


_TITLES = {"step": "step", "source": "scikit-learn", "target": "letheon", "kind": "kind"}
_COLUMNS = (*_TITLES, "guarantee")


@dataclass(frozen=True)
class ConversionReport:
    """The outcome of a conversion; `print` shows it as a table.

    Attributes
    ----------
    rows : tuple of ConversionRow
        One row for each part, in the order of the steps.

    Examples
    --------
    >>> from sklearn.naive_bayes import BernoulliNB
    >>> import letheon
    >>> model, report = letheon.convert(BernoulliNB(), return_report=True)
    >>> report.rows[0].kind
    'exact equivalent'
    """

    rows: tuple[ConversionRow, ...]

    def __iter__(self) -> Iterator[ConversionRow]:
        """Iterate over the rows."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def is_exact(self) -> bool:
        """Whether every part forgets exactly."""
        return all(row.guarantee in ("exact", "") for row in self.rows)

    def __str__(self) -> str:
        """Return the table, the cost of one removal and the notes as text."""
        head = [_TITLES.get(name, name) for name in _COLUMNS]
        body = [[_cell(row, name) for name in _COLUMNS] for row in self.rows]
        lines = table_lines(head, body)
        costs = [f"{_cell(row, 'step')}: {row.cost}" for row in self.rows if row.cost]
        notes = [
            f"{_cell(row, 'step')}: {note}" for row in self.rows for note in row.list_remarks()
        ]
        for title, entries in (("Cost of one removal", costs), ("Notes", notes)):
            lines += ["", title, *(f"  {entry}" for entry in entries)] if entries else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks."""
        names = [field.name for field in fields(ConversionRow) if field.name != "lost"]
        head = [_TITLES.get(name, name) for name in names]
        rows = ([_cell(row, name) for name in names] for row in self.rows)
        return html_table("Conversion", head, rows)


def _cell(row: ConversionRow, name: str) -> str:
    if name == "step":
        return row.step or "(whole)"
    return "; ".join(row.list_remarks()) if name == "notes" else str(getattr(row, name))
