"""Codec of LightGBM boosters: the arrays of all trees, and the few settings that predictions need.

The parser of LightGBM crashes on damaged model texts. Therefore a file of letheon contains no model
text. It contains arrays; the decoder checks every index and count in them, and writes the text for
LightGBM itself. The encoder writes the text, too, and compares it with the text of LightGBM, so
nothing is lost. Only the parameters of the training (they are attributes of the estimator) and the
importances (they follow from the trees) are left out.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from letheon.exceptions import UnsupportedStateError
from letheon.state._nodes import array_bytes, require_array, require_valid
from letheon.state._settings_table import LIGHTGBM_OBJECTIVES

# The arrays of a tree in the order of the text: dtype, format, and the number of values as
# (number per leaf, number to subtract). The arrays of categories follow.
_TREE = {
    "split_feature": ("i4", "%d", 1),
    "split_gain": ("f8", "%g", 1),
    "threshold": ("f8", "%.17g", 1),
    "decision_type": ("i4", "%d", 1),
    "left_child": ("i4", "%d", 1),
    "right_child": ("i4", "%d", 1),
    "leaf_value": ("f8", "%.17g", 0),
    "leaf_weight": ("f8", "%.17g", 0),
    "leaf_count": ("i8", "%d", 0),
    "internal_value": ("f8", "%g", 1),
    "internal_weight": ("f8", "%g", 1),
    "internal_count": ("i8", "%d", 1),
}
_CATEGORICAL = {"cat_boundaries": "i4", "cat_threshold": "u4"}
_HEAD = "version num_class num_tree_per_iteration label_index max_feature_idx objective"
_MOST_GROUPS = 1 << 16
_NUMBER = r"-?(?:\d{1,400}(?:\.\d{1,40})?(?:e[-+]\d{1,3})?)"
_INFO = re.compile(rf"none|\[{_NUMBER}:{_NUMBER}\]|-?\d{{1,10}}(?::-?\d{{1,10}})*", re.ASCII)
_NAME = re.compile(r"[^\s\"\[\]{}:,]+")
_OBJECTIVE = re.compile(
    rf"[a-z_0-9]{{1,30}}(?: (?:[a-z_]{{1,20}}:{_NUMBER}|sqrt)){{0,4}}", re.ASCII
)
_IS_CATEGORICAL, _NO_MISSING_TYPE, _LAST_DECISION = 1, 3, 15

Plain = dict[str, Any]


def encode_booster(booster: Any) -> Plain:
    """Return a booster as plain values.

    Raises
    ------
    UnsupportedStateError
        If the plain values do not contain everything that predictions need.
    """
    text = booster.model_to_string(num_iteration=-1)
    body, _, rest = text.partition("\nend of trees\n")
    head, *trees = body.split("\nTree=")
    fields = dict(line.partition("=")[::2] for line in head.splitlines())
    tables = [dict(line.partition("=")[::2] for line in tree.splitlines()) for tree in trees]
    plain = {
        "num_class": int(fields["num_class"]),
        "objective": fields.get("objective", ""),
        "feature_names": fields["feature_names"].split(" "),
        "feature_infos": fields["feature_infos"].split(" "),
        "monotone_constraints": [int(n) for n in fields.get("monotone_constraints", "").split()],
        "pandas_categorical": json.loads(rest.rpartition("\npandas_categorical:")[2]),
        "num_leaves": np.array([int(table["num_leaves"]) for table in tables], "i4"),
        "num_cat": np.array([int(table["num_cat"]) for table in tables], "i4"),
        "shrinkage": np.array([float(table["shrinkage"]) for table in tables], "f8"),
        **{key: _parse_numbers(tables, key, kind) for key, (kind, _, _) in _TREE.items()},
        **{key: _parse_numbers(tables, key, kind) for key, kind in _CATEGORICAL.items()},
    }
    check_booster(type(booster), plain)
    if _write_model(plain) != f"{body}\nend of trees\n":
        raise UnsupportedStateError(
            "letheon cannot save all parts of this LightGBM model, so it could have no digest; use "
            "boosting_type='gbdt' without linear trees, eval_set, callbacks and early stopping"
        )
    return plain


def _parse_numbers(tables: list[dict[str, str]], key: str, dtype: str) -> NDArray[Any]:
    words = " ".join(table.get(key, "") for table in tables).split()
    return np.array(words, "f8" if dtype == "f8" else "i8").astype(dtype)


def check_booster(_: type, plain: Any) -> int:
    """Check a booster from a file, and return the memory for loading it, in bytes.

    Raises
    ------
    CorruptFileError
        If an index, a count, a length or a number is not valid.
    """
    _check_head(plain)
    leaves = plain["num_leaves"].astype("i8")
    n_inner = int((leaves - 1).sum())
    for key, (kind, _form, fewer) in _TREE.items():
        values = plain[key]
        n_values = n_inner if fewer else int(_leaf_counts(leaves, key).sum())
        _require_array(values, kind, n_values, key)
        # A split at infinity separates missing values from all others.
        is_number = ~np.isnan(values) if key == "threshold" else np.isfinite(values)
        _require(np.all(is_number), key)
    for key in ("leaf_count", "internal_count"):
        _require(np.all((plain[key] >= 0) & (plain[key] < 2**31)), key)
    feature = plain["split_feature"]
    _require(np.all((feature >= 0) & (feature < len(plain["feature_names"]))), "split_feature")
    _check_children(plain, leaves)
    _check_decisions(plain, leaves)
    texts = 64 * len(plain["feature_names"]) + sum(map(len, plain["feature_infos"]))
    return 8192 + 2048 * len(leaves) + 8 * array_bytes(plain) + 4 * texts


def _leaf_counts(leaves: NDArray[np.int64], key: str) -> NDArray[np.int64]:
    """Return the number of values per tree; LightGBM writes no weight for a tree without splits."""
    return np.where(leaves == 1, 0, leaves) if key == "leaf_weight" else leaves


def _require(condition: Any, part: str) -> None:
    require_valid(condition, f"LightGBM model: {part}")


def _require_array(value: Any, dtype: str, size: int | None, part: str) -> None:
    require_array(value, dtype, size, f"LightGBM model: {part}")


def _check_head(plain: Any) -> None:
    _require(type(plain) is dict and set(plain) == _KEYS, "parts")
    for key, kind in (("num_leaves", "i4"), ("num_cat", "i4"), ("shrinkage", "f8")):
        _require_array(plain[key], kind, None, key)
    n_trees, n_classes = len(plain["num_leaves"]), plain["num_class"]
    is_count = type(n_classes) is int and 1 <= n_classes <= min(_MOST_GROUPS, n_trees)
    _require(is_count and n_trees % n_classes == 0, "num_class")
    _require(len(plain["num_cat"]) == len(plain["shrinkage"]) == n_trees, "number of trees")
    _require(np.all(plain["num_leaves"] >= 1) and np.all(plain["num_cat"] >= 0), "num_leaves")
    _require(np.all(np.isfinite(plain["shrinkage"])), "shrinkage")
    _require(type(plain["objective"]) is str and len(plain["objective"]) <= 200, "objective")
    _require(_OBJECTIVE.fullmatch(plain["objective"]), "objective")
    name, *settings = plain["objective"].split(" ")
    _require(name in LIGHTGBM_OBJECTIVES.split(), "objective")
    sizes = [word for word in settings if word.startswith("num_class:")]
    is_multiclass = name.startswith("multiclass")
    _require(sizes == [f"num_class:{n_classes}"] * is_multiclass, "objective")
    _require(is_multiclass or n_classes == 1, "num_class")
    for key, pattern in (("feature_names", _NAME), ("feature_infos", _INFO)):
        words = plain[key]
        is_list = type(words) is list and 0 < len(words) == len(plain["feature_names"])
        _require(is_list and all(type(w) is str and pattern.fullmatch(w) for w in words), key)
    signs = plain["monotone_constraints"]
    is_list = type(signs) is list and len(signs) in {0, len(plain["feature_names"])}
    _require(is_list and all(type(n) is int and abs(n) <= 1 for n in signs), "monotone_constraints")
    _require(_is_category_list(plain["pandas_categorical"]), "pandas_categorical")


def _is_category_list(value: Any) -> bool:
    if value is None:
        return True
    is_list = type(value) is list and all(type(names) is list for names in value)
    return is_list and all(type(n) in {str, int, float, bool} for names in value for n in names)


def _check_children(plain: Plain, leaves: NDArray[np.int64]) -> None:
    """Check that every leaf and every inner node except the root has exactly one parent."""
    inner = leaves - 1
    first, first_leaf = np.cumsum(inner) - inner, np.cumsum(leaves) - leaves
    tree = np.repeat(np.arange(len(leaves)), inner)
    position = np.arange(len(tree)) - first[tree]
    children = np.stack([plain[key].astype("i8") for key in ("left_child", "right_child")])
    is_leaf = children < 0
    # Inner nodes come after their parents: there is no cycle.
    is_inside = np.where(
        is_leaf, ~children < leaves[tree], (children > position) & (children < inner[tree])
    )
    _require(np.all(is_inside), "children")
    nodes = np.sort((children + first[tree])[~is_leaf])
    _require(np.array_equal(nodes, np.flatnonzero(position > 0)), "children")
    ends = np.sort((~children + first_leaf[tree])[is_leaf])
    has_parent = np.repeat(leaves > 1, leaves)
    _require(np.array_equal(ends, np.flatnonzero(has_parent)), "leaves")


def _check_decisions(plain: Plain, leaves: NDArray[np.int64]) -> None:
    """Check the kinds of splits, and the bit sets of categories."""
    kinds, n_cat = plain["decision_type"], plain["num_cat"].astype("i8")
    is_known = (kinds >= 0) & (kinds <= _LAST_DECISION) & (kinds >> 2 != _NO_MISSING_TYPE)
    _require(np.all(is_known), "decision_type")
    tree = np.repeat(np.arange(len(leaves)), leaves - 1)
    is_categorical = kinds & _IS_CATEGORICAL == 1
    number = plain["threshold"][is_categorical]
    is_index = (number == np.floor(number)) & (number >= 0) & (number < n_cat[tree][is_categorical])
    _require(np.all(is_index), "threshold")
    sizes = np.where(n_cat > 0, n_cat + 1, 0)
    bounds, bits = plain["cat_boundaries"], plain["cat_threshold"]
    _require_array(bounds, "i4", int(sizes.sum()), "cat_boundaries")
    _require_array(bits, "u4", None, "cat_threshold")
    starts = (np.cumsum(sizes) - sizes)[n_cat > 0]
    is_start = np.zeros(len(bounds), bool)
    is_start[starts] = True
    _require(np.all(bounds[is_start] == 0), "cat_boundaries")
    _require(np.all(is_start[1:] | (np.diff(bounds.astype("i8")) > 0)), "cat_boundaries")
    _require(int(bounds[_last_places(sizes)].sum(dtype="i8")) == len(bits), "cat_threshold")


def _last_places(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of the last value of every tree that has values."""
    places: NDArray[np.int64] = (np.cumsum(sizes) - 1)[sizes > 0]
    return places


def _write_model(plain: Plain) -> str:
    """Return the model text of LightGBM for checked values, up to the last tree."""
    trees = [f"{text}\n\n\n" for text in _iter_trees(plain)]
    numbered = [f"Tree={number}\n{text}" for number, text in enumerate(trees)]
    n_classes, names = plain["num_class"], plain["feature_names"]
    constraints = " ".join(map(str, plain["monotone_constraints"]))
    signs = [f"monotone_constraints={constraints}"] if constraints else []
    values = ("v4", n_classes, n_classes, 0, len(names) - 1, plain["objective"])
    lines = [f"{key}={value}" for key, value in zip(_HEAD.split(), values, strict=True)]
    return "\n".join(
        (
            "tree",
            *lines,
            f"feature_names={' '.join(names)}",
            *signs,
            f"feature_infos={' '.join(plain['feature_infos'])}",
            f"tree_sizes={' '.join(str(len(text.encode())) for text in numbered)}",
            "",
            f"{''.join(numbered)}end of trees\n",
        )
    )


def _iter_trees(plain: Plain) -> Iterator[str]:
    leaves, n_cat = plain["num_leaves"].astype("i8"), plain["num_cat"].astype("i8")
    bound_sizes = np.where(n_cat > 0, n_cat + 1, 0)
    bit_sizes = np.zeros_like(n_cat)
    bit_sizes[n_cat > 0] = plain["cat_boundaries"][_last_places(bound_sizes)]
    columns = {
        key: _split_numbers(plain[key], leaves - 1 if fewer else _leaf_counts(leaves, key), form)
        for key, (_, form, fewer) in _TREE.items()
    }
    columns["cat_boundaries"] = _split_numbers(plain["cat_boundaries"], bound_sizes, "%d")
    columns["cat_threshold"] = _split_numbers(plain["cat_threshold"], bit_sizes, "%d")
    for count, categories, shrinkage in zip(
        leaves.tolist(), n_cat.tolist(), plain["shrinkage"].tolist(), strict=True
    ):
        lines = [f"num_leaves={count}", f"num_cat={categories}"]
        for key, texts in columns.items():
            text = next(texts)
            if key in _TREE or categories:
                lines.append(f"{key}={text}")
        yield "\n".join((*lines, "is_linear=0", f"shrinkage={shrinkage:g}"))


def _split_numbers(values: NDArray[Any], sizes: NDArray[Any], form: str) -> Iterator[str]:
    """Yield the text of each tree's numbers."""
    begin, numbers = 0, values.tolist()
    for size in sizes.tolist():
        yield " ".join([form] * size) % tuple(numbers[begin : begin + size])
        begin += size


def decode_booster(cls: Any, plain: Plain) -> Any:
    """Return the booster of checked plain values."""
    categories = json.dumps(plain["pandas_categorical"])
    return cls(model_str=f"{_write_model(plain)}\npandas_categorical:{categories}\n")


_OTHERS = (
    "cat_boundaries cat_threshold feature_infos feature_names monotone_constraints num_cat "
    "num_class num_leaves objective pandas_categorical shrinkage"
)
_KEYS = frozenset(_TREE) | frozenset(_OTHERS.split())
