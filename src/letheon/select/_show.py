"""A comparison as a table."""

import math
from typing import TYPE_CHECKING

from letheon.measures import Measure
from letheon.select._tolerances import bad_end

if TYPE_CHECKING:
    from rich.console import RenderableType

    from letheon.select._comparison import Comparison

__all__ = ["as_table"]

_COLUMNS = {"efficiency": "faster", "score lost": "score lost", "certifiability": "cert."}
_METHOD_WIDTH = 24


def as_table(comparison: "Comparison") -> "RenderableType":
    """Return the settings as a table of rich, the chosen one marked, and the reason below it.

    Below each value stands the bad end of its interval, by which it is judged; "?" where
    its error is not known.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    title = f"Held against {comparison.ordinary} on {comparison.n_rows:,} training rows"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("")
    table.add_column("method", min_width=_METHOD_WIDTH)
    for name in (*_COLUMNS.values(), "total"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for each in comparison.tried:
        figures = [_figures(each.points.get(name)) for name in _COLUMNS]
        mark, kind = "*" if each is comparison.best else "", each.evaluation.guarantee.kind
        total = f"{each.cost.method:.3g} s"
        table.add_row(mark, Text(f"{each.name}, {kind}"), *figures, total, each.verdict)
    return Group(table, Text(comparison.reason))


def _figures(measure: Measure | None) -> str:
    if measure is None:
        return "-"
    unit = measure.unit if measure.unit in ("x", "%") else ""
    end = bad_end(measure)
    if end == measure.value:
        return f"{measure.value:.3g}{unit}"
    if math.isinf(end):
        return f"{measure.value:.3g}{unit}\n?"
    sign = "<=" if measure.better == "lower" else ">="
    return f"{measure.value:.3g}{unit}\n{sign} {end:.3g}"
