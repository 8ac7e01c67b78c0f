"""Judges of a forest: is every tree the reference's, is the model a fresh fit?"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.forest.people import DataSource, ForestPeople, fitted, raw_predictions
from tests.forest.reference import Forest, Node, ReferenceSettings, bits_of, grow_forest

KINDS = ("leaf", "greedy", "random")


def resolve(world: DataSource, params: dict[str, Any]) -> ReferenceSettings:
    """Return the reference's settings of an estimator's parameters."""
    depth = params["max_depth"]
    return ReferenceSettings(
        criterion=params.get("criterion", "squared_error"),
        n_trees=params["n_estimators"],
        max_depth=math.inf if depth is None else depth,
        max_features=_resolve_features(params["max_features"], len(world.columns)),
        n_thresholds=params["n_thresholds"],
        random_depth=params["random_depth"],
        min_samples_split=params["min_samples_split"],
        min_samples_leaf=params["min_samples_leaf"],
        subsample=params["subsample"],
        y_max=params.get("y_max"),
        categories=tuple(params.get("categorical_features", ())),
    )


def _resolve_features(setting: Any, p: int) -> int:
    if setting is None:
        return p
    if setting in ("sqrt", "log2"):
        return max(1, int(math.sqrt(p) if setting == "sqrt" else math.log2(p)))
    return setting if isinstance(setting, int) else max(1, int(setting * p))


def expected(world: DataSource, params: dict[str, Any], people: ForestPeople, seed: int) -> Forest:
    """Return the reference's forest of these rows."""
    return grow_forest(*people[:3], people.ids.tolist(), resolve(world, params), seed)


def reference_rows(forest: Forest, t: int) -> list[tuple[Any, ...]]:
    """Return a tree of the reference, one tuple per node in preorder."""
    return [_row(forest, node) for node in forest.trees[t].preorder()]


def _row(forest: Forest, node: Node) -> tuple[Any, ...]:
    if forest.classes is not None:
        content: Any = node.counts
    else:
        content = float(forest.value(node)[0]) if node.n else 0.0
    if node.split is None:
        return ("leaf", node.n, content)
    decision = (node.split.attribute, bits_of(node.split.threshold), node.missing_left)
    return (node.split.kind, node.n, content, *decision)


def product_rows(model: Any, t: int) -> list[tuple[Any, ...]]:
    """Return a tree of the product in the same form."""
    tree = model.tree_(t)
    return [_product_row(tree, node) for node in _walk(tree, 0)]


def _walk(tree: Any, node: int) -> Iterator[int]:
    """Yield nodes in preorder by following the children."""
    yield node
    if tree.kind[node]:
        yield from _walk(tree, int(tree.left[node]))
        yield from _walk(tree, int(tree.right[node]))


def _product_row(tree: Any, node: int) -> tuple[Any, ...]:
    value = tree.value[node]
    content = float(value) if tree.classes is None else tuple(int(count) for count in value)
    kind = KINDS[tree.kind[node]]
    if kind == "leaf":
        return (kind, int(tree.n[node]), content)
    bits = bits_of(float(tree.threshold[node]))
    decision = (int(tree.feature[node]), bits, bool(tree.missing_left[node]))
    return (kind, int(tree.n[node]), content, *decision)


def root_split(model: Any, t: int) -> tuple[int, float]:
    """Return attribute and threshold of the root of a tree."""
    tree = model.tree_(t)
    assert tree.kind[0]
    return int(tree.feature[0]), float(tree.threshold[0])


def reference_leaves(forest: Forest, X: Any) -> NDArray[np.int64]:
    """Return the node in preorder that each row ends in, tree by tree."""
    rows = forest.encode(X)
    columns = []
    for tree in forest.trees:
        place = {id(node): number for number, node in enumerate(tree.preorder())}
        columns.append([place[id(tree.leaf_of(x))] for x in rows])
    return np.array(columns).T


def difference(model: Any, forest: Forest) -> str | None:
    """Return where the product first departs from the reference, or None."""
    for t in range(len(forest.trees)):
        wanted, actual = reference_rows(forest, t), product_rows(model, t)
        for place, (want, got) in enumerate(zip(wanted, actual, strict=False)):
            if want != got:
                return f"tree {t}, node {place}: the rule gives {want}, the product {got}"
        if len(wanted) != len(actual):
            return f"tree {t}: the rule gives {len(wanted)} nodes, the product {len(actual)}"
    return None


def identity_error(model: Any, fresh: Any, X: Any) -> str | None:
    """Return what tells a model from a fresh fit on the rows that it holds, or None.

    Predictions are compared first, on the model as it is; a digest would settle it.
    """
    if not np.array_equal(raw_predictions(model, X), raw_predictions(fresh, X)):
        return "predictions differ"
    if not np.array_equal(model.ids_, fresh.ids_):
        return "ids differ"
    if not np.array_equal(getattr(model, "classes_", 0), getattr(fresh, "classes_", 0)):
        return "classes differ"
    for t in range(model.n_estimators):
        if product_rows(model, t) != product_rows(fresh, t):
            return f"tree {t} differs"
    return None if model.digest() == fresh.digest() else "digests differ"


def fresh_fit(
    world: DataSource, params: dict[str, Any], remaining: ForestPeople, model: Any
) -> Any:
    """Return a fit on these rows, in another order, with the model's seed."""
    return fitted(world, params, remaining.shuffled(remaining.n_rows), model.seed_)
