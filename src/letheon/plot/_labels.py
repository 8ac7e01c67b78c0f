"""Labels of points that do not cover each other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

__all__ = ["place_labels"]

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
        label = _write(ax, text, point)
        area, covers = _settle(ax, label, taken, lines)
        taken = np.vstack([taken, area])
        is_free &= not covers
        labels.append(label)
    return labels, is_free


def _write(ax: "Axes", text: str, point: Point) -> "Annotation":
    line: dict[str, Any] = {"arrowstyle": "-", "color": "0.5", "linewidth": 0.7, "shrinkB": 4}
    label = ax.annotate(
        text,
        point,
        xytext=(0, 0),
        textcoords="offset points",
        fontsize="small",
        arrowprops=line,
        zorder=4,
    )
    # a label inside its axes takes no part in the layout, which would change the limits in pixels
    label.set_in_layout(False)
    return label


def _settle(ax: "Axes", label: "Annotation", taken: Boxes, lines: Boxes) -> tuple[Boxes, bool]:
    """Move a label to its best place; return the area and whether it covers something."""
    sides = np.tile(np.array(_SIDES, float), (len(_DISTANCES), 1))
    distances = np.repeat(_DISTANCES, len(_SIDES))
    offsets = sides / np.linalg.norm(sides, axis=1, keepdims=True) * distances[:, None]
    areas = _areas(ax, label, sides, offsets)
    frame = np.array([ax.get_window_extent().extents])
    sizes = (areas[:, 2] - areas[:, 0]) * (areas[:, 3] - areas[:, 1])
    covered = _shared(areas, taken).sum(axis=1) + sizes - _shared(areas, frame)[:, 0]
    crossed = _touch(areas, lines).sum(axis=1) + _WEIGHT * distances
    # a pixel or so is rounding; among free places the short way with few lines under the text
    best = np.lexsort((crossed, np.where(covered > 1, covered, 0)))[0]
    across, up = sides[best].astype(int)
    label.set_position(tuple(offsets[best]))
    label.set_horizontalalignment(("center", "left", "right")[across])
    label.set_verticalalignment(("center", "bottom", "top")[up])
    if label.arrow_patch is not None:
        label.arrow_patch.set_visible(bool(distances[best] > _DISTANCES[0]))
    return areas[best], bool(covered[best] > 1)


def _areas(ax: "Axes", label: "Annotation", sides: Boxes, offsets: Boxes) -> Boxes:
    """Return what the text would cover at each place."""
    from matplotlib.text import Text

    extent = Text.get_window_extent(label)  # of the text alone, without the line to its point
    size = np.array([extent.width, extent.height])
    anchors = ax.transData.transform(label.xy) + offsets * ax.figure.figure.dpi / 72
    low = anchors + size * (sides - 1) / 2
    return np.hstack([low, low + size])


def _shared(a: Boxes, b: Boxes) -> Boxes:
    """Return the area that each box of `a` has in common with each of `b`."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.clip(high - low, 0, None)
    return np.asarray(sides[..., 0] * sides[..., 1])


def _touch(a: Boxes, b: Boxes) -> NDArray[np.bool_]:
    """Return which boxes of `a` touch which of `b`, which may be lines without an area."""
    apart = (a[:, None, :2] > b[None, :, 2:]) | (b[None, :, :2] > a[:, None, 2:])
    return np.asarray(~apart.any(axis=2))
