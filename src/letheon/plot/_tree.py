"""One tree of a forest, drawn."""

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from letheon.forest import DaREForestClassifier, DaREForestRegressor, ForestTree
from letheon.plot._axes import COLOURS, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation


# Inches that a box takes, so that neither boxes nor their texts touch.
_BOX_WIDTH, _BOX_HEIGHT = 1.55, 1.1
_LONGEST_NAME = 20
_PALEST = 0.12


class ForestTreeDisplay:
    """The upper levels of one tree: what each node asks, how many rows it holds, what it says.

    Best splits have a frame, random ones a dashed frame, leaves none; a node whose subtree is
    not drawn ends in dots. "missing: no" means that rows without a value go the way of "no". The
    colour is that of the commonest class, deeper the purer the node is; for regression it is the
    mean.

    Parameters
    ----------
    tree : ForestTree
        As `DaREForestClassifier.tree_` gives it.
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
        The figure drawn on.

    Examples
    --------
    >>> display = ForestTreeDisplay.from_estimator(model, tree=0)  # doctest: +SKIP
    """

    ax_: "Axes"
    boxes_: "dict[int, Annotation]"
    figure_: "Figure"

    def __init__(self, tree: ForestTree, *, max_depth: int | None = 3, title: str = "") -> None:
        if max_depth is not None and max_depth < 0:
            raise ValueError(f"max_depth={max_depth}; expected at least 0, or None for all")
        self.tree = tree
        self.max_depth = max_depth
        self.title = title

    @classmethod
    def from_estimator(
        cls, model: Any, *, tree: int = 0, max_depth: int | None = 3, ax: "Axes | None" = None
    ) -> Self:
        """Draw a tree of a fitted forest.

        Parameters
        ----------
        model : DaREForestClassifier or DaREForestRegressor
            The forest.
        tree : int, default=0
            Number of the tree.
        max_depth : int or None, default=3
            Levels of splits to draw; None draws all.
        ax : Axes, optional
            Where to draw; by default a new figure that is large enough.

        Returns
        -------
        ForestTreeDisplay
        """
        if not isinstance(model, DaREForestClassifier | DaREForestRegressor):
            raise TypeError(
                "give a fitted DaREForestClassifier or DaREForestRegressor; got "
                f"{type(model).__name__}"
            )
        return cls(model.tree_(tree), max_depth=max_depth, title=f"Tree {tree}").plot(ax)

    def plot(self, ax: "Axes | None" = None) -> Self:
        """Draw.

        Parameters
        ----------
        ax : Axes, optional
            Where to draw; by default a new figure that is large enough.

        Returns
        -------
        ForestTreeDisplay
            Itself, with `ax_`, `boxes_` and `figure_`.
        """
        places = self._places()
        width = max(x for x, _ in places.values()) + 1
        height = max(y for _, y in places.values()) + 1
        if ax is None:
            size = max(4.0, width * _BOX_WIDTH), height * _BOX_HEIGHT + 0.6
            ax = new_axes(1, *size)[0]
        ax.set_axis_off()
        ax.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5), title=self.title)
        self.boxes_ = {}
        for node, place in places.items():
            self._draw_edges(ax, node, places)
            self.boxes_[node] = self._draw_box(ax, node, place)
        self._draw_legend(ax)
        self.ax_, self.figure_ = ax, ax.figure.figure
        return self

    def _is_open(self, node: int, depth: int) -> bool:
        """Whether the children of a node are drawn."""
        return self.tree.kind[node] != 0 and (self.max_depth is None or depth < self.max_depth)

    def _places(self) -> dict[int, tuple[float, int]]:
        """Return where nodes stand: ends side by side, parents over the middle of children."""
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
                todo += [node, right, left]  # children first, the left one before the right
        return places

    def _draw_edges(self, ax: "Axes", node: int, places: dict[int, tuple[float, int]]) -> None:
        x, y = places[node]
        for child, word in ((self.tree.left[node], "yes"), (self.tree.right[node], "no")):
            if int(child) in places:
                to_x, to_y = places[int(child)]
                ax.plot([x, to_x], [y, to_y], color="0.6", linewidth=1, zorder=1)
                ax.text((x + to_x) / 2, (y + to_y) / 2, word, **_WORD)

    def _draw_legend(self, ax: "Axes") -> None:
        """Say what a dashed frame means, where there is one."""
        from matplotlib.patches import Patch

        if any(self.tree.kind[node] == 2 for node in self.boxes_):
            dashed = Patch(facecolor="white", edgecolor="0.3", linestyle="--", label="random split")
            ax.legend(handles=[dashed], loc="upper left", fontsize=7, frameon=False)

    def _draw_box(self, ax: "Axes", node: int, place: tuple[float, int]) -> "Annotation":
        frames = ({"linewidth": 0}, {"linewidth": 1}, {"linewidth": 1, "linestyle": "--"})
        return ax.annotate(
            self._text(node, place[1]),
            place,
            ha="center",
            va="center",
            fontsize=8,
            zorder=3,
            bbox={
                "boxstyle": "round",
                "facecolor": self._colour(node),
                "edgecolor": "0.3",
                **frames[int(self.tree.kind[node])],
            },
        )

    def _text(self, node: int, depth: int) -> str:
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

    def _colour(self, node: int) -> tuple[float, ...]:
        """Return the colour of what the node says, mixed with white."""
        from matplotlib.colors import to_rgb

        if self.tree.n[node] == 0:
            return (1.0, 1.0, 1.0)
        if self.tree.classes is None:
            return _mixed(to_rgb(COLOURS[0]), _relative(self.tree.value, node))
        best = int(self.tree.value[node].argmax())
        n_classes = max(2, len(self.tree.classes))
        share = self.tree.value[node, best] / self.tree.n[node]
        strength = (share - 1 / n_classes) / (1 - 1 / n_classes)
        return _mixed(to_rgb(COLOURS[best % len(COLOURS)]), strength)


_WORD: dict[str, Any] = {
    "fontsize": 7,
    "color": "0.3",
    "ha": "center",
    "va": "center",
    "zorder": 2,
    "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8},
}


def _relative(values: NDArray[np.float64], node: int) -> float:
    """Return where a node's mean lies between the least and the greatest of the tree."""
    least, greatest = float(values.min()), float(values.max())
    return 0.5 if least == greatest else float((values[node] - least) / (greatest - least))


def _mixed(colour: tuple[float, ...], strength: float) -> tuple[float, ...]:
    """Return a colour mixed with white; never so dark that black text on it is hard to read."""
    share = _PALEST + (0.55 - _PALEST) * min(max(float(strength), 0.0), 1.0)
    return tuple(1 - share * (1 - part) for part in colour)
