"""How a measure reads on an axis: its interval, its direction, its unit."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from letheon.measures._measure import KNOWN, Measure
from letheon.plot._axes import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "arms",
    "axis_label",
    "distinct",
    "draw_endless",
    "is_better_high",
    "is_ratio",
    "log_ticks",
    "stacked_axes",
    "wrapped",
]


def arms(measures: Sequence[Measure]) -> list[list[float]]:
    """Return how far each interval reaches down and up; 0 where that is unknown or endless."""
    down = [_length(m.low, m.value) for m in measures]
    up = [_length(m.value, m.high) for m in measures]
    return [down, up]


def _length(start: float | None, end: float | None) -> float:
    if start is None or end is None or not math.isfinite(end - start):
        return 0.0
    return end - start


def draw_endless(ax: "Axes", which: str, place: float, measure: Measure, colour: str) -> None:
    """Draw an interval without an end out of the axes, whose limits stay as they are."""
    from matplotlib.lines import Line2D

    far = 1e9 * max(abs(measure.value), 1.0)
    ends = {math.inf: measure.value + far, -math.inf: measure.value - far}
    for end in (measure.low, measure.high):
        if end in ends:
            along, across = [measure.value, ends[end]], [place, place]
            x, y = (along, across) if which == "x" else (across, along)
            line = Line2D(x, y, color=colour, linewidth=1, label="_endless")
            line.set_in_layout(False)
            ax.add_artist(line)


def is_ratio(name: str, values: Iterable[float]) -> bool:
    """Whether a measure is a factor, to be drawn on a logarithmic axis."""
    return name in KNOWN and KNOWN[name][1] == "x" and all(value > 0 for value in values)


def is_better_high(name: str) -> bool:
    """Whether more of a measure is better; unknown ones count as errors."""
    return name in KNOWN and KNOWN[name][0] == "higher"


def axis_label(name: str, measures: Sequence[Measure]) -> str:
    """Return name, unit and confidence of the measures on one axis, and which way is better."""
    unit = f" [{measures[0].unit}]" if measures[0].unit else ""
    way = "more is better" if measures[0].better == "higher" else "less is better"
    levels = {m.confidence for m in measures if m.low != m.high}
    interval = f"{100 * levels.pop():g} % interval, " if len(levels) == 1 else ""
    interval = "rough interval, " if any(m.is_rough for m in measures) else interval
    return f"{name}{unit}\n{interval}{way}"


def log_ticks(ax: "Axes", which: str) -> None:
    """Write plain numbers on a logarithmic axis, with 2 and 5 between few powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = ax.get_xlim() if which == "x" else ax.get_ylim()
    few = high / low < 1000
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=7))
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.set_minor_locator(NullLocator())


def stacked_axes(n_rows: int, width: float, height: float) -> "list[Axes]":
    """Return fresh axes one above the other with a common x axis."""
    figure = new_axes(1, width, height)[0].figure.figure
    figure.clear()
    return list(figure.subplots(n_rows, 1, sharex=True, squeeze=False)[:, 0])


def wrapped(name: str, width: int = 26) -> str:
    """Return a name on as many lines as it needs."""
    return "\n".join(wrap(name, width)) or name


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names, the second of one name with (2) behind it, and so on."""
    seen: Counter[str] = Counter()
    result: list[str] = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result
