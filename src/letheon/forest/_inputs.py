"""Input of a forest: settings, rows and labels."""

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_consistent_length

from letheon import _core
from letheon.data import (
    CategoryColumns,
    EncodedRows,
    Ids,
    ValueNames,
    hold_target,
    join_target,
    row_ids,
)
from letheon.exceptions import PrecisionWarning, warn_caller
from letheon.forest._weights import ClassWeightRule, Weights, WeightSettings
from letheon.seeds import Purpose, keyed_hash_ints
from letheon.validation import (
    JOBS,
    POSITIVE,
    VERBOSE,
    Either,
    Interval,
    OneOf,
    OrNone,
    Rules,
    Whole,
)

# The core counts trees, levels and thresholds in 32 bits.
_MOST = 2**31 - 1
_ALL_THRESHOLDS = 0
_UNLIMITED = -1
# Bits of the integer that represents a regression target, without its sign; with fewer bits in use
# a warning is issued.
_TARGET_BITS = 31
_FEWEST_BITS = 16


@dataclass(frozen=True)
class ForestSettings(WeightSettings):
    """All settings that determine a forest, resolved for a number of columns.

    `max_depth` is -1 if there is no limit, and `n_thresholds` is 0 if all values are candidates.
    `y_exponent` is the fixed scale of a regression target, or None if it is computed from the rows.
    `categorical` has the numbers of the columns that contain categories.
    """

    criterion: str
    n_trees: int
    n_columns: int
    max_depth: int
    max_features: int
    n_thresholds: int
    random_depth: int
    min_samples_split: int
    min_samples_leaf: int
    subsample: float
    y_exponent: int | None
    seed: int
    categorical: tuple[int, ...] = ()
    weight_bits: int = 0
    class_weight: Any = None

    @property
    def is_regression(self) -> bool:
        """Whether the targets are numbers and not classes."""
        return self.criterion == "squared_error"

    @property
    def has_subsamples(self) -> bool:
        """Whether each tree uses only a part of the people."""
        return self.subsample < 1

    @property
    def owner_seed(self) -> int | None:
        """Seed of the hashes of ids, or None if they are not needed."""
        return self.seed if self.has_subsamples else None

    def core_spec(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        keys: NDArray[np.uint32] | None = None,
    ) -> _core.ForestSpec:
        """Return the settings of the C++ core for some of the trees, by default for all.

        The trees are those with numbers from `first` up to, but not including, `last`. `keys` are
        the keys of the columns; None means their numbers.
        """
        numbers = np.arange(first, self.n_trees if last is None else last, dtype=np.int64)
        sample_keys, limit = np.empty(0, np.uint64), 0
        if self.has_subsamples:
            sample_keys = keyed_hash_ints(self.seed, Purpose.TREE_ROWS, numbers)
            limit = int(self.subsample * 2.0**64)  # exact: scaling by a power of two
        return _core.ForestSpec(
            criterion=self.criterion,
            n_columns=self.n_columns,
            max_depth=self.max_depth,
            max_features=self.max_features,
            n_thresholds=self.n_thresholds,
            random_depth=self.random_depth,
            min_samples_split=min(self.min_samples_split * self.weight_step, _MOST),
            min_samples_leaf=min(self.min_samples_leaf * self.weight_step, _MOST),
            tree_keys=keyed_hash_ints(self.seed, Purpose.TREE, numbers),
            sample_keys=sample_keys,
            sample_limit=limit,
            y_exponent=self.y_exponent,
            column_keys=keys,
            categorical=self._flag_categories(),
        )

    def _flag_categories(self) -> NDArray[np.uint8] | None:
        if not self.categorical:
            return None
        flags = np.zeros(self.n_columns, np.uint8)
        flags[list(self.categorical)] = 1
        return flags


# Parameters that `ForestSettings` stores in resolved form.
RESOLVED = frozenset(field.name for field in fields(ForestSettings)) | {
    "n_estimators",
    "y_max",
    "categorical_features",
}
_COUNT = Whole(1, _MOST)
_SHARE = Interval(0, 1, closed="right")
REBUILD = OneOf(("lazy", "eager"))
PARAMETER_RULES: Rules = {
    "rebuild": REBUILD,
    "n_estimators": _COUNT,
    "max_depth": OrNone(Whole(0, _MOST), "no limit"),
    "n_thresholds": OrNone(_COUNT, "all values"),
    "random_depth": Whole(0, _MOST),
    "min_samples_split": Whole(2, _MOST),
    "min_samples_leaf": _COUNT,
    "subsample": _SHARE,
    "max_features": OrNone(
        Either(OneOf(("sqrt", "log2"), "'sqrt', 'log2'"), _COUNT, _SHARE), "all columns"
    ),
    "n_jobs": JOBS,
    "verbose": VERBOSE,
    "y_max": OrNone(POSITIVE),
    "weight_bits": Whole(0, 16),
    "class_weight": ClassWeightRule(),
}


def resolve_settings(model: Any, n_columns: int, columns: CategoryColumns) -> ForestSettings:
    """Return the checked parameters of an estimator for rows with `n_columns` columns."""
    return ForestSettings(
        criterion=str(model.criterion),
        n_trees=int(model.n_estimators),
        n_columns=n_columns,
        max_depth=_UNLIMITED if model.max_depth is None else int(model.max_depth),
        max_features=resolve_max_features(model.max_features, n_columns),
        n_thresholds=_ALL_THRESHOLDS if model.n_thresholds is None else int(model.n_thresholds),
        random_depth=int(model.random_depth),
        min_samples_split=int(model.min_samples_split),
        min_samples_leaf=int(model.min_samples_leaf),
        subsample=float(model.subsample),
        y_exponent=y_exponent_of(getattr(model, "y_max", None)),
        seed=columns.seed,
        categorical=columns.columns,
        weight_bits=int(model.weight_bits),
        class_weight=getattr(model, "class_weight", None),
    )


def resolve_max_features(value: Any, n_columns: int) -> int:
    """Return the number of columns a node considers, from scikit-learn's `max_features`.

    Parameters
    ----------
    value : {"sqrt", "log2"}, int, float or None
        The parameter; a float is a share of the columns, and None means all of them.
    n_columns : int
        Number of columns.

    Returns
    -------
    int
        A number between 1 and `n_columns`.

    Examples
    --------
    >>> from letheon.forest import resolve_max_features
    >>> [resolve_max_features(value, 20) for value in ("sqrt", "log2", 0.5, 7, None)]
    [4, 4, 10, 7, 20]
    """
    if value is None:
        return n_columns
    if isinstance(value, str) and value in ("sqrt", "log2"):
        root = math.isqrt(n_columns) if value == "sqrt" else n_columns.bit_length() - 1
        return max(1, root)
    if isinstance(value, float | np.floating):
        return max(1, int(value * n_columns))
    return min(int(value), n_columns)


def warn_if_coarse(target: NDArray[Any], y_max: Any) -> None:
    """Warn if the bound `y_max` is so large that the targets are rounded coarsely."""
    exponent = y_exponent_of(y_max)
    if exponent is None:
        return
    largest = float(np.abs(target).max())
    used = _TARGET_BITS - exponent + math.frexp(largest)[1]
    if largest == 0 or used >= _FEWEST_BITS:
        return
    step = math.ldexp(1.0, exponent - _TARGET_BITS)
    warn_caller(
        f"y_max={y_max} rounds targets to steps of {step:.3g}, but the largest target is "
        f"{largest:.3g}; use a smaller bound, or None",
        PrecisionWarning,
    )


def y_exponent_of(y_max: Any) -> int | None:
    """Return the binary exponent of a bound on the target, or None without a bound.

    Parameters
    ----------
    y_max : float or None
        The bound.

    Returns
    -------
    int or None
        The smallest e with ``y_max < 2**e``.

    Examples
    --------
    >>> from letheon.forest import y_exponent_of
    >>> y_exponent_of(100.0)
    7
    """
    return None if y_max is None else math.frexp(float(y_max))[1]


@dataclass(frozen=True)
class ForestBatch:
    """Training rows with their targets, weights and ids.

    Parameters
    ----------
    X : ndarray or sparse matrix of float32
        The rows.
    target : ndarray
        Labels or targets.
    weights : ndarray or None
        Weights; None if all are 1.
    ids : Ids
        One id per row.
    names : tuple of dict
        Names of categories in X, as in `EncodedRows`.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.data import EncodedRows
    >>> from letheon.forest import ForestBatch
    >>> rows = EncodedRows(np.array([[0.5], [1.5]]))
    >>> batch = ForestBatch.from_input(rows, np.array([0, 1]), None, ["anna", "ben"])
    >>> batch.ids.to_list()
    ['anna', 'ben']
    """

    X: Any
    target: NDArray[Any]
    weights: NDArray[np.uint32] | None
    ids: Ids
    names: tuple[ValueNames, ...] = ()

    @classmethod
    def from_input(
        cls, rows: EncodedRows, target: NDArray[Any], weights: Weights | None, ids: Any
    ) -> "ForestBatch":
        """Check the input and return it as a batch without the rows of weight 0."""
        check_consistent_length(rows.matrix, target)
        owners = row_ids(ids, rows.matrix.shape[0])
        return cls(rows.matrix, target, weights, owners, rows.names)._drop_absent()

    def _drop_absent(self) -> "ForestBatch":
        if self.weights is None:
            return self
        present = np.flatnonzero(self.weights)
        if len(present) == 0:
            raise ValueError(
                "sample_weight is zero for every row; expected at least one positive weight"
            )
        weights = self.weights[present]
        kept = None if (weights == 1).all() else weights
        if len(present) == len(self.weights):
            return replace(self, weights=kept)
        ids = self.ids.take(present)
        return ForestBatch(self.X[present], self.target[present], kept, ids, self.names)


Codes = NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class LabelTable:
    """Immutable table of the labels by code.

    A label without rows is erased, and its code can be used again.

    Codes follow the order in which classes were added, so they are used only inside a model in
    memory. All output has classes in sorted order.

    Parameters
    ----------
    labels : ndarray
        Labels by code.
    is_used : ndarray of bool
        Whether a code has rows.

    Examples
    --------
    >>> import numpy as np
    >>> from letheon.forest import LabelTable
    >>> table, codes = LabelTable.from_labels(np.array(["no", "yes", "no"]))
    >>> table.classes.tolist(), codes.tolist()
    (['no', 'yes'], [0, 1, 0])
    """

    labels: NDArray[Any]
    is_used: NDArray[np.bool_]

    @classmethod
    def from_labels(cls, y: NDArray[Any]) -> tuple[Self, Codes]:
        """Return a table of the labels in `y`, and the code of each label."""
        labels, codes = np.unique(y, return_inverse=True)
        # Use the narrowest text dtype: a wide one would reveal the length of an absent label.
        return cls.from_classes(hold_target(labels)), codes.astype(np.uint32)

    @classmethod
    def from_classes(cls, classes: NDArray[Any]) -> Self:
        """Return a table in which the code of a label is its position in `classes`."""
        return cls(classes, np.ones(len(classes), bool))

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def code_order(self) -> Codes:
        """Codes of the labels in use, in sorted order of the labels."""
        codes = np.flatnonzero(self.is_used)
        return codes[np.argsort(self.labels[codes], kind="stable")].astype(np.uint32)

    @cached_property
    def classes(self) -> NDArray[Any]:
        """Labels in use, sorted."""
        classes = self.labels[self.code_order]
        classes.flags.writeable = False  # returned to callers as `classes_`
        return classes

    @cached_property
    def is_plain(self) -> bool:
        """Whether the code of every label is its position in `classes`."""
        return np.array_equal(self.code_order, np.arange(len(self)))

    def add_labels(self, y: NDArray[Any]) -> tuple[Self, Codes]:
        """Return a table that also contains the labels of `y`, and the codes of `y`."""
        cast = join_target(self.classes, y)
        assert cast is not None
        new, inverse = np.unique(cast[len(self.classes) :], return_inverse=True)
        codes = {
            label: code for code, label in enumerate(self.labels.tolist()) if self.is_used[code]
        }
        free = np.flatnonzero(~self.is_used).tolist()
        for label in new.tolist():
            if label not in codes:
                codes[label] = free.pop(0) if free else len(codes)
        table = self._of_codes(codes, max(len(self), *(code + 1 for code in codes.values())))
        return table, np.array([codes[label] for label in new.tolist()], np.uint32)[inverse]

    def without_empty(self, counts: NDArray[np.int64]) -> Self:
        """Return a table without the labels that have no rows; `counts` has the rows per code."""
        if np.count_nonzero(counts) == np.count_nonzero(
            self.is_used
        ):  # free codes have no rows either
            return self
        kept = enumerate(self.labels.tolist())
        codes = {label: code for code, label in kept if self.is_used[code] and counts[code]}
        return self._of_codes(codes, len(self))

    def _of_codes(self, codes: dict[Any, int], length: int) -> Self:
        is_used = np.zeros(length, bool)
        is_used[list(codes.values())] = True
        values = hold_target(list(codes))  # the narrowest text dtype again
        labels = np.zeros(length, values.dtype)
        labels[list(codes.values())] = values
        return type(self)(labels, is_used)
