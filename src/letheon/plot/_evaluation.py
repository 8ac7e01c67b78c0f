"""The four properties of several methods, side by side."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from letheon.measures import Measure
from letheon.plot._axes import (
    arms,
    axis_label,
    draw_endless,
    is_ratio,
    log_ticks,
    make_distinct,
    new_axes,
    require_panels,
    style,
    wrap_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure


_USUAL = ("efficiency", "effectiveness", "output consistency", "prediction gap", "certifiability")
# what a method that is as good as retraining reaches
_IDEAL = {"efficiency": 1.0, "effectiveness": 0.0, "certifiability": 0.0, "prediction gap": 0.0}
# the baselines of one method stand this far apart; the next method is at distance 1
_SPREAD = 0.5


class EvaluationDisplay:
    """Efficiency, effectiveness, consistency and certifiability of each method, with intervals.

    One panel for each measure, one line for each method, one colour for each baseline. A hollow
    marker was not observed: it follows from a theorem.

    Parameters
    ----------
    rows : mapping of str to mapping of str to mapping of str to Measure
        For each method and each baseline the measures by name. What a baseline lacks is left
        out.
    measures : sequence of str, optional
        The panels. By default efficiency, effectiveness, output consistency or prediction gap,
        and certifiability, as far as somebody has them.

    Attributes
    ----------
    rows, measures
        As given; `measures` with the default filled in.
    ax_ : tuple of Axes
        One for each measure, after `plot`.
    bars_ : dict of (str, str) to ErrorbarContainer
        Markers with intervals, by measure and baseline; from the first method to the last.
    figure_ : Figure
        The figure drawn on.

    Examples
    --------
    >>> rows = {"SISA": {"same algorithm": {"efficiency": speed_up}}}  # doctest: +SKIP
    >>> display = EvaluationDisplay(rows).plot()  # doctest: +SKIP
    """

    ax_: "tuple[Axes, ...]"
    bars_: "dict[tuple[str, str], ErrorbarContainer]"
    figure_: "Figure"

    def __init__(
        self,
        rows: Mapping[str, Mapping[str, Mapping[str, Measure]]],
        *,
        measures: Sequence[str] | None = None,
    ) -> None:
        self.rows = {method: dict(baselines) for method, baselines in rows.items()}
        found = {name for b in self.rows.values() for m in b.values() for name in m}
        if not found:
            raise ValueError("there is no measure to draw")
        if unknown := set(measures or ()) - found:
            raise ValueError(f"nobody has these measures: {sorted(unknown)}")
        usual = [name for name in _USUAL if name in found]
        self.measures = tuple(measures or usual or sorted(found))

    @classmethod
    def from_evaluations(
        cls, *evaluations: Any, measures: Sequence[str] | None = None, ax: Any = None
    ) -> Self:
        """Draw what `letheon.evaluate` returned.

        Parameters
        ----------
        *evaluations : Evaluation
            One for each method; those of one title are numbered.
        measures : sequence of str, optional
            The panels; see `EvaluationDisplay`.
        ax : sequence of Axes, optional
            One for each measure; by default a new figure.
        """
        titles = make_distinct(str(e.title or e.method) for e in evaluations)
        rows = {title: e.measures for title, e in zip(titles, evaluations, strict=True)}
        return cls(rows, measures=measures).plot(ax)

    def plot(self, ax: "Sequence[Axes] | None" = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : sequence of Axes, optional
            One for each measure; by default a new figure.

        Returns
        -------
        EvaluationDisplay
            Itself, with `ax_`, `bars_` and `figure_`.
        """
        if ax is None:
            height = 1.7 + 0.5 * len(self.rows)
            ax = new_axes(len(self.measures), 1.6 + 2.9 * len(self.measures), height)
        self.ax_ = require_panels(ax, len(self.measures), "these measures")
        self.bars_ = {}
        for number, (panel, name) in enumerate(zip(self.ax_, self.measures, strict=True)):
            self._panel(panel, name, with_names=number == 0)
        self.figure_ = self.ax_[0].figure.figure
        self._legend()
        return self

    def _baselines(self) -> list[str]:
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))

    def _panel(self, ax: "Axes", name: str, *, with_names: bool) -> None:
        drawn: list[Measure] = []
        for number, baseline in enumerate(self._baselines()):
            points = {
                place: row[baseline][name]
                for place, row in enumerate(self.rows.values())
                if name in row.get(baseline, {})
            }
            if points:
                self.bars_[name, baseline] = self._points(ax, points, number)
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

    def _points(
        self, ax: "Axes", points: Mapping[int, Measure], number: int
    ) -> "ErrorbarContainer":
        count = len(self._baselines())
        shift = _SPREAD * (number - (count - 1) / 2) / count
        look = style(number)
        colour, marker = look["color"], look["marker"]
        finite = {place: m for place, m in points.items() if math.isfinite(m.value)}
        for place in points.keys() - finite.keys():
            _infinite(ax, place + shift, points[place].value, colour)
        for place, measure in finite.items():
            fill = "white" if measure.basis == "by proof" else colour
            ax.plot(
                measure.value, place + shift, marker, color=colour, markerfacecolor=fill, zorder=3
            )
            draw_endless(ax, "x", place + shift, measure, colour)
        return ax.errorbar(
            [m.value for m in finite.values()],
            [place + shift for place in finite],
            xerr=arms(list(finite.values())),
            color=colour,
            linestyle="none",
            capsize=3,
        )

    def _legend(self) -> None:
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], label=f"against {name}", **style(number))
            for number, name in enumerate(self._baselines())
        ]
        measures = [m for row in self.rows.values() for b in row.values() for m in b.values()]
        if any(m.basis == "by proof" and m.name in self.measures for m in measures):
            hollow: dict[str, Any] = {"color": "0.3", "marker": "o", "markerfacecolor": "white"}
            handles.append(Line2D([], [], linestyle="none", label="by proof", **hollow))
        # beside the last panel: inside it would hide some of many methods
        self.ax_[-1].legend(
            handles=handles, frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1)
        )


def _infinite(ax: "Axes", place: float, value: float, colour: str) -> None:
    """Write the sign of infinity at the edge of the axes."""
    side, where = (0.98, "right") if value > 0 else (0.02, "left")
    ax.text(
        side,
        place,
        "∞" if value > 0 else "−∞",
        color=colour,
        ha=where,
        va="center",
        transform=ax.get_yaxis_transform(),
    )
