"""Trees of a forest as arrays and as text."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from letheon.data import ValueNames


@dataclass(frozen=True, eq=False)
class ForestTree:
    """One tree as arrays, one entry per node in preorder; 0 is the root.

    Attributes
    ----------
    kind : ndarray of uint8
        0 for a leaf, 1 for a best split, 2 for a random split.
    feature : ndarray of int64
        Column that the node splits on; -1 for a leaf.
    threshold : ndarray of float32
        Rows with ``x <= threshold`` go left; NaN for a leaf. Except in random splits, the
        threshold is a value of a remaining row. In a column of categories, rows with
        ``x == threshold`` go left, and `categories` has the name of the threshold.
    missing_left : ndarray of bool
        Whether rows without a value go left.
    left, right : ndarray of int64
        Indices of the child nodes; -1 for a leaf.
    n : ndarray of int64, or of float64 with fractional weights
        Sum of the weights of the rows in the node.
    value : ndarray of float64
        For classification the weight of each class, shape (n_nodes, n_classes); for regression
        the mean target.
    classes : ndarray or None
        Labels in the order of the columns of `value`; None for regression.
    feature_names : tuple of str or None
        Names of the columns, if the model has them.
    categories : dict of dict
        Names of categories by value, by number of the column.

    Examples
    --------
    >>> from letheon import DaREForestClassifier
    >>> model = DaREForestClassifier(n_estimators=1, random_depth=0, random_state=0)
    >>> tree = model.fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1]).tree_(0)
    >>> float(tree.threshold[0]), tree.n.tolist()
    (1.0, [4, 2, 2])
    """

    kind: NDArray[np.uint8]
    feature: NDArray[np.int64]
    threshold: NDArray[np.float32]
    missing_left: NDArray[np.bool_]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    n: NDArray[Any]
    value: NDArray[np.float64]
    classes: NDArray[Any] | None
    feature_names: tuple[str, ...] | None
    categories: dict[int, ValueNames]

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], feature_names: NDArray[Any] | None) -> Self:
        """Build the tree from the arrays of the core."""
        classes, step = arrays.get("classes"), arrays["weight_step"]
        values = arrays["values"][:, 0] if classes is None else arrays["values"] / step
        return cls(
            kind=arrays["kind"],
            feature=arrays["attribute"],
            threshold=arrays["threshold"],
            missing_left=arrays["missing_left"].astype(bool),
            left=arrays["left"],
            right=arrays["right"],
            n=arrays["weight"] if step == 1 else arrays["weight"] / step,
            value=values,
            classes=classes,
            feature_names=None if feature_names is None else tuple(map(str, feature_names)),
            categories=arrays["categories"],
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
        """Number of levels of splits."""
        return int(self.depths().max())

    def depths(self) -> NDArray[np.int64]:
        """Return the depth of every node; the root has depth 0."""
        depths = np.zeros(self.n_nodes, np.int64)
        for node in np.flatnonzero(self.kind).tolist():  # a parent comes before its children
            depths[[self.left[node], self.right[node]]] = depths[node] + 1
        return depths

    def rule(self, node: int) -> str:
        """Return the condition of a node, such as ``age <= 41.5``; an empty text for a leaf."""
        if self.kind[node] == 0:
            return ""
        feature = int(self.feature[node])
        if feature in self.categories:
            category = self.categories[feature][float(self.threshold[node])]
            return f"{self.name_of(feature)} == {category}"
        return f"{self.name_of(feature)} <= {self.threshold[node]:.6g}"

    def name_of(self, feature: int) -> str:
        """Return the name of a column."""
        return f"x[{feature}]" if self.feature_names is None else self.feature_names[feature]

    def summary(self, node: int) -> str:
        """Return the prediction of a node as text: its main class with its share, or its mean."""
        if self.n[node] == 0:
            return "no rows"
        if self.classes is None:
            return f"mean {self.value[node]:.6g}"
        best = int(self.value[node].argmax())
        return f"{self.classes[best]} ({self.value[node, best] / self.n[node]:.0%})"

    def rows_of(self, node: int) -> str:
        """Return the number of rows of a node as text, such as ``1 row`` or ``1,200 rows``."""
        n = self.n[node]
        number = f"{int(n):,}" if n == int(n) else f"{n:,.3f}"
        return f"{number} row" + ("" if n == 1 else "s")

    def missing_side(self, node: int) -> str:
        """Return the branch of rows with a missing value: ``yes`` (left) or ``no`` (right)."""
        return "yes" if self.missing_left[node] else "no"

    def to_text(self, *, max_depth: int | None = None) -> str:
        """Return the tree as indented text; the branch ``yes`` comes before ``no``.

        Parameters
        ----------
        max_depth : int, optional
            Number of levels of splits to show; by default all.

        Returns
        -------
        str
        """
        lines: list[str] = []
        todo = [(0, 0, "")]
        while todo:
            node, depth, branch = todo.pop()
            lines.append("|   " * depth + branch + self._format_node(node, depth, max_depth))
            if self._is_open(node, depth, max_depth):
                todo.append((int(self.right[node]), depth + 1, "no: "))
                todo.append((int(self.left[node]), depth + 1, "yes: "))
        return "\n".join(lines) + "\n"

    def _is_open(self, node: int, depth: int, max_depth: int | None) -> bool:
        return self.kind[node] != 0 and (max_depth is None or depth < max_depth)

    def _format_node(self, node: int, depth: int, max_depth: int | None) -> str:
        if self._is_open(node, depth, max_depth):
            how = ", random" if self.kind[node] == 2 else ""
            side = self.missing_side(node)
            return f"{self.rule(node)}? ({self.rows_of(node)}, missing: {side}{how})"
        cut = " ..." if self.kind[node] != 0 else ""
        return f"{self.summary(node)} ({self.rows_of(node)}){cut}"
