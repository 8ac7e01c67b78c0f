"""Scores of rows: trees without rows, and linear functions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import joblib
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from letheon.predictor._graph import OnnxGraph
from letheon.predictor._inputs import TreeInputs, dense_blocks

Floats = NDArray[np.float64]

# Starting threads for fewer rows takes longer than the threads save.
_FEW_ROWS = 64
# No category has this code.
_NO_CATEGORY = -2.0
_SCALE = ("categorical", "base", "exponent", "divisor", "offset")
# Larger than that of any float.
_MOST_EXPONENT = 1 << 12
# Memory of a node while a file is read.
_NODE_BYTES = 48
# Kinds of splits in ONNX: x <= threshold, x == threshold.
_AT_MOST, _EQUAL = 0, 4


def binarize(X: Any, border: float) -> Any:
    """Return 1 for values above the border, otherwise 0; dense or CSR like X.

    Parameters
    ----------
    X : ndarray or sparse array
        The rows.
    border : float
        The border; at least 0 if X is sparse.

    Returns
    -------
    ndarray or CSR array of float

    Raises
    ------
    ValueError
        X is sparse and the border is negative.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.predictor import binarize
    >>> binarize(np.array([[1.0, 2.0, 3.0]]), 2.0)
    array([[0., 0., 1.]])
    """
    if not sp.issparse(X):
        return (border < X).astype(np.float64)
    if border < 0:
        raise ValueError("Cannot binarize a sparse matrix with threshold < 0")
    data = (X.data > border).astype(np.float64)
    return sp.csr_array((data, X.indices, X.indptr), shape=X.shape)


@dataclass(frozen=True, eq=False)
class AffineScores:
    """Scores ``X @ coef.T`` plus offsets, which are added in order.

    Attributes
    ----------
    coef : ndarray of shape (n_scores, n_columns)
        Coefficients.
    offsets : tuple of ndarray of shape (n_scores,)
        What is added.
    border : float or None
        If set, each value of X becomes 1 if it is larger, otherwise 0.
    is_difference : bool
        Whether the only score is that of the second class minus that of the first.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.predictor import AffineScores
    >>> AffineScores(np.array([[2.0, 1.0]]), (np.array([0.5]),)).compute(np.array([[1.0, 3.0]]))
    array([[5.5]])
    """

    coef: Floats
    offsets: tuple[Floats, ...]
    border: float | None = None
    is_difference: bool = False

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return int(self.coef.shape[1])

    @property
    def n_scores(self) -> int:
        """Number of scores of a row."""
        return 2 if self.is_difference else len(self.coef)

    def _require_valid(self) -> None:
        """Raise `ValueError` for arrays from a file whose shapes do not match."""
        shapes = {self.coef.shape[:1], *(np.shape(offset) for offset in self.offsets)}
        if self.coef.ndim != 2 or len(shapes) != 1 or (self.is_difference and len(self.coef) != 1):
            raise ValueError("the coefficients have shapes that do not match")

    def compute(self, X: Any) -> Floats:
        """Return the scores of rows."""
        if self.border is not None:
            X = binarize(X, self.border)
        scores = np.asarray(X @ self.coef.T)
        for offset in self.offsets:
            scores = scores + offset
        if self.is_difference:
            return np.column_stack([np.zeros(len(scores)), scores[:, 0]])
        return scores

    def export(self, graph: OnnxGraph, rows: str) -> tuple[str, int]:
        """Add the scores to an ONNX graph; return their name and number."""
        if self.border is not None:
            is_larger = graph.add("Greater", rows, graph.constant(np.array(self.border)))
            rows = graph.cast(is_larger, np.float64)
        scores = graph.add("MatMul", rows, graph.constant(np.ascontiguousarray(self.coef.T)))
        for offset in self.offsets:
            scores = graph.add("Add", scores, graph.constant(offset))
        if not self.is_difference:
            return scores, len(self.coef)
        zero = graph.add("Mul", scores, graph.constant(np.array(0.0)))
        return graph.add("Concat", zero, scores, axis=1), 2


@dataclass(frozen=True, eq=False)
class TreeScores:
    """Sums of the leaves that a row reaches: ``(base + sum) * 2**exponent / divisor + offset``.

    The nodes of each tree are in preorder: the left child of node i is node i + 1.

    Attributes
    ----------
    begins : ndarray of int64
        Number of the first node of each tree, then the number of all nodes.
    columns : ndarray of int32
        Column that a node splits on; -1 for a leaf.
    thresholds : ndarray of float32
        Rows with ``x <= threshold`` go left (in a column of categories ``x == threshold``).
    rights : ndarray of int32
        Right child of each node; -1 for a leaf.
    missing_left : ndarray of uint8
        Whether rows without a value go left.
    weights : ndarray of float64
        Weight of the training rows of each node (boosting: their hessians), for explanations.
    values : ndarray of shape (n_leaves, width)
        Values of the leaves. With width 1, tree t has a value for score ``t % n_scores`` only.
    categorical : ndarray of uint8
        Whether each column has categories.
    base : ndarray of float64
        Start of each score.
    exponent, divisor, offset : int, float, float
        The scale of the scores.

    Examples
    --------
    >>> from letheon import DaREForestClassifier
    >>> model = DaREForestClassifier(n_estimators=2, random_state=0).fit([[0.0], [1.0]], [0, 1])
    >>> [len(tree["values"]) for tree in model.predictor().to_shap()["trees"]]
    [3, 3]
    """

    begins: NDArray[np.int64]
    columns: NDArray[np.int32]
    thresholds: NDArray[np.float32]
    rights: NDArray[np.int32]
    missing_left: NDArray[np.uint8]
    weights: Floats
    values: Floats
    categorical: NDArray[np.uint8]
    base: Floats
    exponent: int = 0
    divisor: float = 1.0
    offset: float = 0.0

    @classmethod
    def from_trees(
        cls,
        trees: Sequence[Mapping[str, Any]],
        names: Mapping[int, Mapping[float, str]],
        inputs: TreeInputs,
        **scale: Any,
    ) -> tuple[TreeInputs, Self]:
        """Return the scores of trees of the core, and the input with their categories.

        Parameters
        ----------
        trees : sequence of dict
            Arrays of the core; ``"weight"`` and ``"value"`` have one entry (one row) per node.
        names : dict
            For each column of categories the text of each value in the trees.
        inputs : TreeInputs
            The input, without categories.
        **scale
            The other attributes.
        """
        begins = np.cumsum([0, *(len(tree["attribute"]) for tree in trees)])
        joined = {
            key: np.concatenate([tree[key] for tree in trees])
            for key in ("attribute", "threshold", "missing_left", "weight", "value")
        }
        columns = joined["attribute"].astype(np.int32)
        is_leaf = columns < 0
        rights = np.concatenate(
            [tree["right"] + begin for tree, begin in zip(trees, begins, strict=False)]
        )
        thresholds = np.where(is_leaf, np.float32(0), joined["threshold"])
        texts = []
        for column in inputs.columns:
            nodes, known = columns == column, names[column]
            used = thresholds[nodes].tolist()
            texts.append(tuple(sorted({known[value] for value in used if value in known})))
            codes = {text: code for code, text in enumerate(texts[-1])}
            thresholds[nodes] = [
                codes[known[value]] if value in known else _NO_CATEGORY for value in used
            ]
        values = joined["value"][is_leaf]
        return replace(inputs, texts=tuple(texts)), cls(
            begins=begins.astype(np.int64),
            columns=columns,
            thresholds=thresholds.astype(np.float32),
            rights=np.where(is_leaf, -1, rights).astype(np.int32),
            missing_left=joined["missing_left"].astype(np.uint8),
            weights=joined["weight"].astype(np.float64),
            values=np.ascontiguousarray(values.reshape(len(values), -1), np.float64),
            categorical=inputs.categorical,
            **scale,
        )

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.categorical)

    @property
    def n_scores(self) -> int:
        """Number of scores of a row."""
        return len(self.base)

    @property
    def n_trees(self) -> int:
        """Number of trees."""
        return len(self.begins) - 1

    @cached_property
    def leaf_numbers(self) -> NDArray[np.int64]:
        """Number of each leaf among the leaves, by number of the node."""
        return np.cumsum(self.columns < 0) - 1

    def outputs_of(self, tree: int) -> slice:
        """Return the scores that a tree adds to."""
        n_scores, width = len(self.base), self.values.shape[1]
        first = tree % n_scores if width == 1 else 0
        return slice(first, first + width)

    def compute(self, X: Any) -> Floats:
        """Return the scores of rows."""
        n_cells = 1 << 22
        blocks = [
            self._compute_block(part)
            for block in dense_blocks(X)
            for part in dense_blocks(block, max(1, n_cells // self.n_trees) * block.shape[1])
        ]
        return np.concatenate(blocks)

    def _compute_block(self, X: NDArray[Any]) -> Floats:
        sums = np.tile(self.base, (len(X), 1))
        for tree, nodes in enumerate(self._find_leaves(X)):
            sums[:, self.outputs_of(tree)] += self.values[self.leaf_numbers[nodes]]
        scores: Floats = np.ldexp(sums, self.exponent) / self.divisor + self.offset
        return scores

    def _to_state(self) -> dict[str, Any]:
        """Return the trees in few bytes: everything that follows from the rest is left out."""
        is_leaf = self.columns < 0
        weights = self.weights[is_leaf]
        counts = np.rint(self.values * weights[:, None])
        with np.errstate(invalid="ignore"):
            is_counts = np.array_equal(_share(counts), self.values)
        scale = {name: getattr(self, name) for name in _SCALE}
        return scale | {
            "n_nodes": len(is_leaf),
            "is_leaf": np.packbits(is_leaf),
            "columns": _narrow(self.columns[~is_leaf]),
            "thresholds": self.thresholds[~is_leaf],
            "missing_left": np.packbits(self.missing_left[~is_leaf]),
            "values": _narrow(counts if is_counts else self.values),
            "weights": None if is_counts else _narrow(weights),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> Self:
        n_nodes = state["n_nodes"]
        is_leaf = np.unpackbits(state["is_leaf"], count=n_nodes).astype(bool)
        begins, rights = _link_nodes(is_leaf)
        n_leaves, n_splits = int(is_leaf.sum()), int((~is_leaf).sum())
        values, weights = state["values"].astype(np.float64), state["weights"]
        leaf_weights = values.sum(axis=1) if weights is None else weights.astype(np.float64)
        parts = (state["columns"], n_splits), (state["thresholds"], n_splits)
        if any(array.shape != (n,) for array, n in (*parts, (leaf_weights, n_leaves))):
            raise ValueError("the arrays of the trees have different lengths")
        _require_valid_trees(state, n_leaves, n_splits)
        missing_left = np.unpackbits(state["missing_left"], count=n_splits)
        return cls(
            begins=begins,
            columns=_spread(~is_leaf, state["columns"], np.int32(-1)),
            thresholds=_spread(~is_leaf, state["thresholds"], np.float32(0)),
            rights=rights,
            missing_left=_spread(~is_leaf, missing_left, np.uint8(0)),
            weights=_sum_weights(_spread(is_leaf, leaf_weights, np.float64(0)), rights),
            values=_share(values) if weights is None else values,
            **{name: state[name] for name in _SCALE},
        )

    @classmethod
    def _native_cost(cls, state: dict[str, Any]) -> tuple[int, int]:
        """Return how many bytes and steps `_from_state` takes."""
        return _NODE_BYTES * int(state["n_nodes"]) + 8 * int(state["values"].size), 0

    def export(self, graph: OnnxGraph, rows: str) -> tuple[str, int]:
        """Add the scores to an ONNX graph; return their name and number."""
        sums = graph.add("Add", _export_trees(self, graph, rows), graph.constant(self.base))
        factor = graph.constant(np.array(np.ldexp(1.0, self.exponent) / self.divisor))
        scaled = graph.add("Mul", sums, factor)
        return graph.add("Add", scaled, graph.constant(np.array(self.offset))), len(self.base)

    def to_shap(self) -> dict[str, Any]:
        """Return the trees as a dict that `shap.TreeExplainer` accepts as a model."""
        if self.categorical.any():
            raise TypeError(
                "SHAP cannot read splits on categories; use a pipeline with "
                "letheon.preprocessing.OneHotEncoder in front of the model, or numbers"
            )
        return {
            "trees": [_make_tree(self, tree) for tree in range(self.n_trees)],
            "base_offset": np.ldexp(self.base, self.exponent) / self.divisor + self.offset,
            "input_dtype": np.float32,
            "internal_dtype": np.float64,
            "tree_output": "raw_value",
            "objective": None,
        }

    def _find_leaves(self, X: NDArray[Any]) -> NDArray[np.int32]:
        from letheon import _core

        n_threads = 1 if len(X) <= _FEW_ROWS else joblib.effective_n_jobs(None)
        return _core.find_leaves(
            self.begins,
            self.columns,
            self.thresholds,
            self.rights,
            self.missing_left,
            self.categorical,
            X,
            n_threads,
        )


def _require_valid_trees(state: dict[str, Any], n_leaves: int, n_splits: int) -> None:
    """Raise `ValueError` for arrays that would make SHAP or ONNX read outside of them."""
    columns, thresholds, missing_left = (
        state[name] for name in ("columns", "thresholds", "missing_left")
    )
    categorical, base, values = (state[name] for name in ("categorical", "base", "values"))
    is_column = columns.dtype.kind in "iu" and (
        n_splits == 0 or 0 <= columns.min() <= columns.max() < categorical.size
    )
    is_valid = {
        "columns": is_column and categorical.ndim == 1 and categorical.dtype == np.uint8,
        "thresholds": thresholds.dtype == np.float32 and not np.isnan(thresholds).any(),
        "missing_left": missing_left.shape == (-(-n_splits // 8),),
        "base": base.dtype == np.float64 and base.ndim == 1 and np.isfinite(base).all(),
        "values": values.dtype.kind in "iuf"
        and values.shape in {(n_leaves, 1), (n_leaves, base.size)}
        and base.size > 0,
        "exponent": isinstance(state["exponent"], int) and abs(state["exponent"]) < _MOST_EXPONENT,
        "divisor": isinstance(state["divisor"], float) and 0 < state["divisor"] < np.inf,
        "offset": isinstance(state["offset"], float) and bool(np.isfinite(state["offset"])),
    }
    wrong = [name for name, is_right in is_valid.items() if not is_right]
    if wrong:
        raise ValueError(f"trees have invalid {', '.join(wrong)}")


def _share(counts: Floats) -> Floats:
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in the smallest type of integers; others unchanged."""
    if values.size == 0 or not (values == np.rint(values)).all() or np.abs(values).max() > 2**53:
        return values
    types = [np.min_scalar_type(int(edge)) for edge in (values.min(), values.max())]
    return values.astype(np.result_type(*types))


def _spread(places: NDArray[np.bool_], values: NDArray[Any], other: Any) -> NDArray[Any]:
    """Return an array with values at some places, and another value elsewhere."""
    array = np.full(len(places), other)
    array[places] = values
    return array


def _link_nodes(is_leaf: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the beginnings of trees in preorder, and the right children of their nodes."""
    rights = np.full(len(is_leaf), -1, np.int32)
    begins: list[int] = []
    waiting: list[int] = []
    was_leaf = True
    for node, ends in enumerate(is_leaf.tolist()):
        if was_leaf and waiting:
            rights[waiting.pop()] = node
        elif was_leaf:
            begins.append(node)
        if not ends:
            waiting.append(node)
        was_leaf = ends
    if waiting or not was_leaf or not begins:
        raise ValueError("the nodes are not those of whole trees")
    return np.array([*begins, len(is_leaf)], np.int64), rights


def _sum_weights(weights: Floats, rights: NDArray[np.int32]) -> Floats:
    """Add the weights of leaves to the nodes above them, in place."""
    for node in np.flatnonzero(rights >= 0)[::-1].tolist():  # children come after their parent
        weights[node] = weights[node + 1] + weights[rights[node]]
    return weights


def _number_nodes(scores: TreeScores) -> dict[str, NDArray[Any]]:
    """Return the nodes of all trees as ONNX numbers them: splits and leaves apart."""
    is_leaf = scores.columns < 0
    splits, numbers = np.flatnonzero(~is_leaf), np.cumsum(~is_leaf) - 1
    roots = scores.begins[:-1]
    # A tree that is a leaf becomes a split with this leaf on both sides.
    alone = roots[is_leaf[roots]]
    nodes = np.concatenate([splits, alone])
    is_split = np.arange(len(nodes)) < len(splits)
    left, right = (
        np.where(is_split, children[nodes], nodes)
        for children in (np.minimum(np.arange(len(is_leaf)) + 1, len(is_leaf) - 1), scores.rights)
    )
    columns = np.where(is_split, scores.columns[nodes], 0)
    return {
        "roots": np.where(
            is_leaf[roots], len(splits) + np.cumsum(is_leaf[roots]) - 1, numbers[roots]
        ),
        "columns": columns,
        "thresholds": scores.thresholds[nodes].astype(np.float64),
        "modes": np.where(scores.categorical[columns] == 1, _EQUAL, _AT_MOST).astype(np.uint8),
        "missing_left": scores.missing_left[nodes],
        "left": np.where(is_leaf[left], scores.leaf_numbers[left], numbers[left]),
        "right": np.where(is_leaf[right], scores.leaf_numbers[right], numbers[right]),
        "is_left_leaf": is_leaf[left],
        "is_right_leaf": is_leaf[right],
    }


def _export_trees(scores: TreeScores, graph: OnnxGraph, rows: str) -> str:
    """Add the sums of leaves. A leaf of ONNX has one value, so each output has its own trees."""
    parts, (n_leaves, width) = _number_nodes(scores), scores.values.shape
    n_nodes = len(parts["columns"])

    def repeat(name: str, step: Any = 0) -> NDArray[Any]:
        return np.concatenate([parts[name] + copy * step for copy in range(width)])

    steps = {
        side: np.where(parts[f"is_{side}_leaf"], n_leaves, n_nodes) for side in ("left", "right")
    }
    trees = np.repeat(np.arange(scores.n_trees), np.diff(scores.begins))[scores.columns < 0]
    targets = [
        trees % len(scores.base) if width == 1 else np.full(n_leaves, c) for c in range(width)
    ]
    return graph.add(
        "TreeEnsemble",
        rows,
        domain="ai.onnx.ml",
        n_targets=len(scores.base),
        aggregate_function=1,  # the sum
        tree_roots=repeat("roots", n_nodes).tolist(),
        nodes_featureids=repeat("columns").tolist(),
        nodes_splits=graph.tensor(repeat("thresholds")),
        nodes_modes=graph.tensor(repeat("modes")),
        nodes_missing_value_tracks_true=repeat("missing_left").tolist(),
        nodes_truenodeids=repeat("left", steps["left"]).tolist(),
        nodes_trueleafs=repeat("is_left_leaf").tolist(),
        nodes_falsenodeids=repeat("right", steps["right"]).tolist(),
        nodes_falseleafs=repeat("is_right_leaf").tolist(),
        leaf_targetids=np.concatenate(targets).tolist(),
        leaf_weights=graph.tensor(np.ascontiguousarray(scores.values.T).ravel()),
    )


def _make_tree(scores: TreeScores, tree: int) -> dict[str, Any]:
    begin, end = scores.begins[tree], scores.begins[tree + 1]
    nodes = slice(begin, end)
    is_leaf = scores.columns[nodes] < 0
    left = np.where(is_leaf, -1, np.arange(1, end - begin + 1)).astype(np.int32)
    right = np.where(is_leaf, -1, scores.rights[nodes] - begin).astype(np.int32)
    values = np.zeros((end - begin, len(scores.base)))
    leaves = scores.values[scores.leaf_numbers[nodes][is_leaf]]
    values[is_leaf, scores.outputs_of(tree)] = np.ldexp(leaves, scores.exponent) / scores.divisor
    return {
        "children_left": left,
        "children_right": right,
        "children_default": np.where(scores.missing_left[nodes], left, right),
        "features": scores.columns[nodes],
        "thresholds": scores.thresholds[nodes].astype(np.float64),
        "values": values,
        "node_sample_weight": scores.weights[nodes],
    }
