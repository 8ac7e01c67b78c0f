"""A comparison as a table."""

from typing import TYPE_CHECKING

from letheon.measures import Measure

if TYPE_CHECKING:
    from rich.console import RenderableType

    from letheon.select._comparison import Comparison

__all__ = ["as_table"]

_COLUMNS = ("efficiency", "score lost", "certifiability")


def as_table(comparison: "Comparison") -> "RenderableType":
    """Return the settings as a table of rich, the chosen one marked, and the reason below it."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = f"Held against {comparison.ordinary} on {comparison.n_rows:,} training rows"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    for name in ("", "method", "guarantee"):
        table.add_column(name)
    for name in (*_COLUMNS, "total s"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for each in comparison.tried:
        figures = [_figures(each.points.get(name)) for name in _COLUMNS]
        mark, kind = "*" if each is comparison.best else "", each.evaluation.guarantee.kind
        total = f"{each.cost.method:.3g}"
        table.add_row(mark, Text(each.name), kind, *figures, total, each.verdict)
    return Group(table, Text(comparison.reason))


def _figures(measure: Measure | None) -> str:
    if measure is None:
        return "-"
    unit = measure.unit if measure.unit in ("x", "%") else ""
    if measure.low is None or measure.high is None or measure.low == measure.high:
        return f"{measure.value:.3g}{unit}"
    return f"{measure.value:.3g}{unit} \\[{measure.low:.3g}, {measure.high:.3g}]"
