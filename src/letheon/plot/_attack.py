"""What attackers find, beside what they find where there is nothing."""

import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures import Measure
from letheon.plot._axes import (
    COLOURS,
    arms,
    axis_label,
    make_distinct,
    new_axes,
    require_panels,
    style,
    wrap_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.table import Table


Named = Mapping[str, Mapping[str, Measure]]
_GREY = "0.45"
_AT_FPR = re.compile(r"TPR at ([\d.]+) ?% FPR")


class AttackDisplay:
    """ROC curves of attacks on logarithmic axes, and their measures beside their floors.

    A floor is the same attack on models that were retrained without the forgotten people. An
    attack that reaches its floor has found nothing; chance is the dashed line. Attacks without a
    curve, such as KLOM, are bars.

    Parameters
    ----------
    curves : mapping of str to pair of array-like
        For some attacks the false and the true positive rates, ascending.
    measures : mapping of str to mapping of str to Measure, optional
        For each attack its measures, the main one first.
    floors : mapping of str to mapping of str to Measure, optional
        The same measures of the same attacks, retrain against retrain.

    Attributes
    ----------
    curves, measures, floors
        As given.
    ax_ : tuple of Axes
        After `plot`: curves and table if there is a curve, then one for each kind of bars.
    lines_ : dict of str to Line2D
        The curves.
    bars_ : dict of str to BarContainer
        The bars of the attacks without a curve, by measure.
    floor_bars_ : dict of str to BarContainer
        Their floors.
    table_ : Table or None
        Measures and floors of the attacks with a curve.
    figure_ : Figure
        The figure drawn on.

    Examples
    --------
    >>> display = AttackDisplay({"rmia": ([0, 0.1, 1], [0, 0.3, 1])}).plot()  # doctest: +SKIP
    """

    ax_: "tuple[Axes, ...]"
    lines_: "dict[str, Line2D]"
    bars_: "dict[str, BarContainer]"
    floor_bars_: "dict[str, BarContainer]"
    table_: "Table | None"
    figure_: "Figure"

    def __init__(
        self,
        curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
        *,
        measures: Named | None = None,
        floors: Named | None = None,
    ) -> None:
        self.curves = {name: _curve(name, *curve) for name, curve in curves.items()}
        self.measures = {name: dict(row) for name, row in (measures or {}).items()}
        self.floors = {name: dict(row) for name, row in (floors or {}).items()}
        if not self.curves and not any(self.measures.values()):
            raise ValueError("there is no attack to draw")
        if unknown := set(self.floors) - set(self.measures):
            raise ValueError(f"floors of unknown attacks: {sorted(unknown)}")

    @classmethod
    def from_results(cls, *results: Any, ax: Any = None) -> Self:
        """Draw what attacks returned.

        Parameters
        ----------
        *results : AttackResult
            Those with scores get a curve.
        ax : sequence of Axes, optional
            Where to draw; by default a new figure.
        """
        names = make_distinct(f"{result.attack} on {result.about}" for result in results)
        named = dict(zip(names, results, strict=True))
        curves = {name: _roc(r) for name, r in named.items() if _has_curve(r)}
        measures = {name: result.measures for name, result in named.items()}
        floors = {name: result.floor for name, result in named.items()}
        return cls(curves, measures=measures, floors=floors).plot(ax)

    def plot(self, ax: "Sequence[Axes] | None" = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : sequence of Axes, optional
            Two if there is a curve (curves, table) and one for each main measure of attacks
            without; by default a new figure.

        Returns
        -------
        AttackDisplay
            Itself, with `ax_`, `lines_`, `bars_`, `floor_bars_`, `table_` and `figure_`.
        """
        groups = self._groups()
        n_panels = 2 * bool(self.curves) + len(groups)
        ax = new_axes(n_panels, 4.9 * n_panels, 4.6) if ax is None else ax
        self.ax_ = require_panels(ax, n_panels, "these attacks")
        self.figure_ = self.ax_[0].figure.figure
        self.lines_, self.bars_, self.floor_bars_, self.table_ = {}, {}, {}, None
        if self.curves:
            self._draw_curves(self.ax_[0])
            self._draw_table(self.ax_[1])
        for panel, (main, names) in zip(self.ax_[n_panels - len(groups) :], groups, strict=True):
            self._draw_bars(panel, main, names)
        return self

    def _groups(self) -> list[tuple[str, list[str]]]:
        """Return the attacks without a curve by their main measure."""
        groups: dict[str, list[str]] = {}
        for name, row in self.measures.items():
            if name not in self.curves and row:
                groups.setdefault(next(iter(row)), []).append(name)
        return list(groups.items())

    def _draw_curves(self, ax: "Axes") -> None:
        ax.set(xscale="log", yscale="log")
        low = min(0.01, *(_least(curve) / 2 for curve in self.curves.values()))
        ax.plot([low, 1], [low, 1], color=_GREY, linestyle="--", linewidth=1, label="chance")
        for number, (name, (fpr, tpr)) in enumerate(self.curves.items()):
            # a step, not a slope: what an attacker reaches without tossing coins
            colour = style(number)["color"]
            (self.lines_[name],) = ax.plot(
                fpr, tpr, color=colour, drawstyle="steps-post", label=name
            )
            self._draw_rates(ax, name, number)
        ax.set_xlim(low, 1)
        ax.set_ylim(low, 1.05)
        ax.set(title="ROC", xlabel="false positive rate", ylabel="true positive rate")
        ax.grid(alpha=0.3)
        ax.legend(frameon=False, loc="lower right", fontsize="small")

    def _draw_rates(self, ax: "Axes", name: str, number: int) -> None:
        """Draw the interval of each TPR at a fixed FPR, and of its floor in grey beside it."""
        for what, measure in self.measures.get(name, {}).items():
            found = _AT_FPR.fullmatch(what)
            if found is None:
                continue
            # side by side, so that intervals at one rate do not hide each other
            place = float(found[1]) / 100 * 1.2 ** (number - (len(self.curves) - 1) / 2)
            sides: list[tuple[Measure, float, dict[str, Any]]] = [(measure, place, {})]
            if what in self.floors.get(name, {}):
                sides.append((self.floors[name][what], place / 1.09, {"color": _GREY}))
            look: dict[str, Any] = {"markersize": 4, "capsize": 2, "linestyle": "none"}
            for side, at, grey in sides:
                own = look | style(number) | grey
                ax.errorbar([at], [side.value], yerr=arms([side]), **own)

    def _draw_table(self, ax: "Axes") -> None:
        """Write two rows for each curve: what was measured, and the floor in grey."""
        from matplotlib.transforms import Bbox

        names = [name for name in self.curves if name in self.measures]
        columns = list(dict.fromkeys(what for name in names for what in self.measures[name]))
        ax.set_axis_off()
        if not columns:
            return
        colours = dict(zip(self.curves, cycle(COLOURS), strict=False))
        rows = [(wrap_name(name, 20), colours[name], self.measures[name]) for name in names]
        floors = [("floor", _GREY, self.floors.get(name, {})) for name in names]
        lines = [line for pair in zip(rows, floors, strict=True) for line in pair]
        height = min(1.0, 0.09 * (len(lines) + 1))
        self.table_ = ax.table(
            cellText=[[_figures(row.get(what)) for what in columns] for _, _, row in lines],
            colLabels=[wrap_name(what, 16) for what in columns],
            rowLabels=[label for label, _, _ in lines],
            rowLoc="right",
            cellLoc="center",
            bbox=Bbox.from_bounds(0.24, 1 - height, 0.76, height),
        )
        self.table_.auto_set_font_size(False)
        self.table_.set_fontsize(8 if len(columns) <= 2 else 6)
        for (place, _), cell in self.table_.get_celld().items():
            cell.set_edgecolor("0.85")
            if place > 0:
                cell.get_text().set_color(lines[place - 1][1])

    def _draw_bars(self, ax: "Axes", main: str, names: Sequence[str]) -> None:
        measures = [self.measures[name][main] for name in names]
        floors = {i: self.floors[n][main] for i, n in enumerate(names) if n in self.floors}
        both = (
            (self.bars_, dict(enumerate(measures)), -0.19, COLOURS[0], "measured"),
            (self.floor_bars_, floors, 0.19, "0.75", "floor: retrain against retrain"),
        )
        for drawn, row, shift, colour, label in both:
            drawn[main] = ax.barh(
                [place + shift for place in row],
                [measure.value for measure in row.values()],
                height=0.36,
                xerr=arms(list(row.values())),
                capsize=3,
                color=colour,
                label=label,
            )
        ax.set_yticks(range(len(names)), [wrap_name(name, 18) for name in names])
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.set(title=main, xlabel=axis_label(main, measures))
        ax.grid(alpha=0.3, axis="x")
        ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1.06), fontsize="small")


def _figures(measure: Measure | None) -> str:
    if measure is None:
        return ""
    if measure.low is None or measure.high is None or measure.low == measure.high:
        return f"{measure.value:.3g}"
    return f"{measure.value:.3g} [{measure.low:.3g}, {measure.high:.3g}]"


def _curve(name: str, fpr: ArrayLike, tpr: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rates as arrays, or say why they are no ROC curve."""
    rates = np.asarray(fpr, float), np.asarray(tpr, float)
    if rates[0].ndim != 1 or rates[0].shape != rates[1].shape or rates[0].size < 2:
        raise ValueError(
            f"{name!r}: a curve needs as many false as true positive rates, two or more"
        )
    for rate in rates:
        if not ((rate >= 0) & (rate <= 1)).all() or (np.diff(rate) < 0).any():
            raise ValueError(f"{name!r}: rates must ascend from 0 to 1")
    return rates


def _least(curve: tuple[NDArray[Any], NDArray[Any]]) -> float:
    """Return the least rate that a logarithmic axis can show."""
    rates = np.concatenate(curve)
    return float(rates[rates > 0].min())


def _has_curve(result: Any) -> bool:
    """Whether a result has scores of both worlds."""
    return (
        result.scores is not None
        and result.labels is not None
        and len(np.unique(np.asarray(result.labels))) == 2
    )


def _roc(result: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    from sklearn.metrics import roc_curve

    fpr, tpr, _ = roc_curve(np.asarray(result.labels), np.asarray(result.scores))
    return fpr, tpr
