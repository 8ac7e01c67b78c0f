"""What sharding costs in accuracy."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from letheon.measures._measure import Measure
from letheon.plot._axes import COLOURS, MARKERS, new_axes, plain_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer
    from matplotlib.figure import Figure

__all__ = ["AccuracyShardsDisplay"]

# Lines of several data sets would hide each other's intervals; each is moved by this share.
_SHIFT = 0.04


class AccuracyShardsDisplay:
    """Accuracy against the number of shards, with intervals.

    Parameters
    ----------
    scores : mapping of str to mapping of int to Measure
        For each name (a data set, a learner) the score at each number of shards.
    metric : str, default="accuracy"
        What the scores are, for the axis.
    naive : mapping of str to float, optional
        Score of the model without shards for some of the names: a dashed line.

    Attributes
    ----------
    scores, metric, naive
        As given.
    ax_ : Axes
        The axes, after `plot`.
    bars_ : list of ErrorbarContainer
        One line with intervals for each name.
    figure_ : Figure
        The figure drawn on.

    Examples
    --------
    >>> display = AccuracyShardsDisplay({"adult": {1: one, 5: five}}).plot()  # doctest: +SKIP
    """

    ax_: "Axes"
    bars_: "list[ErrorbarContainer]"
    figure_: "Figure"

    def __init__(
        self,
        scores: Mapping[str, Mapping[int, Measure]],
        *,
        metric: str = "accuracy",
        naive: Mapping[str, float] | None = None,
    ) -> None:
        if not scores or not all(scores.values()):
            raise ValueError("there is no score to draw")
        if unknown := set(naive or {}) - set(scores):
            raise ValueError(f"naive scores of unknown names: {sorted(unknown)}")
        if min(shards for line in scores.values() for shards in line) < 1:
            raise ValueError("the number of shards must be at least 1")
        self.scores = {name: dict(sorted(line.items())) for name, line in scores.items()}
        self.metric = metric
        self.naive = dict(naive or {})

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; by default a new figure.

        Returns
        -------
        AccuracyShardsDisplay
            Itself, with `ax_`, `bars_` and `figure_`.
        """
        ax = new_axes(1, 6.4, 4.4)[0] if ax is None else ax
        self.ax_ = ax
        self.bars_ = [self._line(ax, name, i) for i, name in enumerate(self.scores)]
        plain_ticks(ax, sorted({shards for line in self.scores.values() for shards in line}))
        ax.set(
            title=f"{self.metric.capitalize()} against the number of shards",
            xlabel="shards",
            ylabel=self._y_label(),
        )
        ax.grid(alpha=0.3)
        if len(self.scores) > 1 or self.naive:
            ax.legend(frameon=False)
        self.figure_ = ax.figure.figure
        return self

    def _line(self, ax: "Axes", name: str, number: int) -> "ErrorbarContainer":
        line, colour = self.scores[name], COLOURS[number % len(COLOURS)]
        shift = 1 + _SHIFT * (number - (len(self.scores) - 1) / 2)
        if name in self.naive:
            ax.axhline(
                self.naive[name], color=colour, linestyle="--", linewidth=1, label=f"{name}, naive"
            )
        return ax.errorbar(
            [shards * shift for shards in line],
            [measure.value for measure in line.values()],
            yerr=_arms(list(line.values())),
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            capsize=3,
            label=name,
        )

    def _y_label(self) -> str:
        measures = [measure for line in self.scores.values() for measure in line.values()]
        with_interval = {m.confidence for m in measures if m.low is not None or m.high is not None}
        unit = f" [{measures[0].unit}]" if measures[0].unit else ""
        if len(with_interval) != 1:
            return f"{self.metric}{unit}"
        return f"{self.metric}{unit}, {100 * with_interval.pop():g} % interval"


def _arms(measures: Sequence[Measure]) -> list[list[float]]:
    """Return how far each interval reaches down and up; 0 where it is unknown."""
    down = [0.0 if m.low is None else m.value - m.low for m in measures]
    up = [0.0 if m.high is None else m.high - m.value for m in measures]
    return [down, up]
