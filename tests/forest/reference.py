"""The forest's rule in plain Python: slow, obvious, and written from the rule alone.

Nothing here is shared with the product but `keyed_hash`, which has golden vectors of its own. A
node is decided by looking at all of its rows; there are no caches, no updates, no tricks.
"""

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from letheon.seeds import keyed_hash

CHILD, ORDER, THRESHOLD, UNIFORM, MISSING = range(5)
M32, M64 = 2**32 - 1, 2**64 - 1


class ReferenceSettings(NamedTuple):
    """The parameters of an estimator that matter, resolved."""

    criterion: str
    n_trees: int
    max_depth: float
    max_features: int
    n_thresholds: int | None
    random_depth: int
    min_samples_split: int
    min_samples_leaf: int
    subsample: float = 1.0
    y_max: float | None = None
    categories: tuple[int, ...] = ()


class NodeRows(NamedTuple):
    """Rows of a node: float32 values, a class code or a fixed-point target, a weight."""

    X: NDArray[np.float32]
    target: NDArray[np.int64]
    weight: NDArray[np.int64]

    def take(self, mask: NDArray[np.bool_]) -> "NodeRows":
        return NodeRows(self.X[mask], self.target[mask], self.weight[mask])

    @property
    def n(self) -> int:
        return int(self.weight.sum())


@dataclass(frozen=True)
class ReferenceSplit:
    kind: str
    attribute: int
    threshold: float
    missing_left: bool | None  # None: no missing values were seen
    is_category: bool = False

    def goes_left(self, X: NDArray[np.float32]) -> NDArray[np.bool_]:
        x, c = X[:, self.attribute], np.float32(self.threshold)
        passes = x == c if self.is_category else x <= c
        return np.where(np.isnan(x), bool(self.missing_left), passes)


@dataclass(frozen=True)
class Node:
    """One node; `counts` holds the weight per class, or the one fixed-point sum."""

    n: int
    counts: tuple[int, ...]
    split: ReferenceSplit | None = None
    left: "Node | None" = None
    right: "Node | None" = None

    @property
    def missing_left(self) -> bool:
        """Where a missing value goes: as the split says, else to the larger child."""
        assert self.split is not None
        assert self.left is not None
        assert self.right is not None
        if self.split.missing_left is None:
            return self.left.n >= self.right.n
        return self.split.missing_left

    def preorder(self) -> Iterator["Node"]:
        yield self
        for child in (self.left, self.right):
            if child is not None:
                yield from child.preorder()

    def leaf_of(self, x: NDArray[np.float32]) -> "Node":
        node = self
        while node.split is not None:
            value = x[node.split.attribute]
            c = node.split.threshold
            passes = value == c if node.split.is_category else value <= c
            left = node.missing_left if np.isnan(value) else passes
            child = node.left if left else node.right
            assert child is not None
            node = child
        return node


def mix64(key: int, bits: int) -> int:
    return _finalise(key ^ _finalise((bits + 0x9E3779B97F4A7C15) & M64))


def _finalise(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & M64
    return z ^ (z >> 31)


def mix32(key: int, bits: int) -> int:
    x = bits ^ (key & M32)
    x = (x ^ (x >> 16)) * 0x7FEB352D & M32
    x = (x ^ (x >> 15)) * 0x846CA68B & M32
    x = x ^ (x >> 16) ^ (key >> 32)
    x = (x ^ (x >> 15)) * 0x9E3779B1 & M32
    return x ^ (x >> 16)


def draw(key: int, use: int, a: int) -> int:
    return mix64(key, use * 2**32 + a)


def bits_of(value: float) -> int:
    """Return the 32 bits of a float32."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


@cache
def lg24(x: int) -> int:
    """Return log2 of x > 0 with 24 binary places, digit by digit, cut off."""
    e = x.bit_length() - 1
    z, frac = x << (31 - e), 0
    for _ in range(24):
        z = z * z >> 31
        bit = z >= 2**32
        z >>= bit
        frac = frac * 2 + bit
    return e * 2**24 + frac


def gini(left: Sequence[int], right: Sequence[int], n_left: int, n_right: int) -> float:
    return float(sum(c * c for c in left)) / n_left + float(sum(c * c for c in right)) / n_right


def entropy(left: Sequence[int], right: Sequence[int], n_left: int, n_right: int) -> int:
    def f(x: int) -> int:
        return x * lg24(x) if x else 0

    return sum(map(f, left)) - f(n_left) + sum(map(f, right)) - f(n_right)


def squared_error(left: Sequence[int], right: Sequence[int], n_left: int, n_right: int) -> float:
    s_left, s_right = float(left[0]), float(right[0])
    return (s_left * s_left) / n_left + (s_right * s_right) / n_right


SCORES: dict[str, Callable[..., float]] = {
    "gini": gini,
    "entropy": entropy,
    "squared_error": squared_error,
}


def counts_of(rows: NodeRows, settings: ReferenceSettings, n_classes: int) -> tuple[int, ...]:
    """Return the weight of every class, or the one sum of weighted targets."""
    if settings.criterion == "squared_error":
        return (int((rows.target * rows.weight).sum()),)
    return tuple(int(rows.weight[rows.target == c].sum()) for c in range(n_classes))


def is_constant(x: NDArray[np.float32]) -> bool:
    missing = np.isnan(x)
    return bool(missing.all()) or (not missing.any() and bool((x == x[0]).all()))


def varying_attributes(rows: NodeRows, key: int) -> list[int]:
    """Return the attributes that vary, in the node's order."""
    order = sorted(range(rows.X.shape[1]), key=lambda a: (draw(key, ORDER, a), a))
    return [a for a in order if not is_constant(rows.X[:, a])]


def random_split(rows: NodeRows, key: int, settings: ReferenceSettings) -> ReferenceSplit | None:
    a = varying_attributes(rows, key)[0]
    x = rows.X[:, a]
    least, greatest = float(np.nanmin(x)), float(np.nanmax(x))
    u = (draw(key, UNIFORM, a) >> 11) * 2.0**-53
    threshold = np.float32(least + u * (greatest - least))
    if least == greatest:
        threshold = np.float32(least)
    elif threshold >= greatest:
        threshold = np.nextafter(np.float32(greatest), np.float32(-np.inf))
    is_category = a in settings.categories
    if is_category:
        threshold = np.float32(candidates(x, key, a, 1, is_category=True)[0])
    missing_left = None
    if np.isnan(x).any():
        missing_left = draw(key, MISSING, a) % 2 == 1 and least < greatest
    split = ReferenceSplit("random", a, float(threshold) + 0.0, missing_left, is_category)
    left = split.goes_left(rows.X)
    lighter = min(rows.take(left).n, rows.take(~left).n)
    return None if lighter < settings.min_samples_leaf else split


def candidates(
    x: NDArray[np.float32], key: int, a: int, k: int | None, *, is_category: bool
) -> list[float]:
    """Return the values that may split here, lowest priority first, `k` of them at most."""
    present = [float(v) for v in np.unique(x[~np.isnan(x)])]
    valid = present if is_category or np.isnan(x).any() else present[:-1]
    threshold_key = draw(key, THRESHOLD, a)
    return sorted(valid, key=lambda v: mix32(threshold_key, bits_of(v)))[:k]


def greedy_splits(
    rows: NodeRows, key: int, settings: ReferenceSettings
) -> Iterator[ReferenceSplit]:
    """Yield every split that a greedy node looks at; the first of the best ones wins."""
    for a in varying_attributes(rows, key)[: settings.max_features]:
        x = rows.X[:, a]
        sides = (False, True) if np.isnan(x).any() else (None,)
        is_category = a in settings.categories
        for value in candidates(x, key, a, settings.n_thresholds, is_category=is_category):
            for side in sides:
                yield ReferenceSplit("greedy", a, value, side, is_category)


def greedy_split(
    rows: NodeRows, key: int, settings: ReferenceSettings, n_classes: int
) -> ReferenceSplit | None:
    best, best_score = None, -math.inf
    for split in greedy_splits(rows, key, settings):
        mask = split.goes_left(rows.X)
        left, right = rows.take(mask), rows.take(~mask)
        if min(left.n, right.n) < max(1, settings.min_samples_leaf):
            continue
        counts = (counts_of(side, settings, n_classes) for side in (left, right))
        score = SCORES[settings.criterion](*counts, left.n, right.n)
        if score > best_score:
            best, best_score = split, score
    return best


def decide(
    rows: NodeRows, key: int, depth: int, settings: ReferenceSettings, n_classes: int
) -> ReferenceSplit | None:
    """Return how a node with these rows splits, or None if it is a leaf."""
    if depth >= settings.max_depth or rows.n < settings.min_samples_split:
        return None
    if len(np.unique(rows.target)) < 2 or not varying_attributes(rows, key):
        return None
    if depth < settings.random_depth:
        return random_split(rows, key, settings)
    return greedy_split(rows, key, settings, n_classes)


def grow(rows: NodeRows, key: int, depth: int, settings: ReferenceSettings, n_classes: int) -> Node:
    split = decide(rows, key, depth, settings, n_classes)
    n, counts = rows.n, counts_of(rows, settings, n_classes)
    if split is None:
        return Node(n, counts)
    mask = split.goes_left(rows.X)
    left, right = (
        grow(rows.take(side), draw(key, CHILD, turn), depth + 1, settings, n_classes)
        for turn, side in enumerate((mask, ~mask))
    )
    return Node(n, counts, split, left, right)


def scale_of(y: NDArray[np.float64], y_max: float | None) -> int:
    """Return the binary exponent that fixes the scale of regression targets."""
    return math.frexp(float(np.max(np.abs(y))) if y_max is None else y_max)[1]


def fixed_point(y: NDArray[np.float64], scale: int) -> NDArray[np.int64]:
    return np.array([round(math.ldexp(float(v), 31 - scale)) for v in y], dtype=np.int64)


def in_tree(seed: int, tree: int, row_id: int | str, share: float) -> bool:
    if share >= 1:
        return True
    owner = keyed_hash(seed, "row-owner", row_id)
    return mix64(keyed_hash(seed, "tree-rows", tree), owner) < int(share * 2.0**64)


@dataclass(frozen=True)
class Forest:
    trees: tuple[Node, ...]
    classes: NDArray[Any] | None  # None: regression
    scale: int
    encode: Callable[[NDArray[Any]], NDArray[np.float32]]

    def value(self, leaf: Node) -> NDArray[np.float64]:
        if self.classes is None:
            return np.array([math.ldexp(leaf.counts[0] / leaf.n, self.scale - 31)])
        return np.array([count / leaf.n for count in leaf.counts])

    def predict_raw(self, X: NDArray[Any]) -> NDArray[np.float64]:
        """Return probabilities (n, C), or values (n, 1)."""
        grown = [tree for tree in self.trees if tree.n]
        width = 1 if self.classes is None else len(self.classes)
        if not grown:
            return np.full((len(X), width), 0.0 if self.classes is None else 1 / width)
        total = np.zeros((len(X), width))
        for tree in grown:
            total += [self.value(tree.leaf_of(x)) for x in self.encode(X)]
        return total / len(grown)


def as_float32(X: NDArray[Any]) -> NDArray[np.float32]:
    """Round to float32; there is one zero."""
    return np.asarray(X).astype(np.float32) + np.float32(0)


def encode_rows(X: NDArray[Any], categories: tuple[int, ...], seed: int) -> NDArray[np.float32]:
    """Round to float32, with the hash of its column and text instead of a category."""
    rows = as_float32(X)
    for j in categories:
        for i, value in enumerate(np.asarray(X)[:, j].tolist()):
            if value == value:
                text = str(int(value)) if value == int(value) else repr(value)
                bits = keyed_hash(seed, "category", str(j), text) % 0x7F000000 + 0x00800000
                rows[i, j] = struct.unpack("<f", struct.pack("<I", bits))[0]
    return rows


def grow_forest(
    X: NDArray[Any],
    y: NDArray[Any],
    weight: NDArray[np.int64],
    ids: Sequence[int | str],
    settings: ReferenceSettings,
    seed: int,
) -> Forest:
    """Return the forest of these rows: a pure function of its arguments, in any order of rows."""
    is_present = weight > 0
    kept_ids = [row_id for row_id, keep in zip(ids, is_present, strict=True) if keep]
    y, weight = y[is_present], weight[is_present]
    if settings.criterion == "squared_error":
        scale, classes = scale_of(y, settings.y_max), None
        target = fixed_point(y, scale)
    else:
        scale = 0
        classes, target = np.unique(y, return_inverse=True)

    def encode(given: NDArray[Any]) -> NDArray[np.float32]:
        return encode_rows(given, settings.categories, seed)

    rows = NodeRows(encode(X)[is_present], target.astype(np.int64), weight.astype(np.int64))
    n_classes = 0 if classes is None else len(classes)

    def tree(t: int) -> Node:
        mine = np.array([in_tree(seed, t, row_id, settings.subsample) for row_id in kept_ids])
        return grow(rows.take(mine), keyed_hash(seed, "tree", t), 0, settings, n_classes)

    return Forest(tuple(tree(t) for t in range(settings.n_trees)), classes, scale, encode)
