"""Plots of attack results and of the proxies of a monitor."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures import KNOWN_MEASURES, Better, Measure
from letheon.plot._axes import (
    COLOURS,
    PanelsDisplay,
    axis_label,
    interval_arms,
    is_ratio,
    line_style,
    log_ticks,
    make_distinct,
    require_known,
    wrap_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer
    from matplotlib.lines import Line2D
    from matplotlib.table import Table


Named = Mapping[str, Mapping[str, Measure]]
_GREY = "0.45"
_AT_FPR = re.compile(r"TPR at ([\d.]+) ?% FPR")


class AttackDisplay(PanelsDisplay):
    """ROC curves of attacks on logarithmic axes, and their measures with their floors.

    A floor is the same attack on models that were retrained without the forgotten people. An attack
    at its floor found nothing. The dashed line shows random guessing. Attacks without a curve, such
    as KLOM, are drawn as bars.

    Parameters
    ----------
    curves : mapping of str to pair of array-like
        False and true positive rates of attacks, in ascending order.
    measures : mapping of str to mapping of str to Measure, optional
        Measures of each attack, the main one first.
    floors : mapping of str to mapping of str to Measure, optional
        The same measures for retrained models.

    Attributes
    ----------
    curves, measures, floors
        As given.
    ax_ : tuple of Axes
        After `plot`: two for curves and table if there is a curve, then one for each main measure
        that is drawn as bars.
    lines_ : dict of str to Line2D
        The curves.
    bars_ : dict of str to BarContainer
        The bars of the attacks without a curve, by measure.
    floor_bars_ : dict of str to BarContainer
        The bars of the floors of these attacks, by measure.
    table_ : Table or None
        Measures and floors of the attacks with a curve.
    figure_ : Figure
        The figure.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> display = AttackDisplay({"rmia": ([0, 0.1, 1], [0, 0.3, 1])})
    >>> list(display.plot(Figure().subplots(1, 2)).lines_)
    ['rmia']
    """

    lines_: "dict[str, Line2D]"
    bars_: "dict[str, BarContainer]"
    floor_bars_: "dict[str, BarContainer]"
    table_: "Table | None"

    def __init__(
        self,
        curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
        *,
        measures: Named | None = None,
        floors: Named | None = None,
    ) -> None:
        self.curves = {name: _check_curve(name, *curve) for name, curve in curves.items()}
        self.measures = {name: dict(row) for name, row in (measures or {}).items()}
        self.floors = {name: dict(row) for name, row in (floors or {}).items()}
        if not self.curves and not any(self.measures.values()):
            raise ValueError("curves and measures are empty; expected at least one attack")
        require_known("floors of unknown attacks", self.floors, self.measures)

    @classmethod
    def from_results(cls, *results: Any, ax: Any = None) -> Self:
        """Plot the results of attacks.

        Parameters
        ----------
        *results : AttackResult
            Results with scores get a curve.
        ax : sequence of Axes, optional
            Axes to draw on; by default a new figure.
        """
        names = make_distinct(f"{result.attack} on {result.about}" for result in results)
        named = dict(zip(names, results, strict=True))
        curves = {name: curve for name, r in named.items() if (curve := _get_roc(r)) is not None}
        measures = {name: result.measures for name, result in named.items()}
        floors = {name: result.floor for name, result in named.items()}
        return cls(curves, measures=measures, floors=floors).plot(ax)

    def plot(self, ax: "Sequence[Axes] | None" = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : sequence of Axes, optional
            Two if there is a curve (curves, table), and one per main measure of attacks without
            a curve; by default a new figure.

        Returns
        -------
        AttackDisplay
            This object, with `ax_`, `lines_`, `bars_`, `floor_bars_`, `table_` and `figure_`.
        """
        groups = self._group_attacks()
        n_panels = 2 * bool(self.curves) + len(groups)
        self._take_axes(ax, (1, n_panels), (4.9 * n_panels, 4.6), "these attacks")
        self.lines_, self.bars_, self.floor_bars_, self.table_ = {}, {}, {}, None
        if self.curves:
            self._draw_curves(self.ax_[0])
            self._draw_table(self.ax_[1])
        for panel, (main, names) in zip(self.ax_[n_panels - len(groups) :], groups, strict=True):
            self._draw_bars(panel, main, names)
        return self

    def _group_attacks(self) -> list[tuple[str, list[str]]]:
        """Return pairs of a main measure and the attacks without a curve that have it."""
        groups: dict[str, list[str]] = {}
        for name, row in self.measures.items():
            if name not in self.curves and row:
                groups.setdefault(next(iter(row)), []).append(name)
        return list(groups.items())

    def _draw_curves(self, ax: "Axes") -> None:
        ax.set(xscale="log", yscale="log")
        low = min(0.01, *(_least_rate(curve) / 2 for curve in self.curves.values()))
        ax.plot([low, 1], [low, 1], color=_GREY, linestyle="--", linewidth=1, label="chance")
        for number, (name, (fpr, tpr)) in enumerate(self.curves.items()):
            # A step function: points on a slope would need a randomised attack.
            look = {"color": line_style(number)["color"], "drawstyle": "steps-post"}
            (self.lines_[name],) = ax.plot(fpr, tpr, **look, label=name)
            self._draw_rates(ax, name, number)
        ax.set(xlim=(low, 1), ylim=(low, 1.05), title="ROC curves")
        ax.set(xlabel="false positive rate", ylabel="true positive rate")
        ax.grid(alpha=0.3)
        ax.legend(frameon=False, loc="lower right", fontsize="small")

    def _draw_rates(self, ax: "Axes", name: str, number: int) -> None:
        """Draw each TPR at a fixed FPR with its interval, and its floor in grey next to it."""
        for label, measure in self.measures.get(name, {}).items():
            match = _AT_FPR.fullmatch(label)
            if match is None:
                continue
            # Next to each other, because intervals at the same rate would overlap.
            place = float(match[1]) / 100 * 1.2 ** (number - (len(self.curves) - 1) / 2)
            look: dict[str, Any] = {"markersize": 4, "capsize": 2, "linestyle": "none"}
            look |= line_style(number)
            ax.errorbar([place], [measure.value], yerr=interval_arms([measure]), **look)
            floor = self.floors.get(name, {}).get(label)
            if floor is not None:
                look["color"] = _GREY
                ax.errorbar([place / 1.09], [floor.value], yerr=interval_arms([floor]), **look)

    def _draw_table(self, ax: "Axes") -> None:
        """Write two rows for each curve: the measures, and the floor in grey."""
        from matplotlib.transforms import Bbox

        names = [name for name in self.curves if name in self.measures]
        columns = list(dict.fromkeys(label for name in names for label in self.measures[name]))
        ax.set_axis_off()
        if not columns:
            return
        colours = dict(zip(self.curves, cycle(COLOURS), strict=False))
        rows = [(wrap_name(name, 20), colours[name], self.measures[name]) for name in names]
        floors = [("floor", _GREY, self.floors.get(name, {})) for name in names]
        lines = [line for pair in zip(rows, floors, strict=True) for line in pair]
        height = min(1.0, 0.09 * (len(lines) + 1))
        self.table_ = ax.table(
            cellText=[[_format_measure(row.get(c)) for c in columns] for _, _, row in lines],
            colLabels=[wrap_name(column, 16) for column in columns],
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
            (self.floor_bars_, floors, 0.19, "0.75", "floor (retrained model)"),
        )
        for drawn, row, shift, colour, label in both:
            places, values = [place + shift for place in row], [m.value for m in row.values()]
            look: dict[str, Any] = {"height": 0.36, "capsize": 3, "color": colour, "label": label}
            drawn[main] = ax.barh(places, values, xerr=interval_arms(list(row.values())), **look)
        ax.set_yticks(range(len(names)), [wrap_name(name, 18) for name in names])
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.set(title=main, xlabel=axis_label(main, measures))
        ax.grid(alpha=0.3, axis="x")
        ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1.06), fontsize="small")


def _format_measure(measure: Measure | None) -> str:
    if measure is None:
        return ""
    if measure.low is None or measure.high is None or measure.low == measure.high:
        return f"{measure.value:.3g}"
    return f"{measure.value:.3g} [{measure.low:.3g}, {measure.high:.3g}]"


def _check_curve(name: str, fpr: ArrayLike, tpr: ArrayLike) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rates as arrays, or raise if they do not form a ROC curve."""
    rates = np.asarray(fpr, float), np.asarray(tpr, float)
    if rates[0].ndim != 1 or rates[0].shape != rates[1].shape or rates[0].size < 2:
        raise ValueError(
            f"curves[{name!r}] must be two arrays of equal length, with two or more values"
        )
    for rate in rates:
        if not ((rate >= 0) & (rate <= 1)).all() or (np.diff(rate) < 0).any():
            raise ValueError(f"curves[{name!r}]: rates must be ascending numbers between 0 and 1")
    return rates


def _least_rate(curve: tuple[NDArray[Any], NDArray[Any]]) -> float:
    """Return the smallest positive rate of a curve."""
    rates = np.concatenate(curve)
    return float(rates[rates > 0].min())


def _get_roc(result: Any) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return the ROC curve of a result, or None if it has no scores of both classes."""
    from sklearn.metrics import roc_curve

    if result.scores is None or result.labels is None or len(np.unique(result.labels)) != 2:
        return None
    fpr, tpr, _ = roc_curve(np.asarray(result.labels), np.asarray(result.scores))
    return fpr, tpr


_PROXY, _LIMIT, _TRUTH = COLOURS[0], COLOURS[1], COLOURS[2]


class MonitorDisplay(PanelsDisplay):
    """Proxies after each request, with tolerances and retrains.

    There is one panel per proxy. A ring marks a value outside the tolerance, and a vertical line
    marks a retrain.

    Parameters
    ----------
    requests : array-like of int
        Numbers of the requests, in ascending order.
    proxies : mapping of str to array-like of float
        One value per request for each proxy; NaN if unknown.
    tolerances : mapping of str to float, optional
        Worst accepted value of each proxy.
    retrains : iterable of int, default=()
        Numbers of the requests after which the model was retrained.
    truths : mapping of str to array-like of float, optional
        True values that the proxies estimate, if measured.
    better : mapping of str to {"lower", "higher"}, optional
        Which direction is better. By default that of the survey's measures, "lower" for others.

    Attributes
    ----------
    requests, proxies, tolerances, retrains, truths, better
        As given, as arrays.
    ax_ : tuple of Axes
        One per proxy, after `plot`.
    lines_ : dict of str to Line2D
        The proxies.
    breaches_ : dict of str to ndarray of int
        Requests after which a proxy is outside its tolerance.
    figure_ : Figure
        The figure.

    Examples
    --------
    >>> display = MonitorDisplay([1, 2], {"effectiveness": [0.0, 0.03]},
    ...                          tolerances={"effectiveness": 0.02}, retrains=[2])
    >>> display.breaches_["effectiveness"]
    array([2])
    """

    lines_: "dict[str, Line2D]"

    def __init__(
        self,
        requests: ArrayLike,
        proxies: Mapping[str, ArrayLike],
        *,
        tolerances: Mapping[str, float] | None = None,
        retrains: Iterable[int] = (),
        truths: Mapping[str, ArrayLike] | None = None,
        better: Mapping[str, Better] | None = None,
    ) -> None:
        self.requests = np.asarray(requests, dtype=np.int64)
        self.proxies = {name: np.asarray(v, float) for name, v in proxies.items()}
        self.truths = {name: np.asarray(v, float) for name, v in (truths or {}).items()}
        self.tolerances = dict(tolerances or {})
        self.retrains = [int(request) for request in retrains]
        self.better: dict[str, Better] = dict(better or {})
        self._check_arguments()
        self.breaches_ = {name: self.requests[self._is_bad(name)] for name in self.proxies}

    def _check_arguments(self) -> None:
        if not self.requests.size or not self.proxies:
            raise ValueError("requests and proxies must not be empty")
        if self.requests.ndim != 1 or (np.diff(self.requests) <= 0).any():
            raise ValueError("requests must be strictly ascending numbers")
        for parameter, series in (("proxies", self.proxies), ("truths", self.truths)):
            for name, values in series.items():
                if values.shape != self.requests.shape:
                    raise ValueError(
                        f"{parameter}[{name!r}] has shape {values.shape}, "
                        f"but there are {self.requests.size} requests"
                    )
        require_known("tolerances of unknown proxies", self.tolerances, self.proxies)
        require_known("truths of unknown proxies", self.truths, self.proxies)

    def _is_high_better(self, name: str) -> bool:
        # Unknown measures count as errors: lower is better.
        return self.better.get(name, KNOWN_MEASURES.get(name, ("lower", ""))[0]) == "higher"

    def _is_bad(self, name: str) -> NDArray[np.bool_]:
        if name not in self.tolerances:
            return np.zeros(self.requests.shape, bool)
        values, limit = self.proxies[name], self.tolerances[name]
        return values < limit if self._is_high_better(name) else values > limit

    def plot(self, ax: "Sequence[Axes] | None" = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : sequence of Axes, optional
            One per proxy; by default a new figure.

        Returns
        -------
        MonitorDisplay
            This object, with `ax_`, `lines_` and `figure_`.
        """
        from matplotlib.ticker import MaxNLocator

        n_panels = len(self.proxies)
        self._take_axes(ax, (n_panels, 1), (8.5, 0.8 + 1.9 * n_panels), "these proxies")
        panels = zip(self.ax_, self.proxies, strict=True)
        self.lines_ = {name: self._draw_panel(panel, name) for panel, name in panels}
        self.ax_[-1].set_xlabel("requests served")
        self.ax_[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        self._draw_legend()
        return self

    def _draw_panel(self, ax: "Axes", name: str) -> "Line2D":
        values = self.proxies[name]
        finite = values[np.isfinite(values)]
        if finite.size and is_ratio(name, finite.tolist()):
            ax.set_yscale("log")
        for request in self.retrains:
            ax.axvline(request, color="0.35", linestyle=":", linewidth=1.4, label="retrain")
        # Only a short history has markers.
        dots: dict[str, Any] = {"marker": "o", "markersize": 3} if values.size <= 60 else {}
        (line,) = ax.plot(self.requests, values, color=_PROXY, linewidth=1.4, label="proxy", **dots)
        if name in self.truths:
            dashes: dict[str, Any] = {"color": _TRUTH, "linestyle": "--", "linewidth": 1.2}
            ax.plot(self.requests, self.truths[name], **dashes, label="true value")
        _mark_infinite(ax, self.requests, values)
        self._draw_limit(ax, name)
        if ax.get_yscale() == "log":
            log_ticks(ax, "y")
        unit = KNOWN_MEASURES.get(name, ("", ""))[1]
        better = "higher" if self._is_high_better(name) else "lower"
        ax.set_ylabel(f"{name}{f' [{unit}]' if unit else ''}\n{better} is better")
        ax.grid(alpha=0.3)
        return line

    def _draw_limit(self, ax: "Axes", name: str) -> None:
        """Draw the tolerance, shade the region outside it, and mark the values in this region."""
        if name not in self.tolerances:
            return
        limit, bad = self.tolerances[name], self._is_bad(name)
        ax.axhline(limit, color=_LIMIT, linewidth=1.2, label="tolerance")
        low, high = ax.get_ylim()
        worst = low if self._is_high_better(name) else high
        ax.axhspan(min(limit, worst), max(limit, worst), color=_LIMIT, alpha=0.1, linewidth=0)
        ax.set_ylim(low, high)
        bad &= np.isfinite(self.proxies[name])
        if bad.any():
            ring: dict[str, Any] = {"color": _LIMIT, "markerfacecolor": "none", "markersize": 7}
            values = self.proxies[name][bad]
            ax.plot(self.requests[bad], values, "o", **ring, label="outside tolerance")

    def _draw_legend(self) -> None:
        """Draw one legend for all panels, with each label once."""
        signs = {
            text: handle
            for panel in self.ax_
            for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        # Above the first panel, where it hides no values.
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1)}
        self.ax_[0].legend(signs.values(), signs.keys(), frameon=False, ncols=len(signs), **place)


def _mark_infinite(ax: "Axes", requests: NDArray[np.int64], values: NDArray[np.float64]) -> None:
    """Draw a triangle at the edge of the axes for infinite values."""
    for sign, marker, height in ((np.inf, "^", 0.95), (-np.inf, "v", 0.05)):
        places = requests[values == sign]
        if places.size:
            edge: dict[str, Any] = {"color": _LIMIT, "transform": ax.get_xaxis_transform()}
            ax.plot(places, np.full(places.shape, height), marker, **edge, label="infinite")
