"""Speed against what it costs: the methods nobody beats in both."""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from letheon.measures import Measure
from letheon.plot._axes import (
    COLOURS,
    MARKERS,
    arms,
    axis_label,
    draw_endless,
    is_ratio,
    log_ticks,
    new_axes,
    place_labels,
    wrap_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation


_WIDTH, _HEIGHT = 7.8, 5.0
# Not transparent: the intervals would cross the marker and fill it.
_HOLLOW = "white"


def pareto_front(
    points: Mapping[str, Mapping[str, Measure]], names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return who is beaten by nobody: as good in all measures and better in one.

    Parameters
    ----------
    points : mapping of str to mapping of str to Measure
        For each method its measures; values count, not intervals.
    names : tuple of str
        The measures compared.

    Examples
    --------
    >>> from letheon.measures import efficiency, effectiveness_from_values
    >>> slow = {"a": efficiency(9, 3), "b": effectiveness_from_values(0.9, 0.9)}
    >>> fast = {"a": efficiency(9, 1), "b": effectiveness_from_values(0.8, 0.9)}
    >>> poor = {"a": efficiency(9, 2), "b": effectiveness_from_values(0.7, 0.9)}
    >>> pareto_front({"slow": slow, "fast": fast, "poor": poor}, ("a", "b"))
    ('slow', 'fast')
    """
    losses = {
        who: tuple(-m.value if m.better == "higher" else m.value for m in (row[n] for n in names))
        for who, row in points.items()
    }
    return tuple(who for who, mine in losses.items() if not _is_beaten(mine, losses.values()))


def _is_beaten(mine: tuple[float, ...], others: Any) -> bool:
    return any(
        other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in others
    )


class ParetoDisplay:
    """Efficiency against effectiveness, or any measure against any other.

    The line is the Pareto front of the two measures drawn: no method is better than those on it
    in one measure and as good in the other. What is outside a tolerance is shaded.

    Parameters
    ----------
    points : mapping of str to mapping of str to Measure
        For each method its measures by name. Methods without both measures are not drawn.
    x, y : str, default="effectiveness" and "efficiency"
        The measures on the two axes.
    tolerances : mapping of str to float, optional
        The worst value allowed of some measures; those not drawn are not used.
    chosen : str, optional
        The method to be ringed.
    doubtful : collection of str, default=()
        Methods that are not surely within all tolerances, those not drawn included: their markers
        are hollow.

    Attributes
    ----------
    points, x, y, tolerances, chosen, doubtful
        As given; `points` without those that lack a measure.
    front_ : tuple of str
        The methods on the front, by `x`.
    ax_ : Axes
        The axes, after `plot`.
    bars_ : dict of str to ErrorbarContainer
        Marker and intervals of each method.
    labels_ : dict of str to Annotation
        The name, or its number where names had no room, at each point.
    line_ : Line2D
        The front, as a staircase.
    figure_ : Figure
        The figure drawn on.

    Examples
    --------
    >>> display = ParetoDisplay(points, tolerances={"effectiveness": 0.02})  # doctest: +SKIP
    >>> display.plot()  # doctest: +SKIP
    """

    ax_: "Axes"
    bars_: "dict[str, ErrorbarContainer]"
    labels_: "dict[str, Annotation]"
    line_: "Line2D"
    figure_: "Figure"

    def __init__(
        self,
        points: Mapping[str, Mapping[str, Measure]],
        *,
        x: str = "effectiveness",
        y: str = "efficiency",
        tolerances: Mapping[str, float] | None = None,
        chosen: str | None = None,
        doubtful: Collection[str] = (),
    ) -> None:
        self.points = {
            name: row for name, row in points.items() if _is_finite(row, x) and _is_finite(row, y)
        }
        if not self.points:
            raise ValueError(f"no method has finite values of both {x} and {y}")
        if chosen is not None and chosen not in points:
            raise ValueError(f"chosen={chosen!r} is not among {sorted(points)}")
        unknown = sorted(set(doubtful) - points.keys())
        if unknown:
            raise ValueError(f"doubtful: {unknown[0]!r} is not among {sorted(points)}")
        self.x, self.y = x, y
        self.tolerances = dict(tolerances or {})
        self.chosen, self.doubtful = chosen, frozenset(doubtful)
        front = pareto_front(self.points, (x, y))
        self.front_ = tuple(sorted(front, key=lambda name: self.points[name][x].value))

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        ParetoDisplay
            Itself, with `ax_`, `bars_`, `labels_`, `line_` and `figure_`.
        """
        self._is_own_figure = ax is None
        self.ax_ = ax = new_axes(1, _WIDTH, _HEIGHT)[0] if ax is None else ax
        self.figure_ = ax.figure.figure
        self.bars_ = {name: self._point(name, i) for i, name in enumerate(self.points)}
        self.line_ = self._front_line()
        self._ring()
        self._explain_hollow()
        self._axes()
        self._shade()
        self._name_points()
        return self

    def _measures(self, which: str) -> list[Measure]:
        return [row[which] for row in self.points.values()]

    def _place(self, name: str) -> tuple[float, float]:
        return self.points[name][self.x].value, self.points[name][self.y].value

    def _point(self, name: str, number: int) -> "ErrorbarContainer":
        row = self.points[name]
        x, y = self._place(name)
        colour = COLOURS[number % len(COLOURS)]
        draw_endless(self.ax_, "x", y, row[self.x], colour)
        draw_endless(self.ax_, "y", x, row[self.y], colour)
        return self.ax_.errorbar(
            [x],
            [y],
            xerr=arms([row[self.x]]),
            yerr=arms([row[self.y]]),
            color=colour,
            # the second round of colours has other markers
            marker=MARKERS[(number + number // len(COLOURS)) % len(MARKERS)],
            markersize=7,
            markerfacecolor=_HOLLOW if name in self.doubtful else colour,
            elinewidth=1,
            linestyle="none",
            zorder=3,
        )

    def _front_line(self) -> "Line2D":
        places = [self._place(name) for name in self.front_]
        # the corner of a step is where both neighbours still are at least as good
        is_high_better = self.points[self.front_[0]][self.x].better == "higher"
        (line,) = self.ax_.plot(
            [x for x, _ in places],
            [y for _, y in places],
            color="0.35",
            linewidth=1.2,
            drawstyle="steps-pre" if is_high_better else "steps-post",
            label="Pareto front",
            zorder=2,
        )
        return line

    def _ring(self) -> None:
        if self.chosen in self.points:
            x, y = self._place(self.chosen)
            self.ax_.plot(
                [x],
                [y],
                "o",
                markersize=17,
                markerfacecolor="none",
                color="black",
                markeredgewidth=1.6,
                linestyle="none",
                label="chosen",
            )

    def _explain_hollow(self) -> None:
        """Add what a hollow marker means to the legend, if there is one."""
        if self.doubtful & self.points.keys():
            self.ax_.plot(
                [],
                [],
                "o",
                markersize=7,
                markerfacecolor=_HOLLOW,
                color="0.35",
                linestyle="none",
                label="not surely within tolerance",
            )

    def _axes(self) -> None:
        ax = self.ax_
        ax.margins(0.12)
        for which, name in (("x", self.x), ("y", self.y)):
            if is_ratio(name, (m.value for m in self._measures(name))):
                ax.set(**{f"{which}scale": "log"})
                log_ticks(ax, which)
        ax.set(
            title=f"{self.y.capitalize()} against {self.x}",
            xlabel=axis_label(self.x, self._measures(self.x)),
            ylabel=axis_label(self.y, self._measures(self.y)),
        )
        ax.grid(alpha=0.3)

    def _shade(self) -> None:
        """Shade what is worse than a tolerance, up to the edge of the axes."""
        ax = self.ax_
        label: str | None = "outside tolerance"
        for name, span, limits in (
            (self.x, ax.axvspan, ax.set_xlim),
            (self.y, ax.axhspan, ax.set_ylim),
        ):
            if name not in self.tolerances:
                continue
            edge = self.tolerances[name]
            low, high = self._limits(name, edge)
            better_high = self._measures(name)[0].better == "higher"
            worst = low if better_high else high
            span(min(edge, worst), max(edge, worst), color="0.5", alpha=0.18, lw=0, label=label)
            limits(low, high)
            label = None

    def _limits(self, name: str, edge: float) -> tuple[float, float]:
        """Return limits that leave some of the region outside tolerance in sight."""
        is_x = name == self.x
        low, high = self.ax_.get_xlim() if is_x else self.ax_.get_ylim()
        scale = self.ax_.get_xscale() if is_x else self.ax_.get_yscale()
        if scale == "log":
            room = (high / low) ** 0.1
            return (min(low, edge / room), max(high, edge * room)) if edge > 0 else (low, high)
        room = 0.1 * (high - low)
        return min(low, edge - room), max(high, edge + room)

    def _name_points(self) -> None:
        """Write the names; numbers and a key where the names have no room."""
        self._legend(())
        places = [self._place(name) for name in self.points]
        names = [wrap_name(name) for name in self.points]
        labels, is_free = place_labels(self.ax_, names, places, self._lines())
        if not is_free:
            for label in labels:
                label.remove()
            numbers = [str(number) for number in range(1, len(places) + 1)]
            self._legend(tuple(zip(numbers, self.points, strict=True)))
            labels, _ = place_labels(self.ax_, numbers, places, self._lines())
        self.labels_ = dict(zip(self.points, labels, strict=True))

    def _lines(self) -> NDArray[np.float64]:
        """Return the boxes of the intervals and of the front, in pixels."""
        self.figure_.draw_without_rendering()
        drawn = [arm for bars in self.bars_.values() for arm in bars.lines[2]]
        segments = [segment for arm in drawn for segment in arm.get_segments()]
        is_post = self.line_.get_drawstyle() == "steps-post"
        for start, end in pairwise(self._place(name) for name in self.front_):
            corner = (end[0], start[1]) if is_post else (start[0], end[1])
            segments += [np.array([start, corner]), np.array([corner, end])]
        ends = [self.ax_.transData.transform(segment) for segment in segments]
        return np.array([[*line.min(axis=0), *line.max(axis=0)] for line in ends])

    def _legend(self, key: Sequence[tuple[str, str]]) -> None:
        handles, texts = self.ax_.get_legend_handles_labels()
        for number, name in key:
            # the marker alone: its intervals would be mistaken for signs
            handles.append(self.bars_[name].lines[0])
            texts.append(wrap_name(f"{number}: {name}", 34))
        n_lines = sum(1 + text.count("\n") for text in texts)
        if self._is_own_figure:
            self.figure_.set_figheight(max(_HEIGHT, 1 + 0.19 * n_lines))
        # beside the points: inside it would hide some of many
        self.ax_.legend(
            handles, texts, frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize="small"
        )


def _is_finite(row: Mapping[str, Measure], name: str) -> bool:
    return name in row and math.isfinite(row[name].value)
