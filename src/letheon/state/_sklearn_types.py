"""Codecs of scikit-learn's and scipy's helper types that live in compiled code.

A decoder checks everything that compiled code would trust blindly: indices of children and
features, dtypes and shapes. Search trees are not stored at all: they are rebuilt from their points.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import CorruptFileError, UnsupportedStateError
from letheon.state._budget import array_bytes
from letheon.state._plans import Codec


def _copy_cost(_: type, plain: Any) -> int:
    """Return what decoders take that copy their arrays, and once more on the way."""
    return 1024 + 2 * array_bytes(plain)


def _require(condition: Any, what: str) -> None:
    if not condition:
        raise CorruptFileError(f"not a valid {what}")


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
    _require(type(n_features) is int and 0 <= n_features < 2**31, "tree: features")
    _require(type(n_outputs) is int and 0 < n_outputs < 2**31, "tree: outputs")
    _require(n_classes.dtype == np.intp and n_classes.shape == (n_outputs,), "tree: classes")
    _require(np.all((n_classes > 0) & (n_classes < 2**31)), "tree: classes")
    shape = (len(nodes), n_outputs, int(n_classes.max()))
    _require(values.dtype == np.float64 and values.shape == shape, "tree: values")
    check_tree_nodes(nodes, n_features)
    tree = cls(n_features, n_classes, n_outputs)
    _require(nodes.dtype == tree.__getstate__()["nodes"].dtype, "tree: nodes")
    state = {"max_depth": plain["max_depth"], "node_count": len(nodes)}
    tree.__setstate__({**state, "nodes": nodes, "values": values})
    return tree


def check_tree_nodes(nodes: NDArray[Any], n_features: int) -> None:
    """Check that walking down a tree ends at a leaf and looks only at features that exist."""
    _require(nodes.ndim == 1 and len(nodes) > 0, "tree: nodes")
    left, right, feature = nodes["left_child"], nodes["right_child"], nodes["feature"]
    leaf = left == -1
    _require(np.array_equal(leaf, right == -1), "tree: children")
    check_children(left[~leaf], right[~leaf], np.flatnonzero(~leaf), len(nodes))
    _require(np.all((feature[~leaf] >= 0) & (feature[~leaf] < n_features)), "tree: features")


def check_children(left: Any, right: Any, parents: Any, n_nodes: int) -> None:
    """Check that children come after their parents (so there is no cycle) and exist."""
    for child in (left.astype(np.int64), right.astype(np.int64)):
        _require(np.all((child > parents) & (child < n_nodes)), "tree: children")


def _predictor_plain(predictor: Any) -> dict[str, Any]:
    return dict(vars(predictor))


def _predictor_from(cls: Any, plain: Any) -> Any:
    # The layout of a node is checked by the compiled code, at every call.
    nodes = plain["nodes"]
    _require(nodes.ndim == 1 and len(nodes) > 0, "predictor: nodes")
    inner = nodes["is_leaf"] == 0
    check_children(nodes["left"][inner], nodes["right"][inner], np.flatnonzero(inner), len(nodes))
    _require(np.all(nodes["feature_idx"][inner] >= 0), "predictor: features")
    categorical = nodes["bitset_idx"][inner & (nodes["is_categorical"] != 0)]
    for key in ("binned_left_cat_bitsets", "raw_left_cat_bitsets"):
        bits = plain[key]
        _require(bits.dtype == np.uint32 and bits.ndim == 2 and bits.shape[1] == 8, "bitsets")
        _require(np.all(categorical < len(bits)), "bitsets")
    return cls(nodes, plain["binned_left_cat_bitsets"], plain["raw_left_cat_bitsets"])


def _numbers_of(value: Any) -> list[float]:
    """Return the constructor's numbers of a compiled loss."""
    reduced = value.__reduce__()
    numbers = list(reduced[1]) if reduced[0] is type(value) else []
    if not all(type(number) in {int, float} for number in numbers):
        raise UnsupportedStateError(f"{type(value).__name__} holds more than numbers")
    return [float(number) for number in numbers]


def _from_numbers(cls: Any, numbers: Any) -> Any:
    _require(type(numbers) is list and len(numbers) < 3, "loss")
    _require(all(type(number) is float for number in numbers), "loss")
    return cls(*numbers)


_METRIC_ARRAYS = {"SEuclidean": "V", "Mahalanobis": "VI"}


def _search_tree_plain(tree: Any) -> dict[str, Any]:
    state = tree.__getstate__()
    metric = state[11]
    name = type(metric).__name__.removesuffix("64").removesuffix("32").removesuffix("Distance")
    p, vector, matrix = metric.__getstate__()[:3]
    if name == "PyFunc":
        raise UnsupportedStateError("a search tree with a Python function as its metric")
    return {
        "data": np.asarray(state[0]),
        "leaf_size": int(state[4]),
        "metric": name,
        "p": float(p),
        "vector": np.asarray(vector),
        "matrix": np.asarray(matrix),
        "sample_weight": None if state[12] is None else np.asarray(state[12]),
    }


_METRICS = {
    "Euclidean": ("euclidean", ()),
    "Manhattan": ("manhattan", ()),
    "Chebyshev": ("chebyshev", ()),
    "Minkowski": ("minkowski", ("p", "w")),
    "SEuclidean": ("seuclidean", ("V",)),
    "Mahalanobis": ("mahalanobis", ("VI",)),
    "Hamming": ("hamming", ()),
    "Canberra": ("canberra", ()),
    "BrayCurtis": ("braycurtis", ()),
    "Jaccard": ("jaccard", ()),
    "Dice": ("dice", ()),
    "RogersTanimoto": ("rogerstanimoto", ()),
    "RussellRao": ("russellrao", ()),
    "SokalSneath": ("sokalsneath", ()),
    "Haversine": ("haversine", ()),
}


def _search_tree_from(cls: Any, plain: Any) -> Any:
    """Build the tree again: it is a function of its points, metric and leaf size."""
    _require(plain["metric"] in _METRICS, "search tree: metric")
    name, wanted = _METRICS[plain["metric"]]
    size = plain["leaf_size"]
    _require(type(size) is int and 0 < size < 2**31, "search tree: leaf size")
    _require(plain["data"].ndim == 2, "search tree: points")
    given = {"p": plain["p"], "V": plain["vector"], "VI": plain["matrix"]}
    if plain["vector"].shape == plain["data"].shape[1:]:
        given["w"] = plain["vector"]
    options = {key: given[key] for key in wanted if key in given}
    weight = plain["sample_weight"]
    if weight is not None:
        _require(weight.shape == plain["data"].shape[:1], "search tree: weights")
        options["sample_weight"] = weight
    return cls(plain["data"], leaf_size=size, metric=name, **options)


def _search_tree_cost(_: type, plain: Any) -> int:
    """Return what the tree takes: points, their order, and the bounds of every node."""
    points, size = plain["data"], plain["leaf_size"]
    _require(type(size) is int and 0 < size < 2**31, "search tree: leaf size")
    _require(points.ndim == 2, "search tree: points")
    n_points: int = points.shape[0]
    n_columns: int = points.shape[1]
    n_nodes: int = 2 ** (max(1, (n_points - 1) // size).bit_length() + 1)
    per_node: int = 64 + 2 * 8 * n_columns
    return 4096 + 2 * array_bytes(plain) + n_points * (16 + 8 * n_columns) + n_nodes * per_node


def _interpolator_plain(value: Any) -> dict[str, Any]:
    if value._kind != "linear":
        raise UnsupportedStateError(f"an interpolation of kind {value._kind}")
    return {
        "x": value.x,
        "y": value.y,
        "axis": int(value.axis),
        "bounds_error": value.bounds_error,
        "fill_value": value._fill_value_orig,
    }


def _require_numbers(*arrays: Any) -> None:
    """Check that these are arrays already: one made of a list of texts may be of any size."""
    for array in arrays:
        _require(isinstance(array, np.ndarray) and array.dtype.kind in "biufc", "array of numbers")


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
    return {
        "t": value.t,
        "c": value.c,
        "k": int(value.k),
        "extrapolate": value.extrapolate,
        "axis": int(value.axis),
    }


def _spline_from(cls: Any, plain: Any) -> Any:
    _require_numbers(plain["t"], plain["c"])
    _require(0 <= plain["k"] < 64, "spline")
    options = {"extrapolate": plain["extrapolate"], "axis": plain["axis"]}
    return cls(plain["t"], plain["c"], plain["k"], **options)


def _bunch_plain(value: Any) -> dict[str, Any]:
    return dict(value)


def _bunch_from(cls: Any, plain: Any) -> Any:
    return cls(**plain)


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
        _predictor_plain, _predictor_from, cost=_copy_cost
    ),
    "sklearn.utils._bunch.Bunch": Codec(_bunch_plain, _bunch_from),
    "scipy.interpolate._interpolate.interp1d": Codec(
        _interpolator_plain, _interpolator_from, cost=_copy_cost
    ),
    "scipy.interpolate._bsplines.BSpline": Codec(_spline_plain, _spline_from, cost=_copy_cost),
    **{f"sklearn._loss._loss.{name}": _LOSS for name in _LOSSES.split()},
    **{f"sklearn.linear_model._sgd_fast.{name}": _LOSS for name in _SGD_LOSSES.split()},
    **{
        f"sklearn.neighbors._{module}.{name}": _SEARCH_TREE
        for module, name in (
            ("kd_tree", "KDTree"),
            ("kd_tree", "KDTree64"),
            ("kd_tree", "KDTree32"),
            ("ball_tree", "BallTree"),
            ("ball_tree", "BallTree64"),
            ("ball_tree", "BallTree32"),
        )
    },
}
