"""Consistency of decoded estimators whose compiled code checks nothing.

`predict` of a forest, a boosting model or a support vector machine hands arrays to compiled code
that follows indices without looking. A file made by somebody else must not turn that into reading
or writing outside an array, so the shapes are checked once, when the estimator is built.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from letheon.exceptions import CorruptFileError
from letheon.state._tags import tag_of


def check_estimator_arrays(value: Any) -> None:
    """Raise `CorruptFileError` if a decoded estimator would read outside its arrays."""
    cls: type = type(value)
    for check in _checks_of(cls):
        check(value)


@lru_cache(maxsize=4096)
def _checks_of(cls: type) -> tuple[Callable[[Any], None], ...]:
    names = [tag_of(base) for base in cls.__mro__]
    return tuple(_CHECKS[name] for name in names if name in _CHECKS)


def _require(condition: Any, value: Any, what: str) -> None:
    if not condition:
        raise CorruptFileError(f"not a valid {type(value).__name__}: {what}")


def _check_tree(value: Any) -> None:
    tree = vars(value).get("tree_")
    if tree is not None:
        _require(_is_tree(tree), value, "tree_")
        _require(vars(value).get("n_features_in_") == tree.n_features, value, "n_features_in_")


def _is_tree(value: Any) -> bool:
    return tag_of(type(value)) == "sklearn.tree._tree.Tree"


def _features_of(estimator: Any, owner: Any) -> int:
    """Return the number of features of a decision tree; anything else is refused."""
    tree: Any = getattr(estimator, "tree_", None)
    _require(_is_tree(tree), owner, "estimators_")
    count: int = tree.n_features
    return count


def _check_forest(value: Any) -> None:
    for tree in vars(value).get("estimators_", ()):
        _require(_features_of(tree, value) == vars(value).get("n_features_in_"), value, "features")


def _check_isolation_forest(value: Any) -> None:
    state = vars(value)
    if "estimators_" not in state:
        return
    trees, features = state["estimators_"], state["estimators_features_"]
    _require(len(trees) == len(features), value, "features")
    for tree, chosen in zip(trees, features, strict=True):
        count = _features_of(tree, value)
        _require(count == len(chosen) == state.get("_max_features"), value, "features")


def _check_boosting(value: Any) -> None:
    state = vars(value)
    if "estimators_" not in state:
        return
    trees = state["estimators_"]
    _require(isinstance(trees, np.ndarray) and trees.ndim == 2, value, "estimators_")
    for tree in trees.ravel():
        _require(_features_of(tree, value) == state.get("n_features_in_"), value, "features")
        _require(tree.tree_.value.shape[1:] == (1, 1), value, "values")
    columns = trees.shape[1]
    _require(columns == state.get("n_trees_per_iteration_"), value, "n_trees_per_iteration_")
    _require(columns == _raw_columns(state), value, "init_")


def _raw_columns(state: dict[str, Any]) -> Any:
    """Return the number of columns that the initial prediction has."""
    if not getattr(state.get("_loss"), "is_multiclass", False):
        return 1
    init = state.get("init_")
    if isinstance(init, str):
        return state.get("n_trees_per_iteration_")
    prior = getattr(init, "class_prior_", None)
    return len(getattr(init, "classes_", ())) if prior is None else len(prior)


def _check_histogram_boosting(value: Any) -> None:
    state = vars(value)
    if "_predictors" not in state:
        return
    n_features = state.get("_n_features")
    categorical = state["_bin_mapper"].is_categorical_
    _require(isinstance(categorical, np.ndarray), value, "is_categorical_")
    _require(type(n_features) is int and categorical.shape == (n_features,), value, "_n_features")
    for predictor in (tree for trees in state["_predictors"] for tree in trees):
        _require(type(predictor).__name__ == "TreePredictor", value, "_predictors")
        nodes = predictor.nodes
        inner = nodes[nodes["is_leaf"] == 0]
        _require(np.all(inner["feature_idx"] < n_features), value, "feature_idx")
        split = inner["feature_idx"][inner["is_categorical"] != 0]
        _require(np.all(categorical[split] != 0), value, "categories")


def _check_support_vectors(value: Any) -> None:
    state = vars(value)
    if "support_" not in state:
        return
    counts, coefficients = state["_n_support"], state["_dual_coef_"]
    n_vectors, n_classes = len(state["support_"]), len(counts)
    _require(np.all(counts >= 0) and n_classes >= 2, value, "_n_support")
    _require(coefficients.shape[0] in {1, n_classes - 1}, value, "_dual_coef_")
    _require(coefficients.shape[1] == n_vectors, value, "_dual_coef_")
    if value._impl in {"c_svc", "nu_svc"}:
        _require(coefficients.shape[0] == n_classes - 1, value, "_dual_coef_")
        _require(int(counts.sum()) == n_vectors, value, "_n_support")
    pairs = n_classes * (n_classes - 1) // 2
    _require(state["_intercept_"].shape == (pairs,), value, "_intercept_")
    sizes = {len(state["_probA"]), len(state["_probB"])}
    wanted = {pairs} if state.get("_effective_probability", value.probability) else {0}
    _require(sizes <= wanted | {pairs}, value, "_probA")
    _check_vectors(value, n_vectors)


def _check_vectors(value: Any, n_vectors: int) -> None:
    vectors, support = value.support_vectors_, value.support_
    if value.kernel == "precomputed" or callable(value.kernel):
        inside = np.all((support >= 0) & (support < value.shape_fit_[0]))
        _require(inside and value.shape_fit_[0] == value.n_features_in_, value, "support_")
    else:
        shape = (n_vectors, value.n_features_in_)
        _require(vectors.shape == shape, value, "support_vectors_")
    if value._sparse:
        _require(value._dual_coef_.nnz == value._dual_coef_.shape[0] * n_vectors, value, "nnz")


def _check_centres(value: Any) -> None:
    state = vars(value)
    threads = state.get("_n_threads", 1)
    _require(type(threads) is int and 0 < threads <= 1024, value, "_n_threads")
    if "cluster_centers_" not in state:
        return
    centres, counts = state["cluster_centers_"], state.get("_counts")
    _require(centres.ndim == 2, value, "cluster_centers_")
    _require(centres.shape[1] == state.get("n_features_in_"), value, "cluster_centers_")
    _require(counts is None or counts.shape == (len(centres),), value, "_counts")
    stack = [state["_bisecting_tree"]] if "_bisecting_tree" in state else []
    while stack:
        node = stack.pop()
        _require(node.center.shape == centres.shape[1:], value, "_bisecting_tree")
        stack += [child for child in (node.left, node.right) if child is not None]


def _check_neighbours(value: Any) -> None:
    """Check the labels of the neighbours: compiled code counts them by class."""
    state = vars(value)
    if "_fit_X" not in state:
        return
    n_rows = state["_fit_X"].shape[0]
    _require(state.get("n_samples_fit_") == n_rows, value, "n_samples_fit_")
    labels = state.get("_y")
    if labels is None:
        return
    _require(len(labels) == n_rows, value, "_y")
    if "classes_" in state and not state.get("outputs_2d_"):
        inside = labels.ndim == 1 and labels.dtype.kind == "i"
        inside = inside and (n_rows == 0 or 0 <= labels.min() <= labels.max() < len(value.classes_))
        _require(inside, value, "_y")


def _check_hasher(value: Any) -> None:
    count = vars(value).get("n_features")
    _require(isinstance(count, int | np.integer) and 0 < count < 2**31, value, "n_features")


_CHECKS: dict[str, Callable[[Any], None]] = {
    "sklearn.tree._classes.BaseDecisionTree": _check_tree,
    "sklearn.ensemble._forest.BaseForest": _check_forest,
    "sklearn.ensemble._iforest.IsolationForest": _check_isolation_forest,
    "sklearn.ensemble._gb.BaseGradientBoosting": _check_boosting,
    "sklearn.ensemble._hist_gradient_boosting.gradient_boosting.BaseHistGradientBoosting": (
        _check_histogram_boosting
    ),
    "sklearn.cluster._kmeans._BaseKMeans": _check_centres,
    "sklearn.feature_extraction._hash.FeatureHasher": _check_hasher,
    "sklearn.feature_extraction.text.HashingVectorizer": _check_hasher,
    "sklearn.neighbors._base.NeighborsBase": _check_neighbours,
    "sklearn.svm._base.BaseLibSVM": _check_support_vectors,
}
