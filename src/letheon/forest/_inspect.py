"""One tree of a forest, for people to read."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

KINDS = ("leaf", "greedy", "random")


@dataclass(frozen=True, eq=False)
class ForestTree:
    """One tree as arrays, one entry per node in preorder; 0 is the root.

    Attributes
    ----------
    kind : ndarray of uint8
        0 leaf, 1 best split, 2 random split.
    feature : ndarray of int64
        Column that the node splits by; -1 for a leaf.
    threshold : ndarray of float32
        Rows with ``x <= threshold`` go left; NaN for a leaf. A value of a row that is held, except
        at random nodes.
    missing_left : ndarray of bool
        Whether rows without a value go left.
    left, right : ndarray of int64
        Children; -1 for a leaf.
    n : ndarray of int64
        Rows in the node, by weight.
    value : ndarray of float64
        Classification: rows of each class (nodes by classes), by weight. Regression: mean target.
    classes : ndarray or None
        Labels in the order of the columns of `value`; None for regression.
    feature_names : tuple of str or None
        Names of the columns, where the model knows them.
    """

    kind: NDArray[np.uint8]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    n: NDArray[np.int64]
    value: NDArray[np.float64]
    classes: NDArray[Any] | None
    feature_names: tuple[str, ...] | None

    @classmethod
    def of(cls, arrays: dict[str, Any], feature_names: NDArray[Any] | None) -> Self:
        """Return the tree that the core describes."""
        classes = arrays.get("classes")
        return cls(
            kind=arrays["kind"],
            feature=arrays["attribute"],
            threshold=arrays["threshold"],
            missing_left=arrays["missing_left"].astype(bool),
            left=arrays["left"],
            right=arrays["right"],
            n=arrays["weight"],
            value=arrays["values"][:, 0] if classes is None else arrays["values"],
            classes=classes,
            feature_names=None if feature_names is None else tuple(map(str, feature_names)),
        )

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.kind)

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return int((self.kind == 0).sum())

    @property
    def depth(self) -> int:
        """Levels of splits."""
        return int(self.depths().max())

    def depths(self) -> NDArray[np.int64]:
        """Return the depth of every node; the root has 0."""
        depths = np.zeros(self.n_nodes, np.int64)
        for node in np.flatnonzero(self.kind).tolist():  # a parent comes before its children
            depths[[self.left[node], self.right[node]]] = depths[node] + 1
        return depths

    def rule(self, node: int) -> str:
        """Return what the node asks, such as ``age <= 41.5``; empty for a leaf."""
        if self.kind[node] == 0:
            return ""
        return f"{self.name_of(int(self.feature[node]))} <= {self.threshold[node]:.6g}"

    def name_of(self, feature: int) -> str:
        """Return the name of a column."""
        return f"x[{feature}]" if self.feature_names is None else self.feature_names[feature]

    def summary(self, node: int) -> str:
        """Return what the node says: its commonest class with its share, or its mean."""
        if self.n[node] == 0:
            return "no rows"
        if self.classes is None:
            return f"mean {self.value[node]:.6g}"
        best = int(self.value[node].argmax())
        return f"{self.classes[best]} ({self.value[node, best] / self.n[node]:.0%})"

    def rows_of(self, node: int) -> str:
        """Return how many rows the node holds, such as ``1 row`` or ``1,200 rows``."""
        return f"{self.n[node]:,} row" + ("" if self.n[node] == 1 else "s")

    def missing_side(self, node: int) -> str:
        """Return the answer that a row without a value counts as: ``yes`` (left) or ``no``."""
        return "yes" if self.missing_left[node] else "no"

    def to_text(self, *, max_depth: int | None = None) -> str:
        """Return the tree as indented text, ``yes`` before ``no``.

        Parameters
        ----------
        max_depth : int, optional
            Levels of splits to show; by default all.

        Returns
        -------
        str
        """
        lines: list[str] = []
        todo = [(0, 0, "")]
        while todo:
            node, depth, branch = todo.pop()
            lines.append("|   " * depth + branch + self._line(node, depth, max_depth))
            if self._is_open(node, depth, max_depth):
                todo.append((int(self.right[node]), depth + 1, "no: "))
                todo.append((int(self.left[node]), depth + 1, "yes: "))
        return "\n".join(lines) + "\n"

    def _is_open(self, node: int, depth: int, max_depth: int | None) -> bool:
        return self.kind[node] != 0 and (max_depth is None or depth < max_depth)

    def _line(self, node: int, depth: int, max_depth: int | None) -> str:
        if self._is_open(node, depth, max_depth):
            how = ", random" if self.kind[node] == 2 else ""
            side = self.missing_side(node)
            return f"{self.rule(node)}? ({self.rows_of(node)}, missing: {side}{how})"
        cut = " ..." if self.kind[node] != 0 else ""
        return f"{self.summary(node)} ({self.rows_of(node)}){cut}"
