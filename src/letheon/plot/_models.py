"""Plots about models: cost of sharding, size of a skeleton, and one tree of a forest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from letheon.boosting import SkeletonSearch
from letheon.forest import DaREForestClassifier, DaREForestRegressor, ForestTree
from letheon.measures import Measure
from letheon.plot._axes import (
    COLOURS,
    PanelsDisplay,
    SingleDisplay,
    interval_arms,
    line_style,
    place_labels,
    plain_ticks,
    require_known,
)
from letheon.sharded import Plan, plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import BarContainer, ErrorbarContainer
    from matplotlib.lines import Line2D
    from matplotlib.text import Annotation


# Lines are shifted by this share, so that their intervals do not overlap.
_SHIFT = 0.04


class AccuracyShardsDisplay(SingleDisplay):
    """Accuracy as a function of the number of shards, with intervals.

    Parameters
    ----------
    scores : mapping of str to mapping of int to Measure
        Scores by number of shards, for each name (a data set or a learner).
    metric : str, default="accuracy"
        Name of the score, shown at the axis.
    naive : mapping of str to float, optional
        Scores of the model without shards, drawn as dashed lines.

    Attributes
    ----------
    scores, metric, naive
        As given.
    ax_ : Axes
        The axes, after `plot`.
    bars_ : list of ErrorbarContainer
        One line with intervals for each name.
    figure_ : Figure
        The figure.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from letheon.measures import over_seeds
    >>> one = over_seeds("accuracy", [0.9, 0.92], better="higher")
    >>> display = AccuracyShardsDisplay({"adult": {1: one}}).plot(Figure().subplots())
    """

    bars_: "list[ErrorbarContainer]"

    def __init__(
        self,
        scores: Mapping[str, Mapping[int, Measure]],
        *,
        metric: str = "accuracy",
        naive: Mapping[str, float] | None = None,
    ) -> None:
        if not scores or not all(scores.values()):
            raise ValueError("scores must not be empty")
        require_known("naive scores of unknown names", naive or (), scores)
        if min(shards for line in scores.values() for shards in line) < 1:
            raise ValueError("scores: every number of shards must be at least 1")
        self.scores = {name: dict(sorted(line.items())) for name, line in scores.items()}
        self.metric = metric
        self.naive = dict(naive or {})

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : Axes, optional
            Axes to draw on; by default a new figure.

        Returns
        -------
        AccuracyShardsDisplay
            This object, with `ax_`, `bars_` and `figure_`.
        """
        ax = self._take_axes(ax, 6.4, 4.4)
        self.bars_ = [self._draw_line(ax, name, i) for i, name in enumerate(self.scores)]
        plain_ticks(ax, sorted({shards for line in self.scores.values() for shards in line}))
        title = f"{self.metric.capitalize()} by number of shards"
        ax.set(title=title, xlabel="number of shards", ylabel=self._y_label())
        ax.grid(alpha=0.3)
        if len(self.scores) > 1 or self.naive:
            ax.legend(frameon=False)
        return self

    def _draw_line(self, ax: "Axes", name: str, number: int) -> "ErrorbarContainer":
        line, look = self.scores[name], line_style(number)
        shift = 1 + _SHIFT * (number - (len(self.scores) - 1) / 2)
        if name in self.naive:
            label, colour = f"{name}, one model", look["color"]
            ax.axhline(self.naive[name], color=colour, linestyle="--", linewidth=1, label=label)
        measures = list(line.values())
        x, y = [shards * shift for shards in line], [measure.value for measure in measures]
        return ax.errorbar(x, y, yerr=interval_arms(measures), **look, capsize=3, label=name)

    def _y_label(self) -> str:
        measures = [measure for line in self.scores.values() for measure in line.values()]
        with_interval = {m.confidence for m in measures if m.low is not None or m.high is not None}
        unit = f" [{measures[0].unit}]" if measures[0].unit else ""
        if len(with_interval) != 1:
            return f"{self.metric}{unit}"
        return f"{self.metric}{unit}, {100 * with_interval.pop():g} % CI"


class SkeletonDisplay(SingleDisplay):
    """Score of a boosted model against the cost of forgetting one person, by skeleton size.

    Points are labelled with `skeleton_people`. Bars show the standard deviation over the folds. The
    chosen size has a filled marker, and the dashed line is the lowest accepted score.

    Parameters
    ----------
    search : SkeletonSearch
        Result of `letheon.boosting.suggest_skeleton`.

    Attributes
    ----------
    search
        As given.
    ax_ : Axes
        The axes, after `plot`.
    bars_ : ErrorbarContainer
        The points with bars.
    labels_ : list of Annotation
        The sizes, written at the points.
    figure_ : Figure
        The figure.

    See Also
    --------
    letheon.boosting.suggest_skeleton : The search.

    Examples
    --------
    >>> display = SkeletonDisplay(search).plot()  # doctest: +SKIP
    """

    bars_: "ErrorbarContainer"
    labels_: "list[Annotation]"

    def __init__(self, search: SkeletonSearch) -> None:
        self.search = search

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : Axes, optional
            Axes to draw on; by default a new figure.

        Returns
        -------
        SkeletonDisplay
            This object, with `ax_`, `bars_`, `labels_` and `figure_`.
        """
        ax, sizes = self._take_axes(ax, 6.4, 4.4), self.search.sizes
        points = [(100 * size.cost, size.score) for size in sizes]
        x, y = zip(*points, strict=True)
        look: dict[str, Any] = {"color": COLOURS[0], "marker": "o", "markerfacecolor": "white"}
        errors = [size.std for size in sizes]
        self.bars_ = ax.errorbar(x, y, yerr=errors, **look, linestyle="", capsize=3)
        chosen = [size.skeleton_people == self.search.skeleton_people for size in sizes]
        place = points[chosen.index(True)]
        ax.plot(*place, color=COLOURS[0], marker="o", linestyle="", label="chosen", zorder=3)
        goal = max(y) - self.search.tolerance
        label = f"best score - {self.search.tolerance:g}"
        ax.axhline(goal, color="0.4", linestyle="--", linewidth=1, label=label)
        title = "Score and cost by skeleton size"
        ax.set(title=title, xlabel="mean cost of one person [% of a fit]", ylabel="score")
        ax.set_xlim(left=0)
        ax.margins(0.12)
        ax.grid(alpha=0.3)
        ax.legend(frameon=False, loc="lower right")
        texts = [f"{size.skeleton_people:,}" for size in sizes]
        self.labels_, _ = place_labels(ax, texts, points, np.empty((0, 4)))
        return self


_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))


def _batch_sizes(n_rows: int, n_shards: int, rows_per_person: float) -> list[int]:
    """Return the batch sizes 1, 2, 5, 10, ... up to about five people per shard.

    Larger batches would retrain nearly all shards.
    """
    most = min(5 * n_shards, (n_rows - 1) / rows_per_person)
    sizes = [step * 10**power for power in range(12) for step in (1, 2, 5)]
    return [size for size in sizes if size == 1 or size <= most]


class PlanDisplay(PanelsDisplay):
    """Benefit and storage cost of shards, slices and batches.

    The left panel shows the expected speed-up over naive retraining as a function of the batch
    size, with one line per pair (shards, slices). The right panel shows the required storage.

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
        The figure.

    See Also
    --------
    letheon.sharded.compare_plans : the same numbers as a table.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> display = PlanDisplay.from_grid(100_000, ax=Figure().subplots(2))
    """

    lines_: "list[Line2D]"
    bars_: "BarContainer"

    def __init__(self, plans: Iterable[Plan]) -> None:
        self.plans = list(plans)
        if not self.plans:
            raise ValueError("plans must not be empty")
        for name in ("n_rows", "stage_data", "batch", "rows_per_person", "state_bytes"):
            if len({getattr(p, name) for p in self.plans}) > 1:
                raise ValueError(f"plans must not differ in {name}")

    @classmethod
    def from_plan(
        cls, plan: Plan, *, n_requests: Iterable[int] | None = None, ax: Any = None
    ) -> Self:
        """Plot the speed-up of one plan by batch size.

        Parameters
        ----------
        plan : Plan
            The plan; its number of requests is ignored.
        n_requests : iterable of int, optional
            Batch sizes. By default 1, 2, 5, 10, ... up to about five people per shard.
        ax : pair of Axes, optional
            Axes for speed-up and storage; by default a new figure.
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
        """Plot several pairs of shards and slices.

        Parameters
        ----------
        n_rows : int
            Number of training rows.
        n_requests : iterable of int, optional
            Batch sizes. By default 1, 2, 5, 10, ... up to about five people per shard.
        settings : iterable of (int, int)
            Pairs of shards and slices.
        ax : pair of Axes, optional
            Axes for speed-up and storage; by default a new figure.
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
        """Draw the plot.

        Parameters
        ----------
        ax : pair of Axes, optional
            Axes for speed-up and storage; by default a new figure.

        Returns
        -------
        PlanDisplay
            This object, with `ax_`, `lines_`, `bars_` and `figure_`.
        """
        self._take_axes(ax, (1, 2), (11.5, 4.2), "speed-up and storage")
        groups = self._group_plans()
        self.lines_ = [self._draw_line(i, *group) for i, group in enumerate(groups.items())]
        self._label_speed_up(self.ax_[0])
        self._draw_storage(self.ax_[1], groups)
        return self

    def _group_plans(self) -> dict[str, list[Plan]]:
        """Return the plans of each pair (shards, slices), sorted by batch size."""
        groups: dict[str, list[Plan]] = {}
        for p in self.plans:
            groups.setdefault(f"{p.n_shards} × {p.n_slices}", []).append(p)
        for group in groups.values():
            group.sort(key=lambda p: p.n_requests)
        return groups

    def _draw_line(self, number: int, name: str, group: list[Plan]) -> "Line2D":
        look = {**line_style(number), "linestyle": "-" if number < len(COLOURS) else ":"}
        x, y = [p.n_requests for p in group], [p.speed_up for p in group]
        (line,) = self.ax_[0].plot(x, y, **look, label=name)
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
        # Outside the axes, where it hides no lines.
        ax.legend(title="shards × slices", frameon=False, loc="upper left", bbox_to_anchor=(1, 1))

    def _draw_storage(self, ax: "Axes", groups: dict[str, list[Plan]]) -> None:
        amounts, unit = _storage_amounts([group[0] for group in groups.values()])
        colours = [COLOURS[number % len(COLOURS)] for number in range(len(groups))]
        self.bars_ = ax.bar(list(groups), amounts, width=0.7, color=colours)
        ax.bar_label(self.bars_, fmt=_format_amount, padding=2)
        ax.margins(y=0.12)
        ax.set_xlim(-0.75, len(groups) - 0.25)
        ax.set(title="Storage", xlabel="shards × slices", ylabel=f"saved states [{unit}]")
        if len(groups) > 6:
            ax.tick_params(axis="x", rotation=90)


def _format_amount(amount: float) -> str:
    """Return a number as text with three digits, or without decimals if it is 100 or more."""
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def _storage_amounts(plans: list[Plan]) -> tuple[list[float], str]:
    """Return the storage of each plan, and its unit: bytes (KiB, MiB, ...) if known, or models."""
    sizes = [p.storage_bytes for p in plans if p.storage_bytes is not None]
    if not sizes:
        return [float(p.states) for p in plans], "models"
    factor, unit = next((f, u) for f, u in _UNITS if max(sizes) >= f or f == 1)
    return [size / factor for size in sizes], unit


# Size of a box in inches, so that boxes and texts do not touch.
_BOX_WIDTH, _BOX_HEIGHT = 1.55, 1.1
_LONGEST_NAME = 20
_PALEST = 0.12
# Frames of a leaf, of a best split, and of a random split.
_FRAMES: tuple[dict[str, Any], ...] = (
    {"linewidth": 0},
    {"linewidth": 1},
    {"linewidth": 1, "linestyle": "--"},
)


class ForestTreeDisplay(SingleDisplay):
    """The upper levels of one tree, with split, number of rows and prediction of each node.

    Best splits have a solid frame, random splits have a dashed frame, and leaves have no frame. A
    node whose subtree is not drawn ends in dots. "missing: no" means that missing values follow the
    branch "no". The colour is that of the most frequent class, darker for purer nodes; for
    regression it shows the mean.

    Parameters
    ----------
    tree : ForestTree
        A tree, from `DaREForestClassifier.tree_`.
    max_depth : int or None, default=3
        Levels of splits to draw; None draws all.
    title : str, default=""
        Text above the tree.

    Attributes
    ----------
    tree, max_depth, title
        As given.
    ax_ : Axes
        The axes, after `plot`.
    boxes_ : dict of int to Annotation
        The box of every node that is drawn, by its number in the tree.
    figure_ : Figure
        The figure.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> model = DaREForestClassifier(n_estimators=1).fit([[0.0], [1.0]], [0, 1])
    >>> display = ForestTreeDisplay.from_estimator(model, ax=Figure().subplots())
    """

    boxes_: "dict[int, Annotation]"

    def __init__(self, tree: ForestTree, *, max_depth: int | None = 3, title: str = "") -> None:
        if max_depth is not None and max_depth < 0:
            raise ValueError(f"max_depth must be at least 0 or None, not {max_depth}")
        self.tree, self.max_depth, self.title = tree, max_depth, title

    @classmethod
    def from_estimator(
        cls, model: Any, *, tree: int = 0, max_depth: int | None = 3, ax: "Axes | None" = None
    ) -> Self:
        """Plot a tree of a fitted forest.

        Parameters
        ----------
        model : DaREForestClassifier or DaREForestRegressor
            The forest.
        tree : int, default=0
            Number of the tree.
        max_depth : int or None, default=3
            Levels of splits to draw; None draws all.
        ax : Axes, optional
            Axes to draw on; by default a new figure that is large enough.

        Returns
        -------
        ForestTreeDisplay
        """
        if not isinstance(model, DaREForestClassifier | DaREForestRegressor):
            raise TypeError(
                "model must be a fitted DaREForestClassifier or DaREForestRegressor, not "
                f"{type(model).__name__}"
            )
        return cls(model.tree_(tree), max_depth=max_depth, title=f"Tree {tree}").plot(ax)

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw the plot.

        Parameters
        ----------
        ax : Axes, optional
            Axes to draw on; by default a new figure that is large enough.

        Returns
        -------
        ForestTreeDisplay
            This object, with `ax_`, `boxes_` and `figure_`.
        """
        places = self._node_positions()
        width = max(x for x, _ in places.values()) + 1
        height = max(y for _, y in places.values()) + 1
        ax = self._take_axes(ax, max(4.0, width * _BOX_WIDTH), height * _BOX_HEIGHT + 0.6)
        ax.set_axis_off()
        ax.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), title=self.title)
        self.boxes_ = {}
        for node, place in places.items():
            self._draw_edges(ax, node, places)
            self.boxes_[node] = self._draw_box(ax, node, place)
        self._draw_legend(ax)
        return self

    def _is_open(self, node: int, depth: int) -> bool:
        """Return whether the children of a node are drawn."""
        return self.tree.kind[node] != 0 and (self.max_depth is None or depth < self.max_depth)

    def _node_positions(self) -> dict[int, tuple[float, int]]:
        """Return position (x, depth) of each drawn node; parents are centred above their children.

        The nodes whose children are not drawn have the positions x = 0, 1, ... from left to right.
        """
        depths = self.tree.depths().tolist()
        places: dict[int, tuple[float, int]] = {}
        ends = 0
        todo = [0]
        while todo:
            node = todo.pop()
            left, right = int(self.tree.left[node]), int(self.tree.right[node])
            if not self._is_open(node, depths[node]):
                places[node] = (float(ends), depths[node])
                ends += 1
            elif left in places and right in places:
                places[node] = ((places[left][0] + places[right][0]) / 2, depths[node])
            else:
                todo += [node, right, left]  # Children first, left before right.
        return places

    def _draw_edges(self, ax: "Axes", node: int, places: dict[int, tuple[float, int]]) -> None:
        x, y = places[node]
        for child, word in ((self.tree.left[node], "yes"), (self.tree.right[node], "no")):
            if int(child) in places:
                to_x, to_y = places[int(child)]
                ax.plot([x, to_x], [y, to_y], color="0.6", linewidth=1, zorder=1)
                ax.text((x + to_x) / 2, (y + to_y) / 2, word, **_WORD)

    def _draw_legend(self, ax: "Axes") -> None:
        """Draw a legend that explains dashed frames, if there are any."""
        from matplotlib.patches import Patch

        if any(self.tree.kind[node] == 2 for node in self.boxes_):
            dashed = Patch(facecolor="white", edgecolor="0.3", linestyle="--", label="random split")
            ax.legend(handles=[dashed], loc="upper left", fontsize=7, frameon=False)

    def _draw_box(self, ax: "Axes", node: int, place: tuple[float, int]) -> "Annotation":
        frame = _FRAMES[int(self.tree.kind[node])]
        box: dict[str, Any] = {"boxstyle": "round", "edgecolor": "0.3", **frame}
        box["facecolor"] = self._node_colour(node)
        text: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "zorder": 3}
        return ax.annotate(self._node_text(node, place[1]), place, bbox=box, **text)

    def _node_text(self, node: int, depth: int) -> str:
        lines = [self.tree.rows_of(node), self.tree.summary(node)]
        if self._is_open(node, depth):
            name = self.tree.name_of(int(self.tree.feature[node]))
            if len(name) > _LONGEST_NAME:
                name = name[: _LONGEST_NAME - 1] + "…"
            lines.insert(0, f"{name} ≤ {self.tree.threshold[node]:.4g}")
            lines.insert(1, f"missing: {self.tree.missing_side(node)}")
        elif self.tree.kind[node] != 0:
            lines.append("…")
        return "\n".join(lines)

    def _node_colour(self, node: int) -> tuple[float, ...]:
        """Return the colour of a node: that of its prediction, mixed with white."""
        from matplotlib.colors import to_rgb

        if self.tree.n[node] == 0:
            return (1.0, 1.0, 1.0)
        if self.tree.classes is None:
            return _mix_with_white(to_rgb(COLOURS[0]), _relative_value(self.tree.value, node))
        best = int(self.tree.value[node].argmax())
        n_classes = max(2, len(self.tree.classes))
        share = self.tree.value[node, best] / self.tree.n[node]
        strength = (share - 1 / n_classes) / (1 - 1 / n_classes)
        return _mix_with_white(to_rgb(COLOURS[best % len(COLOURS)]), strength)


_WORD: dict[str, Any] = {
    "fontsize": 7,
    "color": "0.3",
    "ha": "center",
    "va": "center",
    "zorder": 2,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
}


def _relative_value(values: NDArray[np.float64], node: int) -> float:
    """Return the mean of a node, scaled so that the means of the tree range from 0 to 1."""
    least, greatest = float(values.min()), float(values.max())
    return 0.5 if least == greatest else float((values[node] - least) / (greatest - least))


def _mix_with_white(colour: tuple[float, ...], strength: float) -> tuple[float, ...]:
    """Return a colour mixed with white, light enough for black text.

    `strength` ranges from 0 (palest) to 1.
    """
    share = _PALEST + (0.55 - _PALEST) * min(max(float(strength), 0.0), 1.0)
    return tuple(1 - share * (1 - part) for part in colour)
