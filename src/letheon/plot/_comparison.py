"""Plots that compare methods: their properties, and the Pareto front of two measures."""

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
    PanelsDisplay,
    SingleDisplay,
    axis_label,
    draw_endless,
    interval_arms,
    is_ratio,
    line_style,
    log_ticks,
    make_distinct,
    place_labels,
    wrap_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation


_USUAL = ("efficiency", "effectiveness", "output consistency", "prediction gap", "certifiability")
# Values of a method that is as good as retraining.
_IDEAL = {"efficiency": 1.0, "effectiveness": 0.0, "certifiability": 0.0, "prediction gap": 0.0}
# Distance between the baselines of one method; methods are at distance 1.
_SPREAD = 0.5


class EvaluationDisplay(PanelsDisplay):
    """Efficiency, effectiveness, consistency and certifiability of methods, with intervals.

    There is one panel per measure, one line per method and one colour per baseline. Hollow markers
    show values that follow from a theorem and were not observed.

    Parameters
    ----------
    rows : mapping of str to mapping of str to mapping of str to Measure
        For each method and each baseline, the measures by name. Missing measures are not drawn.
    measures : sequence of str, optional
        The panels. By default efficiency, effectiveness, output consistency or prediction gap,
        and certifiability, if there are values.

    Attributes
    ----------
    rows, measures
        As given; `measures` with the default filled in.
    ax_ : tuple of Axes
        One per measure, after `plot`.
    bars_ : dict of (str, str) to ErrorbarContainer
        Markers with intervals by measure and baseline, in the order of the methods.
    figure_ : Figure
        The figure.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from letheon.measures import make_measure
    >>> speed_up = make_measure("efficiency", 8, (7, 9), 10)
    >>> display = EvaluationDisplay({"SISA": {"same algorithm": {"efficiency": speed_up}}})
    >>> list(display.plot([Figure().subplots()]).bars_)
    [('efficiency', 'same algorithm')]
    """

    bars_: "dict[tuple[str, str], ErrorbarContainer]"

    def __init__(
        self,
        rows: Mapping[str, Mapping[str, Mapping[str, Measure]]],
        *,
        measures: Sequence[str] | None = None,
    ) -> None:
        self.rows = {method: dict(baselines) for method, baselines in rows.items()}
        known = {name for b in self.rows.values() for m in b.values() for name in m}
        if not known:
            raise ValueError("rows contains no measures; expected at least one")
        if unknown := set(measures or ()) - known:
            raise ValueError(
                f"unknown measures: {sorted(unknown)}; expected names from {sorted(known)}"
            )
        usual = [name for name in _USUAL if name in known]
        self.measures = tuple(measures or usual or sorted(known))

    @classmethod
    def from_evaluations(
        cls, *evaluations: Any, measures: Sequence[str] | None = None, ax: Any = None
    ) -> Self:
        """Plot the results of `letheon.evaluate`.

        Parameters
        ----------
        *evaluations : Evaluation
            One per method; duplicate titles are numbered.
        measures : sequence of str, optional
            The panels; see `EvaluationDisplay`.
        ax : sequence of Axes, optional
            One per measure; by default a new figure.
        """
        titles = make_distinct(str(e.title or e.method) for e in evaluations)
        rows = {title: e.measures for title, e in zip(titles, evaluations, strict=True)}
        return cls(rows, measures=measures).plot(ax)

    def plot(self, ax: "Sequence[Axes] | None" = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : sequence of Axes, optional
            One per measure; by default a new figure.

        Returns
        -------
        EvaluationDisplay
            This object, with `ax_`, `bars_` and `figure_`.
        """
        n_panels = len(self.measures)
        size = 1.6 + 2.9 * n_panels, 1.7 + 0.5 * len(self.rows)
        self._take_axes(ax, (1, n_panels), size, "these measures")
        self.bars_ = {}
        for number, (panel, name) in enumerate(zip(self.ax_, self.measures, strict=True)):
            self._draw_panel(panel, name, with_names=number == 0)
        self._draw_legend()
        return self

    def _list_baselines(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))

    def _draw_panel(self, ax: "Axes", name: str, *, with_names: bool) -> None:
        drawn: list[Measure] = []
        for number, baseline in enumerate(self._list_baselines()):
            points = {
                place: row[baseline][name]
                for place, row in enumerate(self.rows.values())
                if name in row.get(baseline, {})
            }
            if points:
                self.bars_[name, baseline] = self._draw_points(ax, points, number)
                drawn += points.values()
        if name in _IDEAL:
            ax.axvline(_IDEAL[name], color="0.5", linestyle="--", linewidth=1, zorder=0)
        if is_ratio(name, (m.value for m in drawn)):
            ax.set_xscale("log")
            log_ticks(ax, "x")
        names = [wrap_name(method) if with_names else "" for method in self.rows]
        ax.set_yticks(range(len(self.rows)), names)
        ax.set_ylim(len(self.rows) - 0.5, -0.5)
        ax.set(title=name[:1].upper() + name[1:], xlabel=axis_label(name, drawn))
        ax.grid(alpha=0.3, axis="x")
        for edge in range(1, len(self.rows)):
            ax.axhline(edge - 0.5, color="0.85", linewidth=0.8, zorder=0)

    def _draw_points(
        self, ax: "Axes", points: Mapping[int, Measure], number: int
    ) -> "ErrorbarContainer":
        count, look = len(self._list_baselines()), line_style(number)
        shift, colour = _SPREAD * (number - (count - 1) / 2) / count, look["color"]
        finite: dict[float, Measure] = {}
        for row, measure in points.items():
            place = row + shift
            if not math.isfinite(measure.value):
                _mark_infinity(ax, place, measure.value, colour)
                continue
            finite[place] = measure
            fill = "white" if measure.basis == "by proof" else colour
            ax.plot(measure.value, place, **look, markerfacecolor=fill, zorder=3)
            draw_endless(ax, "x", place, measure, colour)
        values, reach = [m.value for m in finite.values()], interval_arms(list(finite.values()))
        lines: dict[str, Any] = {"color": colour, "linestyle": "none", "capsize": 3}
        return ax.errorbar(values, list(finite), xerr=reach, **lines)

    def _draw_legend(self) -> None:
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], label=f"compared with {name}", **line_style(number))
            for number, name in enumerate(self._list_baselines())
        ]
        measures = [m for row in self.rows.values() for b in row.values() for m in b.values()]
        if any(m.basis == "by proof" and m.name in self.measures for m in measures):
            hollow: dict[str, Any] = {"color": "0.3", "marker": "o", "markerfacecolor": "white"}
            handles.append(Line2D([], [], linestyle="none", label="by proof", **hollow))
        # Outside the panel, where it hides no values.
        self.ax_[-1].legend(
            handles=handles, frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1)
        )


def _mark_infinity(ax: "Axes", place: float, value: float, colour: str) -> None:
    """Write ∞ (or −∞) at the right (or left) edge of the axes, for an infinite value."""
    side, where, sign = (0.98, "right", "∞") if value > 0 else (0.02, "left", "−∞")
    across = ax.get_yaxis_transform()
    ax.text(side, place, sign, color=colour, ha=where, va="center", transform=across)


_WIDTH, _HEIGHT = 7.8, 5.0
# Not transparent, because the error bars would show through.
_HOLLOW = "white"
_RING: dict[str, Any] = {
    "markersize": 17,
    "markerfacecolor": "none",
    "color": "black",
    "markeredgewidth": 1.6,
    "linestyle": "none",
}
_DOUBT: dict[str, Any] = {
    "markersize": 7,
    "markerfacecolor": _HOLLOW,
    "color": "0.35",
    "linestyle": "none",
}


def pareto_front(
    points: Mapping[str, Mapping[str, Measure]], names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the methods that are not dominated by any other method.

    A method is dominated if another method is at least as good in all measures and better in at
    least one.

    Parameters
    ----------
    points : mapping of str to mapping of str to Measure
        Measures by name for each method; only the values are used, not the intervals.
    names : tuple of str
        The measures to compare.

    Returns
    -------
    tuple of str

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
        name: tuple(-m.value if m.better == "higher" else m.value for m in (row[n] for n in names))
        for name, row in points.items()
    }
    return tuple(name for name, own in losses.items() if not _is_dominated(own, losses.values()))


def _is_dominated(own: tuple[float, ...], others: Any) -> bool:
    return any(
        other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in others
    )


class ParetoDisplay(SingleDisplay):
    """Efficiency against effectiveness, or any measure against any other.

    The line is the Pareto front of the two measures. The region outside a tolerance is shaded.

    Parameters
    ----------
    points : mapping of str to mapping of str to Measure
        Measures by name for each method. Methods without both measures are not drawn.
    x, y : str, default="effectiveness" and "efficiency"
        The measures on the two axes.
    tolerances : mapping of str to float, optional
        Worst accepted values, by measure; measures other than `x` and `y` are ignored.
    chosen : str, optional
        The chosen method, marked with a ring.
    doubtful : collection of str, default=()
        Methods that are not certainly within all tolerances, drawn with hollow markers.

    Attributes
    ----------
    points, x, y, tolerances, chosen, doubtful
        As given; `points` without methods that lack a measure.
    front_ : tuple of str
        The methods on the Pareto front, sorted by `x`.
    ax_ : Axes
        The axes, after `plot`.
    bars_ : dict of str to ErrorbarContainer
        Marker and intervals of each method.
    labels_ : dict of str to Annotation
        The name at each point, or its number if the names need too much space.
    line_ : Line2D
        The Pareto front, as a step function.
    figure_ : Figure
        The figure.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from letheon.measures import efficiency, effectiveness_from_values
    >>> points = {"SISA": {"efficiency": efficiency(9, 3),
    ...                    "effectiveness": effectiveness_from_values(0.89, 0.9)}}
    >>> display = ParetoDisplay(points, tolerances={"effectiveness": 0.02})
    >>> display.plot(Figure().subplots()).front_
    ('SISA',)
    """

    bars_: "dict[str, ErrorbarContainer]"
    labels_: "dict[str, Annotation]"
    line_: "Line2D"

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
            raise ValueError(f"points has no method with finite values of both {x} and {y}")
        if chosen is not None and chosen not in points:
            raise ValueError(f"chosen must be one of {sorted(points)}, not {chosen!r}")
        for name in sorted(set(doubtful) - points.keys()):
            raise ValueError(f"doubtful contains {name!r}; expected names from {sorted(points)}")
        self.x, self.y = x, y
        self.tolerances = dict(tolerances or {})
        self.chosen, self.doubtful = chosen, frozenset(doubtful)
        front = pareto_front(self.points, (x, y))
        self.front_ = tuple(sorted(front, key=lambda name: self.points[name][x].value))

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : Axes, optional
            Axes to draw on; by default a new figure.

        Returns
        -------
        ParetoDisplay
            This object, with `ax_`, `bars_`, `labels_`, `line_` and `figure_`.
        """
        self._is_own_figure = ax is None
        self._take_axes(ax, _WIDTH, _HEIGHT)
        self.bars_ = {name: self._draw_point(name, i) for i, name in enumerate(self.points)}
        self.line_ = self._front_line()
        if self.chosen in self.points:
            x, y = self._get_position(self.chosen)
            self.ax_.plot([x], [y], "o", **_RING, label="chosen")
        if self.doubtful & self.points.keys():
            self.ax_.plot([], [], "o", **_DOUBT, label="not certainly within tolerance")
        self._label_axes()
        self._shade_outside()
        self._name_points()
        return self

    def _get_measures(self, which: str) -> list[Measure]:
        return [row[which] for row in self.points.values()]

    def _get_position(self, name: str) -> tuple[float, float]:
        return self.points[name][self.x].value, self.points[name][self.y].value

    def _draw_point(self, name: str, number: int) -> "ErrorbarContainer":
        row = self.points[name]
        x, y = self._get_position(name)
        colour = COLOURS[number % len(COLOURS)]
        draw_endless(self.ax_, "x", y, row[self.x], colour)
        draw_endless(self.ax_, "y", x, row[self.y], colour)
        look: dict[str, Any] = {"color": colour, "markersize": 7, "elinewidth": 1, "zorder": 3}
        # When colours repeat, the markers differ.
        look["marker"] = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
        look["markerfacecolor"] = _HOLLOW if name in self.doubtful else colour
        across, up = interval_arms([row[self.x]]), interval_arms([row[self.y]])
        return self.ax_.errorbar([x], [y], xerr=across, yerr=up, linestyle="none", **look)

    def _front_line(self) -> "Line2D":
        places = [self._get_position(name) for name in self.front_]
        # The corner of a step is the worst point that both neighbours dominate.
        is_high_better = self.points[self.front_[0]][self.x].better == "higher"
        steps = "steps-pre" if is_high_better else "steps-post"
        look: dict[str, Any] = {"color": "0.35", "linewidth": 1.2, "drawstyle": steps, "zorder": 2}
        xs, ys = zip(*places, strict=True)
        (line,) = self.ax_.plot(xs, ys, **look, label="Pareto front")
        return line

    def _label_axes(self) -> None:
        ax = self.ax_
        ax.margins(0.12)
        for which, name in (("x", self.x), ("y", self.y)):
            if is_ratio(name, (m.value for m in self._get_measures(name))):
                ax.set(**{f"{which}scale": "log"})
                log_ticks(ax, which)
        ax.set(
            title=f"{self.y.capitalize()} against {self.x}",
            xlabel=axis_label(self.x, self._get_measures(self.x)),
            ylabel=axis_label(self.y, self._get_measures(self.y)),
        )
        ax.grid(alpha=0.3)

    def _shade_outside(self) -> None:
        """Shade the regions outside the tolerances of x and y, up to the edge of the axes."""
        ax = self.ax_
        label: str | None = "outside tolerance"
        for name, span, limits in (
            (self.x, ax.axvspan, ax.set_xlim),
            (self.y, ax.axhspan, ax.set_ylim),
        ):
            if name not in self.tolerances:
                continue
            edge = self.tolerances[name]
            low, high = self._axis_limits(name, edge)
            worst = low if self._get_measures(name)[0].better == "higher" else high
            span(min(edge, worst), max(edge, worst), color="0.5", alpha=0.18, lw=0, label=label)
            limits(low, high)
            label = None

    def _axis_limits(self, name: str, edge: float) -> tuple[float, float]:
        """Return limits of the axis of a measure, so that values beyond `edge` are visible too."""
        is_x = name == self.x
        low, high = self.ax_.get_xlim() if is_x else self.ax_.get_ylim()
        scale = self.ax_.get_xscale() if is_x else self.ax_.get_yscale()
        if scale == "log":
            room = (high / low) ** 0.1
            return (min(low, edge / room), max(high, edge * room)) if edge > 0 else (low, high)
        room = 0.1 * (high - low)
        return min(low, edge - room), max(high, edge + room)

    def _name_points(self) -> None:
        """Write the names of the methods; numbers with a legend if there is too little space."""
        self._draw_legend(())
        places = [self._get_position(name) for name in self.points]
        names = [wrap_name(name) for name in self.points]
        labels, is_free = place_labels(self.ax_, names, places, self._line_boxes())
        if not is_free:
            for label in labels:
                label.remove()
            numbers = [str(number) for number in range(1, len(places) + 1)]
            self._draw_legend(tuple(zip(numbers, self.points, strict=True)))
            labels, _ = place_labels(self.ax_, numbers, places, self._line_boxes())
        self.labels_ = dict(zip(self.points, labels, strict=True))

    def _line_boxes(self) -> NDArray[np.float64]:
        """Return the boxes of all error bars and segments of the Pareto front, in pixels."""
        self.figure_.draw_without_rendering()
        drawn = [arm for bars in self.bars_.values() for arm in bars.lines[2]]
        segments = [segment for arm in drawn for segment in arm.get_segments()]
        is_post = self.line_.get_drawstyle() == "steps-post"
        for start, end in pairwise(self._get_position(name) for name in self.front_):
            corner = (end[0], start[1]) if is_post else (start[0], end[1])
            segments += [np.array([start, corner]), np.array([corner, end])]
        ends = [self.ax_.transData.transform(segment) for segment in segments]
        return np.array([[*line.min(axis=0), *line.max(axis=0)] for line in ends])

    def _draw_legend(self, key: Sequence[tuple[str, str]]) -> None:
        handles, texts = self.ax_.get_legend_handles_labels()
        for number, name in key:
            # Only the marker, without error bars.
            handles.append(self.bars_[name].lines[0])
            texts.append(wrap_name(f"{number}: {name}", 34))
        n_lines = sum(1 + text.count("\n") for text in texts)
        if self._is_own_figure:
            self.figure_.set_figheight(max(_HEIGHT, 1 + 0.19 * n_lines))
        # Outside the axes, where it hides no points.
        place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
        self.ax_.legend(handles, texts, frameon=False, fontsize="small", **place)


def _is_finite(row: Mapping[str, Measure], name: str) -> bool:
    return name in row and math.isfinite(row[name].value)
