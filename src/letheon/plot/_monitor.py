"""The history of a monitored model: proxies, tolerances, retrains."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from letheon.measures import KNOWN_MEASURES, Better
from letheon.plot._axes import (
    COLOURS,
    is_better_high,
    is_ratio,
    log_ticks,
    require_panels,
    stacked_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


_PROXY, _LIMIT, _TRUTH = COLOURS[0], COLOURS[1], COLOURS[2]


class MonitorDisplay:
    """Proxies after each request, the tolerances they must keep, and the retrains.

    One panel for each proxy. Values outside the tolerance carry a ring, and a vertical line
    marks each retrain.

    Parameters
    ----------
    requests : array-like of int
        Numbers of the requests, ascending.
    proxies : mapping of str to array-like of float
        For each proxy one value for each request; NaN where it is unknown.
    tolerances : mapping of str to float, optional
        The worst value allowed of some proxies.
    retrains : iterable of int, default=()
        Numbers of the requests after which the model was trained anew.
    truths : mapping of str to array-like of float, optional
        The true values that some proxies stand for, where somebody measured them.
    better : mapping of str to {"lower", "higher"}, optional
        Which way is better. By default known for the survey's measures; else lower is.

    Attributes
    ----------
    requests, proxies, tolerances, retrains, truths, better
        As given, as arrays.
    ax_ : tuple of Axes
        One for each proxy, after `plot`.
    lines_ : dict of str to Line2D
        The proxies.
    breaches_ : dict of str to ndarray of int
        Requests after which a proxy was outside its tolerance.
    figure_ : Figure
        The figure drawn on.

    Examples
    --------
    >>> display = MonitorDisplay([1, 2], {"effectiveness": [0.0, 0.03]},
    ...                          tolerances={"effectiveness": 0.02}, retrains=[2])
    >>> display.breaches_["effectiveness"]
    array([2])
    """

    ax_: "tuple[Axes, ...]"
    lines_: "dict[str, Line2D]"
    figure_: "Figure"

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
        self._check()
        self.breaches_ = {name: self.requests[self._is_bad(name)] for name in self.proxies}

    def _check(self) -> None:
        if not self.requests.size or not self.proxies:
            raise ValueError("there is no reading to draw")
        if self.requests.ndim != 1 or (np.diff(self.requests) <= 0).any():
            raise ValueError("requests must be numbers in ascending order")
        for what, series in (("proxies", self.proxies), ("truths", self.truths)):
            for name, values in series.items():
                if values.shape != self.requests.shape:
                    raise ValueError(
                        f"{what}[{name!r}] has shape {values.shape}, "
                        f"but there are {self.requests.size} requests"
                    )
        for what, names in (("tolerances", self.tolerances), ("truths", self.truths)):
            if unknown := set(names) - set(self.proxies):
                raise ValueError(f"{what} of unknown proxies: {sorted(unknown)}")

    def _is_high_better(self, name: str) -> bool:
        return self.better.get(name, "higher" if is_better_high(name) else "lower") == "higher"

    def _is_bad(self, name: str) -> NDArray[np.bool_]:
        if name not in self.tolerances:
            return np.zeros(self.requests.shape, bool)
        values, limit = self.proxies[name], self.tolerances[name]
        return values < limit if self._is_high_better(name) else values > limit

    def plot(self, ax: "Sequence[Axes] | None" = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : sequence of Axes, optional
            One for each proxy; by default a new figure.

        Returns
        -------
        MonitorDisplay
            Itself, with `ax_`, `lines_` and `figure_`.
        """
        from matplotlib.ticker import MaxNLocator

        if ax is None:
            ax = stacked_axes(len(self.proxies), 8.5, 0.8 + 1.9 * len(self.proxies))
        self.ax_ = require_panels(ax, len(self.proxies), "these proxies")
        self.figure_ = self.ax_[0].figure.figure
        self.lines_ = {
            name: self._panel(panel, name)
            for panel, name in zip(self.ax_, self.proxies, strict=True)
        }
        self.ax_[-1].set_xlabel("requests served")
        self.ax_[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        self._legend()
        return self

    def _panel(self, ax: "Axes", name: str) -> "Line2D":
        values = self.proxies[name]
        finite = values[np.isfinite(values)]
        if finite.size and is_ratio(name, finite.tolist()):
            ax.set_yscale("log")
        for request in self.retrains:
            ax.axvline(request, color="0.35", linestyle=":", linewidth=1.4, label="retrain")
        # A short history has markers; a long one is a line.
        dots: dict[str, Any] = {"marker": "o", "markersize": 3} if values.size <= 60 else {}
        (line,) = ax.plot(self.requests, values, color=_PROXY, linewidth=1.4, label="proxy", **dots)
        if name in self.truths:
            ax.plot(
                self.requests,
                self.truths[name],
                color=_TRUTH,
                linestyle="--",
                linewidth=1.2,
                label="true value",
            )
        _mark_infinite(ax, self.requests, values)
        self._limit(ax, name)
        if ax.get_yscale() == "log":
            log_ticks(ax, "y")
        unit = KNOWN_MEASURES[name][1] if name in KNOWN_MEASURES else ""
        way = "more is better" if self._is_high_better(name) else "less is better"
        ax.set_ylabel(f"{name}{f' [{unit}]' if unit else ''}\n{way}")
        ax.grid(alpha=0.3)
        return line

    def _limit(self, ax: "Axes", name: str) -> None:
        """Draw the tolerance, shade what is outside it, ring the values there."""
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
            ax.plot(
                self.requests[bad],
                self.proxies[name][bad],
                "o",
                color=_LIMIT,
                markerfacecolor="none",
                markersize=7,
                label="outside tolerance",
            )

    def _legend(self) -> None:
        """Write one legend for all panels, each sign once."""
        signs = {
            text: handle
            for panel in self.ax_
            for handle, text in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        # over the first panel: inside it would hide some of a long history
        self.ax_[0].legend(
            signs.values(),
            signs.keys(),
            frameon=False,
            ncols=len(signs),
            loc="lower left",
            bbox_to_anchor=(0, 1),
        )


def _mark_infinite(ax: "Axes", requests: NDArray[np.int64], values: NDArray[np.float64]) -> None:
    """Draw a triangle at the edge where a value is endless."""
    for sign, marker, height in ((np.inf, "^", 0.95), (-np.inf, "v", 0.05)):
        places = requests[values == sign]
        if places.size:
            ax.plot(
                places,
                np.full(places.shape, height),
                marker,
                color=_LIMIT,
                transform=ax.get_xaxis_transform(),
                label="infinite",
            )
