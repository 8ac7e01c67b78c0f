"""What sharding buys and what it costs: speed-up, storage, accuracy."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from letheon.measures import Measure
from letheon.plot._axes import COLOURS, arms, new_axes, plain_ticks, style
from letheon.sharded import Plan, plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer, ErrorbarContainer
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


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
        line, look = self.scores[name], style(number)
        shift = 1 + _SHIFT * (number - (len(self.scores) - 1) / 2)
        if name in self.naive:
            label, colour = f"{name}, naive", look["color"]
            ax.axhline(self.naive[name], color=colour, linestyle="--", linewidth=1, label=label)
        return ax.errorbar(
            [shards * shift for shards in line],
            [measure.value for measure in line.values()],
            yerr=arms(list(line.values())),
            **look,
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


_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def _batch_sizes(n_rows: int, n_shards: int, rows_per_person: float) -> list[int]:
    """Return 1, 2, 5, 10, ... to about five people per shard, where a batch gains no more."""
    most = min(5 * n_shards, (n_rows - 1) / rows_per_person)
    sizes = [step * 10**power for power in range(12) for step in (1, 2, 5)]
    return [size for size in sizes if size == 1 or size <= most]


class PlanDisplay:
    """What shards, slices and the batch window buy, and what they cost to keep.

    Left, the expected speed-up over naive retraining against the number of people who leave in
    one batch, one line for each pair (shards, slices). Right, what has to be stored for it.

    Parameters
    ----------
    plans : iterable of Plan
        Plans that differ in shards, slices, epochs and requests only.

    Attributes
    ----------
    plans : list of Plan
        As given.
    ax_ : tuple of two Axes
        Speed-up and storage, after `plot`.
    lines_ : list of Line2D
        One for each pair of shards and slices.
    bars_ : BarContainer
        Storage, in the order of the lines.
    figure_ : Figure
        The figure drawn on.

    See Also
    --------
    letheon.sharded.compare_plans : the same numbers as a table.

    Examples
    --------
    >>> display = PlanDisplay.from_grid(100_000)  # doctest: +SKIP
    >>> display.figure_.savefig("plan.png")  # doctest: +SKIP
    """

    ax_: "tuple[Axes, Axes]"
    lines_: "list[Line2D]"
    bars_: "BarContainer"
    figure_: "Figure"

    def __init__(self, plans: Iterable[Plan]) -> None:
        self.plans = list(plans)
        if not self.plans:
            raise ValueError("there is no plan to draw")
        same = ("n_rows", "stage_data", "batch", "rows_per_person", "state_bytes")
        for name in same:
            if len({getattr(p, name) for p in self.plans}) > 1:
                raise ValueError(f"the plans of one display must not differ in {name}")

    @classmethod
    def from_plan(
        cls, plan: Plan, *, n_requests: Iterable[int] | None = None, ax: Any = None
    ) -> Self:
        """Draw how one plan's speed-up changes with the batch size.

        Parameters
        ----------
        plan : Plan
            The plan; its own number of requests is not used.
        n_requests : iterable of int, optional
            Batch sizes. By default 1, 2, 5, 10 and so on to about five people per shard.
        ax : pair of Axes, optional
            Where to draw speed-up and storage; by default a new figure.
        """
        if n_requests is None:
            n_requests = _batch_sizes(plan.n_rows, plan.n_shards, plan.rows_per_person)
        return cls(replace(plan, n_requests=k) for k in n_requests).plot(ax)

    @classmethod
    def from_grid(
        cls,
        n_rows: int,
        n_requests: Iterable[int] | None = None,
        *,
        settings: Iterable[tuple[int, int]] = ((5, 1), (5, 10), (20, 1), (20, 50)),
        ax: Any = None,
        **options: Any,
    ) -> Self:
        """Draw several pairs of shards and slices.

        Parameters
        ----------
        n_rows : int
            Rows to be trained on.
        n_requests : iterable of int, optional
            Batch sizes. By default 1, 2, 5, 10 and so on to about five people per shard.
        settings : iterable of (int, int)
            Pairs of shards and slices.
        ax : pair of Axes, optional
            Where to draw speed-up and storage; by default a new figure.
        **options
            Passed on to `letheon.sharded.plan`.
        """
        pairs = list(settings)
        if n_requests is None:
            most = max((shards for shards, _ in pairs), default=1)
            n_requests = _batch_sizes(n_rows, most, options.get("rows_per_person", 1.0))
        sizes = list(n_requests)
        plans = [
            plan(n_rows, k, n_shards=s, n_slices=r, **options) for s, r in pairs for k in sizes
        ]
        return cls(plans).plot(ax)

    def plot(self, ax: "Sequence[Axes] | None" = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : pair of Axes, optional
            Where to draw speed-up and storage; by default a new figure.

        Returns
        -------
        PlanDisplay
            Itself, with `ax_`, `lines_`, `bars_` and `figure_`.
        """
        left, right = new_axes(2, 11.5, 4.2) if ax is None else ax
        groups = self._groups()
        self.ax_ = (left, right)
        self.lines_ = [
            self._line(left, group, number) for number, group in enumerate(groups.values())
        ]
        self._label_speed_up(left)
        self._draw_storage(right, groups)
        self.figure_ = left.figure.figure
        return self

    def _groups(self) -> dict[str, list[Plan]]:
        """Return the plans of each line, in order of the batch size."""
        groups: dict[str, list[Plan]] = {}
        for p in sorted(self.plans, key=lambda p: p.n_requests):
            groups.setdefault(f"{p.n_shards} × {p.n_slices}", []).append(p)
        order = [f"{p.n_shards} × {p.n_slices}" for p in self.plans]
        return {name: groups[name] for name in dict.fromkeys(order)}

    def _line(self, ax: "Axes", group: list[Plan], number: int) -> "Line2D":
        (line,) = ax.plot(
            [p.n_requests for p in group],
            [p.speed_up for p in group],
            **style(number),
            linestyle="-" if number < len(COLOURS) else ":",
            label=f"{group[0].n_shards} × {group[0].n_slices}",
        )
        return line

    def _label_speed_up(self, ax: "Axes") -> None:
        from matplotlib.ticker import LogLocator

        first = self.plans[0]
        how = "in one batch" if first.batch else "one by one"
        ax.axhline(1, color="0.5", linestyle="--", linewidth=1, label="naive retraining")
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        plain_ticks(ax, sorted({p.n_requests for p in self.plans}))
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
        ax.set(
            title=f"Expected speed-up, {first.n_rows:,} rows",
            xlabel=f"people forgotten {how}",
            ylabel="speed-up over naive retraining",
        )
        ax.grid(alpha=0.3)
        # beside the lines: inside it would hide some of many
        ax.legend(title="shards × slices", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))

    def _draw_storage(self, ax: "Axes", groups: dict[str, list[Plan]]) -> None:
        amounts, unit = _amounts([group[0] for group in groups.values()])
        colours = [COLOURS[number % len(COLOURS)] for number in range(len(groups))]
        self.bars_ = ax.bar(list(groups), amounts, width=0.7, color=colours)
        ax.bar_label(self.bars_, fmt=_short, padding=2)
        ax.margins(y=0.12)
        ax.set_xlim(-0.75, len(groups) - 0.25)
        ax.set(title="Storage", xlabel="shards × slices", ylabel=f"saved states [{unit}]")
        if len(groups) > 6:
            ax.tick_params(axis="x", rotation=90)


def _short(amount: float) -> str:
    """Return a number for the top of a bar: whole if large, else three digits."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def _amounts(plans: list[Plan]) -> tuple[list[float], str]:
    """Return the storage of each plan and its unit: bytes if known, else numbers of states."""
    sizes = [p.storage_bytes for p in plans if p.storage_bytes is not None]
    if not sizes:
        return [float(p.states) for p in plans], "models"
    factor, unit = next((f, u) for f, u in _UNITS if max(sizes) >= f or f == 1)
    return [size / factor for size in sizes], unit
