"""Checks and codecs for scikit-learn classes whose compiled code does not validate its input.

`predict` of a forest, a boosting model or a support vector machine passes arrays to compiled code
that uses indices without checks. A hostile file must not make this code read or write outside an
array. Therefore the decoder checks the indices of children and features, the dtypes and the shapes
once, when it builds the estimator. Search trees are not stored: they are rebuilt from their points.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import UnsupportedStateError
from letheon.state._nodes import array_bytes, require_valid
from letheon.state._tags import Codec, tag_of


def _copy_cost(_: type, plain: Any) -> int:
    """Return the memory in bytes that decoding takes if all arrays are copied twice."""
    return 1024 + 2 * array_bytes(plain)


def _tree_plain(tree: Any) -> dict[str, Any]:
    _, (n_features, n_classes, n_outputs), state = tree.__reduce__()
    return {
        "n_features": int(n_features),
        "n_classes": n_classes,
        "n_outputs": int(n_outputs),
        "max_depth": int(state["max_depth"]),
        "nodes": state["nodes"],
        "values": state["values"],
    }


def _tree_from(cls: Any, plain: Any) -> Any:
    nodes, values, n_classes = plain["nodes"], plain["values"], plain["n_classes"]
    n_features, n_outputs = plain["n_features"], plain["n_outputs"]
    require_valid(type(n_features) is int and 0 <= n_features < 2**31, "tree: features")
    require_valid(type(n_outputs) is int and 0 < n_outputs < 2**31, "tree: outputs")
    require_valid(n_classes.dtype == np.intp and n_classes.shape == (n_outputs,), "tree: classes")
    require_valid(np.all((n_classes > 0) & (n_classes < 2**31)), "tree: classes")
    shape = (len(nodes), n_outputs, int(n_classes.max()))
    require_valid(values.dtype == np.float64 and values.shape == shape, "tree: values")
    check_tree_nodes(nodes, n_features)
    tree = cls(n_features, n_classes, n_outputs)
    require_valid(nodes.dtype == tree.__getstate__()["nodes"].dtype, "tree: nodes")
    state = {"max_depth": plain["max_depth"], "node_count": len(nodes)}
    tree.__setstate__({**state, "nodes": nodes, "values": values})
    return tree


def check_tree_nodes(nodes: NDArray[Any], n_features: int) -> None:
    """Raise CorruptFileError unless all paths end at a leaf and all features exist."""
    require_valid(nodes.ndim == 1 and len(nodes) > 0, "tree: nodes")
    left, right, feature = nodes["left_child"], nodes["right_child"], nodes["feature"]
    leaf = left == -1
    require_valid(np.array_equal(leaf, right == -1), "tree: children")
    check_children(left[~leaf], right[~leaf], np.flatnonzero(~leaf), len(nodes))
    require_valid(np.all((feature[~leaf] >= 0) & (feature[~leaf] < n_features)), "tree: features")


def check_children(left: Any, right: Any, parents: Any, n_nodes: int) -> None:
    """Raise CorruptFileError unless all children exist and come after their parents.

    This order excludes cycles.
    """
    for child in (left.astype(np.int64), right.astype(np.int64)):
        require_valid(np.all((child > parents) & (child < n_nodes)), "tree: children")


def _predictor_from(cls: Any, plain: Any) -> Any:
    # The layout of a node is checked by the compiled code, at every call.
    nodes = plain["nodes"]
    require_valid(nodes.ndim == 1 and len(nodes) > 0, "predictor: nodes")
    inner = nodes["is_leaf"] == 0
    check_children(nodes["left"][inner], nodes["right"][inner], np.flatnonzero(inner), len(nodes))
    require_valid(np.all(nodes["feature_idx"][inner] >= 0), "predictor: features")
    categorical = nodes["bitset_idx"][inner & (nodes["is_categorical"] != 0)]
    for key in ("binned_left_cat_bitsets", "raw_left_cat_bitsets"):
        bits = plain[key]
        require_valid(bits.dtype == np.uint32 and bits.ndim == 2 and bits.shape[1] == 8, "bitsets")
        require_valid(np.all(categorical < len(bits)), "bitsets")
    return cls(nodes, plain["binned_left_cat_bitsets"], plain["raw_left_cat_bitsets"])


def _numbers_of(value: Any) -> list[float]:
    """Return the arguments of a compiled loss function, which must be numbers."""
    reduced = value.__reduce__()
    numbers = list(reduced[1]) if reduced[0] is type(value) else []
    if not all(type(number) in {int, float} for number in numbers):
        raise UnsupportedStateError(
            f"{type(value).__name__} cannot be saved, because its parameters are not all numbers"
        )
    return [float(number) for number in numbers]


def _from_numbers(cls: Any, numbers: Any) -> Any:
    require_valid(type(numbers) is list and len(numbers) < 3, "loss")
    require_valid(all(type(number) is float for number in numbers), "loss")
    return cls(*numbers)


def _search_tree_plain(tree: Any) -> dict[str, Any]:
    state = tree.__getstate__()
    metric = state[11]
    name = type(metric).__name__.removesuffix("64").removesuffix("32").removesuffix("Distance")
    p, vector, matrix = metric.__getstate__()[:3]
    if name == "PyFunc":
        raise UnsupportedStateError(
            "a search tree whose metric is a Python function cannot be saved; use a named metric"
        )
    return {
        "data": np.asarray(state[0]),
        "leaf_size": int(state[4]),
        "metric": name,
        "p": float(p),
        "vector": np.asarray(vector),
        "matrix": np.asarray(matrix),
        "sample_weight": None if state[12] is None else np.asarray(state[12]),
    }


# Names of metric classes, and the arguments that the constructors of three of them take.
_METRICS = (
    "BrayCurtis Canberra Chebyshev Dice Euclidean Hamming Haversine Jaccard Mahalanobis Manhattan "
    "Minkowski RogersTanimoto RussellRao SEuclidean SokalSneath"
)
_METRIC_OPTIONS = {"Minkowski": ("p", "w"), "SEuclidean": ("V",), "Mahalanobis": ("VI",)}


def _search_tree_from(cls: Any, plain: Any) -> Any:
    """Rebuild a search tree, which depends only on its points, metric, leaf size and weights."""
    metric, points, vector = plain["metric"], plain["data"], plain["vector"]
    require_valid(metric in _METRICS.split(), "search tree: metric")
    known = {"p": plain["p"], "V": vector, "VI": plain["matrix"]}
    if vector.shape == points.shape[1:]:
        known["w"] = vector
    options = {key: known[key] for key in _METRIC_OPTIONS.get(metric, ()) if key in known}
    weight = plain["sample_weight"]
    if weight is not None:
        require_valid(weight.shape == points.shape[:1], "search tree: weights")
        options["sample_weight"] = weight
    return cls(points, leaf_size=plain["leaf_size"], metric=metric.lower(), **options)


def _search_tree_cost(_: type, plain: Any) -> int:
    """Check the size of a search tree, and return the memory for building it, in bytes.

    A tree contains the points, their order, and the bounds of its nodes.
    """
    points, size = plain["data"], plain["leaf_size"]
    require_valid(type(size) is int and 0 < size < 2**31, "search tree: leaf size")
    require_valid(points.ndim == 2, "search tree: points")
    n_points: int = points.shape[0]
    n_columns: int = points.shape[1]
    n_nodes: int = 2 ** (max(1, (n_points - 1) // size).bit_length() + 1)
    per_node: int = 64 + 2 * 8 * n_columns
    return 4096 + 2 * array_bytes(plain) + n_points * (16 + 8 * n_columns) + n_nodes * per_node


def _interpolator_plain(value: Any) -> dict[str, Any]:
    if value._kind != "linear":
        raise UnsupportedStateError(
            f"an interpolation of kind {value._kind!r} cannot be saved; expected 'linear'"
        )
    return {
        "x": value.x,
        "y": value.y,
        "axis": int(value.axis),
        "bounds_error": value.bounds_error,
        "fill_value": value._fill_value_orig,
    }


def _require_numbers(*arrays: Any) -> None:
    """Raise CorruptFileError unless these are arrays of numbers; texts could be of any size."""
    for array in arrays:
        require_valid(
            isinstance(array, np.ndarray) and array.dtype.kind in "biufc", "array of numbers"
        )


def _interpolator_from(cls: Any, plain: Any) -> Any:
    _require_numbers(plain["x"], plain["y"])
    fill = plain["fill_value"]
    if type(fill) not in {float, int, str, tuple}:
        _require_numbers(fill)
    return cls(
        plain["x"],
        plain["y"],
        kind="linear",
        axis=plain["axis"],
        bounds_error=plain["bounds_error"],
        fill_value=float(fill) if isinstance(fill, np.ndarray) and fill.ndim == 0 else fill,
        assume_sorted=True,
    )


def _spline_plain(value: Any) -> dict[str, Any]:
    numbers = {"k": int(value.k), "axis": int(value.axis)}
    return {"t": value.t, "c": value.c, "extrapolate": value.extrapolate, **numbers}


def _spline_from(cls: Any, plain: Any) -> Any:
    _require_numbers(plain["t"], plain["c"])
    require_valid(plain["t"].ndim == 1 and 0 <= plain["k"] < 64, "spline")
    knots = np.asarray(plain["t"], np.float64)
    require_valid(np.isfinite(knots).all() and (np.diff(knots) >= 0).all(), "spline")
    options = {"extrapolate": plain["extrapolate"], "axis": plain["axis"]}
    # SciPy checks the sizes, but refuses the equal knots of a constant column.
    spline = cls(np.arange(knots.size), plain["c"], plain["k"], **options)
    spline.t = np.ascontiguousarray(knots)
    return spline


_LOSS = Codec(_numbers_of, _from_numbers)
_SEARCH_TREE = Codec(_search_tree_plain, _search_tree_from, cost=_search_tree_cost)
_LOSSES = (
    "CyHalfSquaredError CyAbsoluteError CyPinballLoss CyHuberLoss CyHalfPoissonLoss "
    "CyHalfGammaLoss CyHalfTweedieLoss CyHalfTweedieLossIdentity CyHalfBinomialLoss "
    "CyHalfMultinomialLoss CyExponentialLoss"
)
_SGD_LOSSES = (
    "Hinge SquaredHinge ModifiedHuber EpsilonInsensitive SquaredEpsilonInsensitive "
    "Log SquaredLoss Huber"
)

CODECS: dict[str, Codec] = {
    "sklearn.tree._tree.Tree": Codec(_tree_plain, _tree_from, cost=_copy_cost),
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor": Codec(
        lambda predictor: dict(vars(predictor)), _predictor_from, cost=_copy_cost
    ),
    "sklearn.utils._bunch.Bunch": Codec(dict, lambda cls, plain: cls(**plain)),
    "scipy.interpolate._interpolate.interp1d": Codec(
        _interpolator_plain, _interpolator_from, cost=_copy_cost
    ),
    "scipy.interpolate._bsplines.BSpline": Codec(_spline_plain, _spline_from, cost=_copy_cost),
    **{f"sklearn._loss._loss.{name}": _LOSS for name in _LOSSES.split()},
    **{f"sklearn.linear_model._sgd_fast.{name}": _LOSS for name in _SGD_LOSSES.split()},
    **{
        f"sklearn.neighbors.{name}{bits}": _SEARCH_TREE
        for name in ("_kd_tree.KDTree", "_ball_tree.BallTree")
        for bits in ("", "64", "32")
    },
}


def _require_of(value: Any, condition: Any, part: str) -> None:
    require_valid(condition, f"{type(value).__name__}: {part}")


def _is_tree(value: Any) -> bool:
    return tag_of(type(value)) == "sklearn.tree._tree.Tree"


def _check_tree(value: Any, state: dict[str, Any]) -> None:
    tree = state["tree_"]
    _require_of(value, _is_tree(tree), "tree_")
    _require_of(value, state.get("n_features_in_") == tree.n_features, "n_features_in_")


def _features_of(estimator: Any, owner: Any) -> int:
    """Return the number of features of a decision tree; raise an error for other estimators."""
    tree: Any = getattr(estimator, "tree_", None)
    _require_of(owner, _is_tree(tree), "estimators_")
    count: int = tree.n_features
    return count


def _check_forest(value: Any, state: dict[str, Any]) -> None:
    for tree in state["estimators_"]:
        _require_of(value, _features_of(tree, value) == state.get("n_features_in_"), "features")


def _check_isolation_forest(value: Any, state: dict[str, Any]) -> None:
    trees, features = state["estimators_"], state["estimators_features_"]
    _require_of(value, len(trees) == len(features), "features")
    for tree, chosen in zip(trees, features, strict=True):
        count = _features_of(tree, value)
        _require_of(value, count == len(chosen) == state.get("_max_features"), "features")


def _check_boosting(value: Any, state: dict[str, Any]) -> None:
    trees = state["estimators_"]
    _require_of(value, isinstance(trees, np.ndarray) and trees.ndim == 2, "estimators_")
    for tree in trees.ravel():
        _require_of(value, _features_of(tree, value) == state.get("n_features_in_"), "features")
        _require_of(value, tree.tree_.value.shape[1:] == (1, 1), "values")
    columns = trees.shape[1]
    _require_of(value, columns == state.get("n_trees_per_iteration_"), "n_trees_per_iteration_")
    _require_of(value, columns == _raw_columns(state), "init_")


def _raw_columns(state: dict[str, Any]) -> Any:
    """Return the number of columns of the initial prediction of a boosting model."""
    if not getattr(state.get("_loss"), "is_multiclass", False):
        return 1
    init = state.get("init_")
    if isinstance(init, str):
        return state.get("n_trees_per_iteration_")
    prior = getattr(init, "class_prior_", None)
    return len(getattr(init, "classes_", ())) if prior is None else len(prior)


def _check_histogram_boosting(value: Any, state: dict[str, Any]) -> None:
    n_features = state.get("_n_features")
    categorical = state["_bin_mapper"].is_categorical_
    _require_of(value, isinstance(categorical, np.ndarray), "is_categorical_")
    is_complete = type(n_features) is int and categorical.shape == (n_features,)
    _require_of(value, is_complete, "_n_features")
    for predictor in (tree for trees in state["_predictors"] for tree in trees):
        _require_of(value, type(predictor).__name__ == "TreePredictor", "_predictors")
        nodes = predictor.nodes
        inner = nodes[nodes["is_leaf"] == 0]
        _require_of(value, np.all(inner["feature_idx"] < n_features), "feature_idx")
        split = inner["feature_idx"][inner["is_categorical"] != 0]
        _require_of(value, np.all(categorical[split] != 0), "categories")


def _check_support_vectors(value: Any, state: dict[str, Any]) -> None:
    counts, coefficients = state["_n_support"], state["_dual_coef_"]
    n_vectors, n_classes = len(state["support_"]), len(counts)
    _require_of(value, np.all(counts >= 0) and n_classes >= 2, "_n_support")
    _require_of(value, coefficients.shape[0] in {1, n_classes - 1}, "_dual_coef_")
    _require_of(value, coefficients.shape[1] == n_vectors, "_dual_coef_")
    if value._impl in {"c_svc", "nu_svc"}:
        _require_of(value, coefficients.shape[0] == n_classes - 1, "_dual_coef_")
        _require_of(value, int(counts.sum()) == n_vectors, "_n_support")
    pairs = n_classes * (n_classes - 1) // 2
    _require_of(value, state["_intercept_"].shape == (pairs,), "_intercept_")
    sizes = {len(state["_probA"]), len(state["_probB"])}
    allowed = {pairs} if state.get("_effective_probability", value.probability) else {0}
    _require_of(value, sizes <= allowed | {pairs}, "_probA")
    _check_vectors(value, n_vectors)


def _check_vectors(value: Any, n_vectors: int) -> None:
    vectors, support = value.support_vectors_, value.support_
    if value.kernel == "precomputed" or callable(value.kernel):
        is_inside = np.all((support >= 0) & (support < value.shape_fit_[0]))
        _require_of(value, is_inside and value.shape_fit_[0] == value.n_features_in_, "support_")
    else:
        shape = (n_vectors, value.n_features_in_)
        _require_of(value, vectors.shape == shape, "support_vectors_")
    if value._sparse:
        n_stored = value._dual_coef_.shape[0] * n_vectors
        _require_of(value, value._dual_coef_.nnz == n_stored, "nnz")


def _check_centres(value: Any, state: dict[str, Any]) -> None:
    threads = state.get("_n_threads", 1)
    _require_of(value, type(threads) is int and 0 < threads <= 1024, "_n_threads")
    if "cluster_centers_" not in state:
        return
    centres, counts = state["cluster_centers_"], state.get("_counts")
    _require_of(value, centres.ndim == 2, "cluster_centers_")
    _require_of(value, centres.shape[1] == state.get("n_features_in_"), "cluster_centers_")
    _require_of(value, counts is None or counts.shape == (len(centres),), "_counts")
    stack = [state["_bisecting_tree"]] if "_bisecting_tree" in state else []
    while stack:
        node = stack.pop()
        _require_of(value, node.center.shape == centres.shape[1:], "_bisecting_tree")
        stack += [child for child in (node.left, node.right) if child is not None]


def _check_neighbours(value: Any, state: dict[str, Any]) -> None:
    """Check the labels of a neighbours model, which compiled code uses as class indices."""
    n_rows = state["_fit_X"].shape[0]
    _require_of(value, state.get("n_samples_fit_") == n_rows, "n_samples_fit_")
    labels = state.get("_y")
    if labels is None:
        return
    _require_of(value, len(labels) == n_rows, "_y")
    if "classes_" in state and not state.get("outputs_2d_"):
        _require_of(value, labels.ndim == 1 and labels.dtype.kind == "i", "_y")
        n_classes = len(value.classes_)
        is_inside = n_rows == 0 or 0 <= labels.min() <= labels.max() < n_classes
        _require_of(value, is_inside, "_y")


def _check_hasher(value: Any, state: dict[str, Any]) -> None:
    count = state.get("n_features")
    _require_of(value, isinstance(count, int | np.integer) and 0 < count < 2**31, "n_features")


Check = Callable[[Any, dict[str, Any]], None]
_HISTOGRAM = "sklearn.ensemble._hist_gradient_boosting.gradient_boosting.BaseHistGradientBoosting"
# Class -> the check, and the attribute whose presence makes the check necessary, if any.
CHECKS: dict[str, tuple[str, Check]] = {
    "sklearn.tree._classes.BaseDecisionTree": ("tree_", _check_tree),
    "sklearn.ensemble._forest.BaseForest": ("estimators_", _check_forest),
    "sklearn.ensemble._iforest.IsolationForest": ("estimators_", _check_isolation_forest),
    "sklearn.ensemble._gb.BaseGradientBoosting": ("estimators_", _check_boosting),
    _HISTOGRAM: ("_predictors", _check_histogram_boosting),
    "sklearn.cluster._kmeans._BaseKMeans": ("", _check_centres),
    "sklearn.feature_extraction._hash.FeatureHasher": ("", _check_hasher),
    "sklearn.feature_extraction.text.HashingVectorizer": ("", _check_hasher),
    "sklearn.neighbors._base.NeighborsBase": ("_fit_X", _check_neighbours),
    "sklearn.svm._base.BaseLibSVM": ("support_", _check_support_vectors),
}
