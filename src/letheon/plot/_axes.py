"""Common functions of the displays: axes, colours, axis labels, and labels of points."""

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


# Colours of Okabe and Ito, distinguishable for colour-blind readers; markers help in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def new_axes(n_rows: int, n_columns: int, width: float, height: float) -> "list[Axes]":
    """Return the axes of a new figure, row by row; all rows share the x axis.

    `width` and `height` are the size of the figure in inches.
    """
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
    """A display with several panels.

    Attributes
    ----------
    ax_ : tuple of Axes
        One for each panel, after `plot`.
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
        content: str,
    ) -> None:
        """Set `ax_` and `figure_`, by default to new axes; raise if the number of axes is wrong.

        `panels` is the number of rows and columns, `size` the size of a new figure in inches, and
        `content` what the axes show, for the error.
        """
        ax = new_axes(*panels, *size) if ax is None else ax
        n_panels = panels[0] * panels[1]
        if len(ax) != n_panels:
            raise ValueError(f"ax must have {n_panels} axes for {content}, not {len(ax)}")
        self.ax_, self.figure_ = tuple(ax), ax[0].figure.figure


class SingleDisplay:
    """A display with a single panel.

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
        """Set `ax_` and `figure_`, by default to new axes, and return the axes."""
        self.ax_ = new_axes(1, 1, width, height)[0] if ax is None else ax
        self.figure_ = self.ax_.figure.figure
        return self.ax_


def require_known(content: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise if `names` contains names that are not in `known`; `content` begins the error."""
    if unknown := set(names) - set(known):
        raise ValueError(f"{content}: {sorted(unknown)}; expected names from {sorted(known)}")


def plain_ticks(ax: "Axes", values: Sequence[float]) -> None:
    """Make the x axis logarithmic, with labels at up to eight of the values."""
    step = -(-len(values) // 8)
    ticks = list(values)[::step]
    ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    # The minor ticks of a logarithmic axis have labels, too.
    ax.xaxis.minorticks_off()


def interval_arms(measures: Sequence[Measure]) -> list[list[float]]:
    """Return the lengths of error bars below and above each value; 0 if unknown or infinite."""
    lengths: list[list[float]] = [[], []]
    for measure in measures:
        for length, end, sign in zip(lengths, (measure.low, measure.high), (-1, 1), strict=True):
            reach = math.inf if end is None else sign * (end - measure.value)
            length.append(reach if math.isfinite(reach) else 0.0)
    return lengths


def draw_endless(ax: "Axes", which: str, place: float, measure: Measure, colour: str) -> None:
    """Draw the infinite ends of an interval up to the edge of the axes, with unchanged limits.

    `which` is the axis of the measure, "x" or "y", and `place` the position on the other axis.
    """
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
    """Return whether a measure is a positive factor, to be drawn on a logarithmic axis."""
    return KNOWN_MEASURES.get(name, ("", ""))[1] == "x" and all(value > 0 for value in values)


def axis_label(name: str, measures: Sequence[Measure]) -> str:
    """Return an axis label with name, unit, confidence level and direction."""
    unit = f" [{measures[0].unit}]" if measures[0].unit else ""
    direction = f"{measures[0].better} is better"
    levels = {m.confidence for m in measures if m.low != m.high}
    interval = f"{100 * levels.pop():g} % CI, " if len(levels) == 1 else ""
    interval = "approximate CI, " if any(m.is_rough for m in measures) else interval
    return f"{name}{unit}\n{interval}{direction}"


def log_ticks(ax: "Axes", which: str) -> None:
    """Label a logarithmic axis with plain numbers: powers of ten, for small ranges also 2 and 5."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = ax.get_xlim() if which == "x" else ax.get_ylim()
    subs = (1, 2, 5) if high / low < 1000 else (1,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=7))
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axis.set_minor_locator(NullLocator())


def wrap_name(name: str, width: int = 26) -> str:
    """Return a name wrapped to lines of this width."""
    return "\n".join(wrap(name, width)) or name


def make_distinct(names: Iterable[str]) -> list[str]:
    """Return the names with " (2)", " (3)", ... appended to duplicates."""
    seen: Counter[str] = Counter()
    result: list[str] = []
    for name in names:
        seen[name] += 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


Point = tuple[float, float]
Boxes = NDArray[np.float64]  # Left, low, right, high in pixels, one row per box.

# Distances in points. Labels at the smallest distance need no line to their point.
_DISTANCES = (7.0, 16.0, 28.0, 42.0, 58.0, 76.0)
# Diagonal positions first, to avoid error bars; right of the point first.
_SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
# Weight of one point of distance, relative to one crossed line.
_WEIGHT = 1 / 16


def place_labels(
    ax: "Axes", texts: Sequence[str], points: Sequence[Point], lines: Boxes
) -> "tuple[list[Annotation], bool]":
    """Write each text near its point, if possible without covering other texts or points.

    Parameters
    ----------
    ax : Axes
        Axes with their final limits and size.
    texts : sequence of str
        The labels.
    points : sequence of (float, float)
        Positions of the points, in data coordinates.
    lines : ndarray of shape (n, 4)
        Lines to avoid: left, low, right and high end, in pixels.

    Returns
    -------
    list of Annotation
        The labels.
    bool
        Whether no label covers another label or a point.
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
    # Exclude the label from the layout, which would change the size of the axes.
    label.set_in_layout(False)
    return label


def _place_label(ax: "Axes", label: "Annotation", taken: Boxes, lines: Boxes) -> tuple[Boxes, bool]:
    """Move a label to its best position; return its box and whether it covers anything.

    `taken` contains the boxes of points and other labels.
    """
    sides = np.tile(np.array(_SIDES, float), (len(_DISTANCES), 1))
    distances = np.repeat(_DISTANCES, len(_SIDES))
    offsets = sides / np.linalg.norm(sides, axis=1, keepdims=True) * distances[:, None]
    areas = _label_areas(ax, label, sides, offsets)
    frame = np.array([ax.get_window_extent().extents])
    sizes = (areas[:, 2] - areas[:, 0]) * (areas[:, 3] - areas[:, 1])
    covered = _overlap_areas(areas, taken).sum(axis=1) + sizes - _overlap_areas(areas, frame)[:, 0]
    crossed = _boxes_touch(areas, lines).sum(axis=1) + _WEIGHT * distances
    # One pixel is rounding. Among free positions prefer short distances and few crossed lines.
    best = np.lexsort((crossed, np.where(covered > 1, covered, 0)))[0]
    across, up = sides[best].astype(int)
    label.set_position(tuple(offsets[best]))
    label.set_horizontalalignment(("center", "left", "right")[across])
    label.set_verticalalignment(("center", "bottom", "top")[up])
    if label.arrow_patch is not None:
        label.arrow_patch.set_visible(bool(distances[best] > _DISTANCES[0]))
    return areas[best], bool(covered[best] > 1)


def _label_areas(ax: "Axes", label: "Annotation", sides: Boxes, offsets: Boxes) -> Boxes:
    """Return the box of the label's text in pixels, at each of the positions to try."""
    from matplotlib.text import Text

    extent = Text.get_window_extent(label)  # Without the line to its point.
    size = np.array([extent.width, extent.height])
    anchors = ax.transData.transform(label.xy) + offsets * ax.figure.figure.dpi / 72
    low = anchors + size * (sides - 1) / 2
    return np.hstack([low, low + size])


def _overlap_areas(a: Boxes, b: Boxes) -> Boxes:
    """Return the area of the overlap of each box in `a` with each box in `b`."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.clip(high - low, 0, None)
    return np.asarray(sides[..., 0] * sides[..., 1])


def _boxes_touch(a: Boxes, b: Boxes) -> NDArray[np.bool_]:
    """Return for each pair of boxes from `a` and `b` whether they touch; a box may be a line."""
    apart = (a[:, None, :2] > b[None, :, 2:]) | (b[None, :, :2] > a[:, None, 2:])
    return np.asarray(~apart.any(axis=2))
