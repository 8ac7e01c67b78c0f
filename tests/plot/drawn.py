"""Measures for the tests of displays, and functions that read drawn elements."""

from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from numpy.typing import NDArray

from letheon.measures import Better, Measure


def measure(
    name: str,
    value: float,
    arm: float | None = 0.1,
    *,
    better: Better = "lower",
    unit: str = "",
    confidence: float = 0.95,
) -> Measure:
    """A measure whose interval reaches `arm` of its value down and twice as far up."""
    low, high = (None, None) if arm is None else (value * (1 - arm), value * (1 + 2 * arm))
    return Measure(
        name=name,
        value=value,
        low=low,
        high=high,
        n=5,
        better=better,
        basis="measured",
        unit=unit,
        confidence=confidence,
    )


def speed(value: float, arm: float | None = 0.1) -> Measure:
    return measure("efficiency", value, arm, better="higher", unit="x")


def loss(value: float, arm: float | None = 0.1) -> Measure:
    return measure("effectiveness", value, arm)


def ends(m: Measure) -> tuple[float, float]:
    """The interval of a measure that has one."""
    assert m.low is not None
    assert m.high is not None
    return m.low, m.high


def xy(line: Line2D | None) -> NDArray[np.float64]:
    """The vertices of a line."""
    assert line is not None
    return np.asarray(line.get_xydata(), float)


def segments(bars: ErrorbarContainer, axis: int, which: int = 0) -> NDArray[Any]:
    """The two ends of each interval along the axis, of the given set of intervals."""
    return np.array([pair[:, axis] for pair in bars.lines[2][which].get_segments()])


def tick_labels(axis: Axis) -> list[Text]:
    """The tick labels that are drawn: those of places inside the axes."""
    low, high = sorted(axis.get_view_interval())
    inside = [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [label for label in inside if label.get_visible()]


def overlapping_texts(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of drawn titles, tick labels, labels of points or legends that cover each other."""
    figure.canvas.draw()
    boxes: list[tuple[str, Any]] = []
    for ax in figure.axes:
        texts: list[Text] = [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts]
        texts += [text for axis in (ax.xaxis, ax.yaxis) for text in tick_labels(axis)]
        # the text alone: the line from a label to its point may cross others
        boxes += [(t.get_text(), Text.get_window_extent(t)) for t in texts if t.get_text()]
        legend = ax.get_legend()
        if legend is not None:
            boxes.append(("legend", legend.get_window_extent()))
    return [(a, b) for (a, x), (b, y) in combinations(boxes, 2) if x.overlaps(y)]
