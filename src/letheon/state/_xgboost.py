"""Codec of XGBoost boosters: the arrays of all trees, and the few settings that predictions need.

XGBoost follows the indices in a model file without checks. Therefore a file of letheon contains no
model file of XGBoost. It contains arrays; the decoder checks every index and count in them, and
writes the model file (Universal Binary JSON) for XGBoost itself. The encoder writes this file, too,
and compares it with the file of XGBoost byte by byte, so nothing is lost.
"""

import re
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import UnsupportedStateError
from letheon.state._nodes import array_bytes, require_array, require_valid
from letheon.state._settings_table import XGBOOST_OBJECTIVES

# Arrays with one value per node, their dtypes, and their names in a file of XGBoost.
_NODES = {
    "base_weights": "f4",
    "default_left": "u1",
    "left_children": "i4",
    "loss_changes": "f4",
    "right_children": "i4",
    "split_conditions": "f4",
    "split_indices": "i4",
    "sum_hessian": "f4",
}
_FEATURE_TYPES = "c float i int q"
_NO_PARENT = 2**31 - 1
_MOST_CATEGORIES = 1 << 24
_MOST_FEATURES = 1 << 24
_MOST_GROUPS = 1 << 16
# The types of arrays in Universal Binary JSON, and XGBoost's numbers for types of categories.
_MARKS = {"i1": b"i", "u1": b"U", "i2": b"I", "i4": b"l", "i8": b"L", "f4": b"d", "f8": b"D"}
_DTYPES = {mark: dtype for dtype, mark in _MARKS.items()}
_CATEGORY_TYPES = {7: "f4", 8: "f8", 9: "i1", 10: "u1", 11: "i2", 13: "i4", 15: "i8"}
_INTEGERS = ((b"i", 2**7), (b"I", 2**15), (b"l", 2**31), (b"L", 2**63))
_NUMBERS = re.compile(r"\[?[-+0-9.E,]{1,4000}\]?", re.ASCII)
_WORD = re.compile("[a-z_]{1,40}")

Plain = dict[str, Any]


class _Reader:
    """A reader of the bytes that XGBoost wrote in this process."""

    def __init__(self, data: bytes) -> None:
        self.data, self.place = data, 0

    def take(self, size: int) -> bytes:
        self.place += size
        return self.data[self.place - size : self.place]

    def read_number(self, mark: bytes) -> Any:
        dtype = np.dtype(f">{_DTYPES[mark]}")
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

    def read_text(self) -> str:
        return self.take(self.read_number(self.take(1))).decode()

    def read_value(self) -> Any:
        mark = self.take(1)
        if mark == b"{":
            value = {}
            while self.data[self.place : self.place + 1] != b"}":
                key = self.read_text()
                value[key] = self.read_value()
            self.place += 1
            return value
        if mark == b"[":
            return self.read_array()
        return self.read_text() if mark == b"S" else self.read_number(mark)

    def read_array(self) -> Any:
        kind = self.take(1)
        dtype = np.dtype(f">{_DTYPES[self.take(1)]}") if kind == b"$" else None
        self.place += dtype is not None
        size = self.read_number(self.take(1))
        if dtype is None:
            return [self.read_value() for _ in range(size)]
        return np.frombuffer(self.take(size * dtype.itemsize), dtype).astype(dtype.newbyteorder())


def _write_text(text: str) -> bytes:
    data = text.encode()
    return b"L" + struct.pack(">q", len(data)) + data


def _write_value(value: Any) -> bytes:
    """Return a value in Universal Binary JSON, as XGBoost writes it."""
    if isinstance(value, dict):
        parts = [_write_text(key) + _write_value(value[key]) for key in sorted(value)]
        return b"{" + b"".join(parts) + b"}"
    if isinstance(value, np.ndarray):
        mark, size = _MARKS[value.dtype.str[1:]], struct.pack(">q", len(value))
        return b"[$" + mark + b"#L" + size + value.astype(value.dtype.newbyteorder(">")).tobytes()
    if isinstance(value, list):
        return b"[#L" + struct.pack(">q", len(value)) + b"".join(map(_write_value, value))
    if isinstance(value, str):
        return b"S" + _write_text(value)
    # XGBoost does not use the highest and the lowest number of a type.
    mark = next(mark for mark, limit in _INTEGERS if -limit < value < limit - 1)
    return mark + np.array(value, f">{_DTYPES[mark]}").tobytes()


def encode_booster(booster: Any) -> Plain:
    """Return a booster as plain values.

    Raises
    ------
    UnsupportedStateError
        If the plain values do not contain everything that XGBoost would write to a file.
    """
    raw = bytes(booster.save_raw("ubj"))
    learner = _Reader(raw).read_value()["learner"]
    parts, model = learner["learner_model_param"], learner["gradient_booster"].get("model", {})
    trees = model.get("trees", [])
    plain = {
        "feature_names": learner["feature_names"],
        "feature_types": learner["feature_types"],
        "objective": learner["objective"],
        "enc": model.get("cats", {}).get("enc", []),
        "sorted_idx": model.get("cats", {}).get("sorted_idx", np.empty(0, "i4")),
        "base_score": np.array(re.findall(r"[^][,]+", parts["base_score"]), "f4"),
        **{key: int(parts[key]) for key in parts if key != "base_score"},
        "num_parallel_tree": int(model.get("gbtree_model_param", {}).get("num_parallel_tree", 0)),
        "num_nodes": np.array([len(tree["left_children"]) for tree in trees], "i4"),
        "num_splits": np.array([len(tree["categories_nodes"]) for tree in trees], "i4"),
        **{key: _join_arrays([tree[key] for tree in trees], kind) for key, kind in _NODES.items()},
        "split_nodes": _join_arrays([tree["categories_nodes"] for tree in trees], "i4"),
        "split_sizes": _join_arrays([tree["categories_sizes"] for tree in trees], "i8"),
        "categories": _join_arrays([tree["categories"] for tree in trees], "i4"),
    }
    check_booster(type(booster), plain)
    if _write_model(plain) != raw:
        raise UnsupportedStateError(
            "letheon cannot save all parts of this XGBoost model, so it could have no digest; use "
            "booster='gbtree' without eval_set, callbacks and early stopping"
        )
    return plain


def _join_arrays(arrays: list[Any], dtype: str) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *arrays]).astype(dtype)


def _count_groups(plain: Plain) -> int:
    """Return the number of trees that one prediction sums separately: classes or targets."""
    groups: int = max(1, plain["num_class"], plain["num_target"])
    return groups


def check_booster(_: type, plain: Any) -> int:
    """Check a booster from a file, and return the memory for loading it, in bytes.

    Raises
    ------
    CorruptFileError
        If an index, a count, a length or a number is not valid.
    """
    _check_counts(plain)
    _check_objective(plain)
    n_nodes = plain["num_nodes"]
    for key, kind in _NODES.items():
        _require_array(plain[key], kind, int(n_nodes.sum()), key)
    offsets = np.repeat(np.cumsum(n_nodes) - n_nodes, n_nodes)
    left, right = plain["left_children"].astype("i8"), plain["right_children"].astype("i8")
    is_leaf = left == -1
    _require(np.array_equal(is_leaf, right == -1), "children")
    positions = np.arange(len(left))
    local = positions - offsets
    for child in (left, right):
        # Children come after their parents: there is no cycle.
        is_inside = (child > local) & (child < np.repeat(n_nodes, n_nodes))
        _require(np.all(is_leaf | is_inside), "children")
    children = np.concatenate((left + offsets, right + offsets)).reshape(2, -1)[:, ~is_leaf]
    # Every node except the roots is the child of exactly one node.
    _require(np.array_equal(np.sort(children.ravel()), positions[local > 0]), "children")
    feature = plain["split_indices"]
    _require(np.all((feature >= 0) & (feature < plain["num_feature"])), "split_indices")
    _require(np.all(plain["default_left"] <= 1), "default_left")
    for key in ("base_weights", "loss_changes", "sum_hessian"):
        _require(np.all(np.isfinite(plain[key])), key)
    # A split at infinity separates missing values from all others; a leaf stores its value there.
    values = plain["split_conditions"]
    _require(np.all(np.where(is_leaf, np.isfinite(values), ~np.isnan(values))), "split_conditions")
    counts = _check_category_lists(plain)
    bits = _check_splits(plain, counts, is_leaf)
    width: int = plain["num_feature"]
    return 4096 + 4 * array_bytes(plain) + 256 * len(n_nodes) + bits + 64 * width


def _require(condition: Any, part: str) -> None:
    require_valid(condition, f"XGBoost model: {part}")


def _require_array(value: Any, dtype: str, size: int | None, part: str) -> None:
    require_array(value, dtype, size, f"XGBoost model: {part}")


def _require_number(value: Any, low: int, high: int, part: str) -> None:
    _require(type(value) is int and low <= value <= high, part)


def _check_counts(plain: Any) -> None:
    _require(type(plain) is dict and set(plain) == _KEYS, "parts")
    _require_number(plain["num_feature"], 1, _MOST_FEATURES, "num_feature")
    _require_number(plain["num_class"], 0, _MOST_GROUPS, "num_class")
    _require_number(plain["num_target"], 1, _MOST_GROUPS, "num_target")
    _require_number(plain["num_parallel_tree"], 1, _MOST_GROUPS, "num_parallel_tree")
    _require_number(plain["boost_from_average"], 0, 1, "boost_from_average")
    for key in ("num_nodes", "num_splits"):
        _require_array(plain[key], "i4", None, key)
    n_nodes, n_splits = plain["num_nodes"], plain["num_splits"]
    _require(np.all(n_nodes >= 1), "num_nodes")
    _require(len(n_splits) == len(n_nodes) and np.all(n_splits >= 0), "num_splits")
    groups = _count_groups(plain)
    n_trees, per_iteration = len(n_nodes), groups * plain["num_parallel_tree"]
    _require(n_trees >= per_iteration and n_trees % per_iteration == 0, "number of trees")
    score = plain["base_score"]
    _require_array(score, "f4", None, "base_score")
    _require(len(score) in {1, groups} and np.all(np.isfinite(score)), "base_score")
    for key, allowed in (("feature_names", None), ("feature_types", _FEATURE_TYPES.split())):
        words = plain[key]
        is_list = type(words) is list and len(words) in {0, plain["num_feature"]}
        _require(is_list and all(type(word) is str for word in words), key)
        _require(allowed is None or all(word in allowed for word in words), key)


def _check_objective(plain: Plain) -> None:
    objective = plain["objective"]
    _require(type(objective) is dict and len(objective) <= 3, "objective")
    _require(objective.get("name") in XGBOOST_OBJECTIVES.split(), "objective")
    sizes = {"num_class": plain["num_class"]}
    for group, settings in objective.items():
        if group == "name":
            continue
        is_known = _WORD.fullmatch(group) and type(settings) is dict and len(settings) <= 8
        _require(is_known, "objective")
        for key, text in settings.items():
            is_number = type(text) is str and _NUMBERS.fullmatch(text)
            _require(_WORD.fullmatch(key) and is_number, "objective")
            _require(key not in sizes or text == str(sizes[key]), "objective")
            is_alpha = key == "quantile_alpha"
            _require(not is_alpha or text.count(",") + 1 == plain["num_target"], "objective")
    is_softmax = objective["name"].startswith("multi:")
    has_count = "num_class" in objective.get("softmax_multiclass_param", {})
    _require(is_softmax == (plain["num_class"] > 1) == has_count, "num_class")


def _check_category_lists(plain: Plain) -> NDArray[np.int64] | None:
    """Check the names of categories; return how many each feature has, or None if unknown."""
    encodings, order = plain["enc"], plain["sorted_idx"]
    is_list = type(encodings) is list and len(encodings) in {0, plain["num_feature"]}
    _require(is_list, "categories")
    counts = np.array([_count_categories(encoding) for encoding in encodings], "i8")
    _require_array(order, "i4", int(counts.sum()), "sorted_idx")
    features = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    _require(np.array_equal(order[np.lexsort((order, features))], within), "sorted_idx")
    return counts if encodings else None


def _count_categories(encoding: Any) -> int:
    _require(type(encoding) is dict and "values" in encoding, "categories")
    values = encoding["values"]
    if set(encoding) == {"values", "type"}:
        kind = encoding["type"]
        _require(type(kind) is int and kind in _CATEGORY_TYPES, "type of categories")
        _require_array(values, _CATEGORY_TYPES[kind], None, "categories")
        return len(values)
    _require(set(encoding) == {"values", "offsets"}, "categories")
    offsets = encoding["offsets"]
    _require_array(values, "i1", None, "categories")
    _require_array(offsets, "i4", None, "categories")
    if len(offsets) == 0:
        _require(len(values) == 0, "categories")
        return 0
    is_complete = offsets[0] == 0 and offsets[-1] == len(values) and np.all(np.diff(offsets) >= 0)
    _require(is_complete, "categories")
    return len(offsets) - 1


def _check_splits(plain: Plain, counts: Any, is_leaf: Any) -> int:
    """Check the categorical splits, and return the memory of their bit sets in bytes."""
    nodes, sizes, categories = (plain[k] for k in ("split_nodes", "split_sizes", "categories"))
    n_splits = plain["num_splits"]
    _require_array(nodes, "i4", int(n_splits.sum(dtype="i8")), "split_nodes")
    _require_array(sizes, "i8", len(nodes), "split_sizes")
    _require(np.all((sizes >= 1) & (sizes <= _MOST_CATEGORIES)), "split_sizes")
    _require_array(categories, "i4", int(sizes.sum()), "categories")
    tree = np.repeat(np.arange(len(n_splits)), n_splits)
    limits = plain["num_nodes"][tree]
    _require(np.all((nodes >= 0) & (nodes < limits)), "split_nodes")
    first = np.cumsum(plain["num_nodes"]) - plain["num_nodes"]
    places = first[tree] + nodes
    is_new = np.diff(places) > 0
    _require(np.all(is_new) and not np.any(is_leaf[places]), "split_nodes")
    features = np.repeat(plain["split_indices"][places], sizes)
    limit = _MOST_CATEGORIES if counts is None else counts[features]
    _require(np.all((categories >= 0) & (categories < limit)), "categories")
    if len(nodes) == 0:
        return 0
    highest = np.maximum.reduceat(categories, np.cumsum(sizes) - sizes)
    return int((highest // 8 + 8).sum())


def _write_model(plain: Plain) -> bytes:
    """Return the model file of XGBoost for checked values."""
    import xgboost

    groups, parallel = _count_groups(plain), plain["num_parallel_tree"]
    n_trees, n_features = len(plain["num_nodes"]), plain["num_feature"]
    counts = [_count_categories(encoding) for encoding in plain["enc"]]
    segments: Any = np.cumsum([0, *counts]) if counts else []
    model = {
        "cats": {
            "enc": plain["enc"],
            "feature_segments": np.array(segments, "i4"),
            "sorted_idx": plain["sorted_idx"],
        },
        "gbtree_model_param": _as_texts(num_parallel_tree=parallel, num_trees=n_trees),
        "iteration_indptr": list(range(0, n_trees + 1, groups * parallel)),
        "tree_info": [number // parallel % groups for number in range(n_trees)],
        "trees": list(_iter_trees(plain)),
    }
    numbers = {key: plain[key] for key in ("boost_from_average", "num_class", "num_target")}
    learner = {
        "attributes": {},
        "feature_names": plain["feature_names"],
        "feature_types": plain["feature_types"],
        "gradient_booster": {"model": model, "name": "gbtree"},
        "learner_model_param": {
            "base_score": f"[{','.join(map(_format_float, plain['base_score']))}]",
            **_as_texts(num_feature=n_features, **numbers),
        },
        "objective": plain["objective"],
    }
    version = [int(part) for part in xgboost.__version__.split(".")[:3]]
    return _write_value({"learner": learner, "version": version})


def _as_texts(**numbers: int) -> dict[str, str]:
    return {key: str(number) for key, number in numbers.items()}


def _format_float(number: Any) -> str:
    text = np.format_float_scientific(number, trim="-", exp_digits=1)
    return text.replace("e+", "E").replace("e", "E")


def _iter_trees(plain: Plain) -> Any:
    """Yield the trees in the form of XGBoost's files."""
    ends, splits_end = np.cumsum(plain["num_nodes"]), np.cumsum(plain["num_splits"])
    category_ends = np.concatenate(([0], np.cumsum(plain["split_sizes"])))
    begin = first = 0
    for number, (end, last) in enumerate(zip(ends.tolist(), splits_end.tolist(), strict=True)):
        tree = {key: plain[key][begin:end] for key in _NODES}
        nodes, sizes = (plain[key][first:last] for key in ("split_nodes", "split_sizes"))
        parents = np.full(end - begin, _NO_PARENT, "i4")
        inner = np.flatnonzero(tree["left_children"] >= 0)
        for side in ("left_children", "right_children"):
            parents[tree[side][inner]] = inner
        split_type = np.zeros(end - begin, "u1")
        split_type[nodes] = 1
        low, high = category_ends[first], category_ends[last]
        yield {
            **tree,
            "id": number,
            "parents": parents,
            "split_type": split_type,
            "categories": plain["categories"][low:high],
            "categories_nodes": nodes,
            "categories_segments": (np.cumsum(sizes) - sizes).astype("i8"),
            "categories_sizes": sizes,
            "tree_param": _as_texts(
                num_deleted=0,
                num_feature=plain["num_feature"],
                num_nodes=end - begin,
                size_leaf_vector=1,
            ),
        }
        begin, first = end, last


def decode_booster(cls: Any, plain: Plain) -> Any:
    """Return the booster of checked plain values."""
    booster = cls()
    booster.load_model(bytearray(_write_model(plain)))
    return booster


_OTHERS = (
    "base_score boost_from_average categories enc feature_names feature_types num_class "
    "num_feature num_nodes num_parallel_tree num_splits num_target objective sorted_idx "
    "split_nodes split_sizes"
)
_KEYS = frozenset(_NODES) | frozenset(_OTHERS.split())
