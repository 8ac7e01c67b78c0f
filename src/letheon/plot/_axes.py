"""What the displays share: axes, colours, how a measure reads on an axis, labels of points."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from letheon.measures import KNOWN_MEASURES, Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation


# Okabe and Ito: told apart by colour-blind readers too; markers help in print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def new_axes(n_rows: int, n_columns: int, width: float, height: float) -> "list[Axes]":
    """Return fresh axes, those one above the other with a common x axis."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError(
            "plots need matplotlib, which is not installed: pip install 'letheon[plot]'"
        ) from error
    look: dict[str, Any] = {"figsize": (width, height), "layout": "constrained", "squeeze": False}
    return list(plt.subplots(n_rows, n_columns, sharex=n_rows > 1, **look)[1].flat)


def line_style(number: int) -> dict[str, Any]:
    """Return colour and marker of the line with this number."""
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


class PanelsDisplay:
    """A display of several axes.

    Attributes
    ----------
    ax_ : tuple of Axes
        After `plot`, one for each panel.
    figure_ : Figure
        The figure drawn on.
    """

    ax_: "tuple[Axes, ...]"
    figure_: "Figure"

    def _take_axes(
        self,
        ax: "Sequence[Axes] | None",
        panels: tuple[int, int],
        size: tuple[float, float],
        what: str,
    ) -> None:
        """Keep the axes, new ones if there are none; raise unless there is one for each panel."""
        ax = new_axes(*panels, *size) if ax is None else ax
        n_panels = panels[0] * panels[1]
        if len(ax) != n_panels:
            raise ValueError(f"{what} need {n_panels} axes, not {len(ax)}")
        self.ax_, self.figure_ = tuple(ax), ax[0].figure.figure


class SingleDisplay:
    """A display of one axes.

    Attributes
    ----------
    ax_ : Axes
        The axes, after `plot`.
    figure_ : Figure
        The figure drawn on.
    """

    ax_: "Axes"
    figure_: "Figure"

    def _take_axes(self, ax: "Axes | None", width: float, height: float) -> "Axes":
        """Keep the axes, new ones if there are none, and return them."""
        self.ax_ = new_axes(1, 1, width, height)[0] if ax is None else ax
        self.figure_ = self.ax_.figure.figure
        return self.ax_


def require_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise if something is given for names that do not occur."""
    if unknown := set(names) - set(known):
        raise ValueError(f"{what}: {sorted(unknown)}")


def plain_ticks(ax: "Axes", values: Sequence[float]) -> None:
    """Write the numbers themselves at a logarithmic x axis, at most eight of them."""
    step = -(-len(values) // 8)
    ticks = list(values)[::step]
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    # only those of x: the minor ticks of a logarithmic axis carry labels of their own
    ax.xaxis.minorticks_off()


def interval_arms(measures: Sequence[Measure]) -> list[list[float]]:
    """Return how far each interval reaches down and up; 0 where that is unknown or endless."""
    lengths: list[list[float]] = [[], []]
    for measure in measures:
        for length, end, sign in zip(lengths, (measure.low, measure.high), (-1, 1), strict=True):
            reach = math.inf if end is None else sign * (end - measure.value)
            length.append(reach if math.isfinite(reach) else 0.0)
    return lengths


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
    return KNOWN_MEASURES.get(name, ("", ""))[1] == "x" and all(value > 0 for value in values)


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


def wrap_name(name: str, width: int = 26) -> str:
    """Return a name on as many lines as it needs."""
    return "\n".join(wrap(name, width)) or name


def make_distinct(names: Iterable[str]) -> list[str]:
    """Return the names, the second of one name with (2) behind it, and so on."""
    seen: Counter[str] = Counter()
    result: list[str] = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


Point = tuple[float, float]
Boxes = NDArray[np.float64]  # left, low, right, high in pixels, one row for each box

# distances in points: close ones need no line to their point
_DISTANCES = (7.0, 16.0, 28.0, 42.0, 58.0, 76.0)
# between the arms of an interval first, and right of the point first
_SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
# how many crossed lines weigh as much as one point of distance
_WEIGHT = 1 / 16


def place_labels(
    ax: "Axes", texts: Sequence[str], points: Sequence[Point], lines: Boxes
) -> "tuple[list[Annotation], bool]":
    """Write each text near its point where it covers no other text and no point.

    Parameters
    ----------
    ax : Axes
        Axes whose limits and size will not change any more.
    texts : sequence of str
        What to write.
    points : sequence of (float, float)
        Where the points are, in data coordinates.
    lines : ndarray of shape (n, 4)
        What had better not be covered: left, low, right and high end, in pixels.

    Returns
    -------
    list of Annotation
        The labels.
    bool
        Whether all of them found a free place.
    """
    ax.figure.figure.draw_without_rendering()
    half = 4.5 * ax.figure.figure.dpi / 72
    centres = ax.transData.transform(points)
    taken: Boxes = np.hstack([centres - half, centres + half])
    labels: list[Annotation] = []
    is_free = True
    for text, point in zip(texts, points, strict=True):
        label = _write_label(ax, text, point)
        area, covers = _place_label(ax, label, taken, lines)
        taken = np.vstack([taken, area])
        is_free &= not covers
        labels.append(label)
    return labels, is_free


def _write_label(ax: "Axes", text: str, point: Point) -> "Annotation":
    line: dict[str, Any] = {"arrowstyle": "-", "color": "0.5", "linewidth": 0.7, "shrinkB": 4}
    place: dict[str, Any] = {"xytext": (0, 0), "textcoords": "offset points", "zorder": 4}
    label = ax.annotate(text, point, fontsize="small", arrowprops=line, **place)
    # a label inside its axes takes no part in the layout, which would change the limits in pixels
    label.set_in_layout(False)
    return label


def _place_label(ax: "Axes", label: "Annotation", taken: Boxes, lines: Boxes) -> tuple[Boxes, bool]:
    """Move a label to its best place; return the area and whether it covers something."""
    sides = np.tile(np.array(_SIDES, float), (len(_DISTANCES), 1))
    distances = np.repeat(_DISTANCES, len(_SIDES))
    offsets = sides / np.linalg.norm(sides, axis=1, keepdims=True) * distances[:, None]
    areas = _label_areas(ax, label, sides, offsets)
    frame = np.array([ax.get_window_extent().extents])
    sizes = (areas[:, 2] - areas[:, 0]) * (areas[:, 3] - areas[:, 1])
    covered = _overlap_areas(areas, taken).sum(axis=1) + sizes - _overlap_areas(areas, frame)[:, 0]
    crossed = _boxes_touch(areas, lines).sum(axis=1) + _WEIGHT * distances
    # a pixel or so is rounding; among free places the short way with few lines under the text
    best = np.lexsort((crossed, np.where(covered > 1, covered, 0)))[0]
    across, up = sides[best].astype(int)
    label.set_position(tuple(offsets[best]))
    label.set_horizontalalignment(("center", "left", "right")[across])
    label.set_verticalalignment(("center", "bottom", "top")[up])
    if label.arrow_patch is not None:
        label.arrow_patch.set_visible(bool(distances[best] > _DISTANCES[0]))
    return areas[best], bool(covered[best] > 1)


def _label_areas(ax: "Axes", label: "Annotation", sides: Boxes, offsets: Boxes) -> Boxes:
    """Return what the text would cover at each place."""
    from matplotlib.text import Text

    extent = Text.get_window_extent(label)  # of the text alone, without the line to its point
    size = np.array([extent.width, extent.height])
    anchors = ax.transData.transform(label.xy) + offsets * ax.figure.figure.dpi / 72
    low = anchors + size * (sides - 1) / 2
    return np.hstack([low, low + size])


def _overlap_areas(a: Boxes, b: Boxes) -> Boxes:
    """Return the area that each box of `a` has in common with each of `b`."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.clip(high - low, 0, None)
    return np.asarray(sides[..., 0] * sides[..., 1])


def _boxes_touch(a: Boxes, b: Boxes) -> NDArray[np.bool_]:
    """Return which boxes of `a` touch which of `b`, which may be lines without an area."""
    apart = (a[:, None, :2] > b[None, :, 2:]) | (b[None, :, :2] > a[:, None, 2:])
    return np.asarray(~apart.any(axis=2))
